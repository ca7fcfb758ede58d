"""Whatever endpoints say they have, the configuration in force is the declared one and no more than they may add."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.config import Config
from gateway.core.config.discovered import MAX_MODELS, MAX_NAME, found_of, offer
from tests.unit.config_support import TritonLike

CLASSES = ("public", "internal")
_NAMES = st.one_of(st.sampled_from(["a", "b", "c", "m", "m/1", "模型", "a b"]), st.text(max_size=4))
_Declared = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "m"]),
        st.sampled_from(["e0", "e1", "e2"]),
        st.sampled_from([None, "a", "c"]),
    ),
    max_size=3,
    unique_by=lambda entry: entry[0],
)


def config_of(discovers: list[str | None], declared: list[tuple[str, str, str | None]]) -> Config:
    place = {"tier": "cloud"}
    return Config.model_validate(
        {
            "version": 1,
            "gateway": {"name": "gw", "location": place},
            "endpoints": [
                TritonLike.model_validate(
                    {
                        "name": f"e{number}",
                        "kind": "triton",
                        "url": "grpc://h:1",
                        "location": place,
                        "discover": None if name is None else {"privacy": name},
                    }
                )
                for number, name in enumerate(discovers)
            ],
            "models": [
                {
                    "name": name,
                    "privacy": "internal",
                    "idempotent": True,
                    "variants": [{"endpoint": at, "model": called}],
                }
                for name, at, called in declared
            ],
            "privacy": {"default": "internal", "classes": {name: {"allow": [place]} for name in CLASSES}},
            "policies": [{"name": "all", "match": {}, "weights": {"latency": 1}}],
        }
    )


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([None, *CLASSES]), min_size=3, max_size=3).filter(any),
    _Declared,
    st.lists(st.frozensets(_NAMES, max_size=6), min_size=3, max_size=3),
)
def test_what_is_offered(
    discovers: list[str | None], declared: list[tuple[str, str, str | None]], has: list[frozenset[str]]
):
    config = config_of(discovers, declared)
    found = {f"e{number}": found_of(names) for number, names in enumerate(has)}
    made = offer(config, found)

    # What is declared stands first, untouched, and everything else is as it was.
    assert made.config.models[: len(config.models)] == config.models
    assert made.config.model_copy(update={"models": config.models}) == config
    # It is as consistent as a file, and says the same whatever the order in which it was heard.
    assert Config.model_validate(made.config.model_dump() | {"endpoints": config.endpoints}) == made.config
    assert offer(config, dict(reversed(found.items()))) == made

    names = {name for name, _, _ in declared}
    used = {(at, called or name) for name, at, called in declared}
    classes = {f"e{number}": name for number, name in enumerate(discovers) if name is not None}
    left_out = dict.fromkeys(classes, 0)
    expected: dict[str, list[str]] = {}
    for name in sorted({name for names_ in has for name in names_}):
        good = name == name.strip() and name.isprintable() and name
        at = [e for number, e in enumerate(("e0", "e1", "e2")) if e in classes and name in has[number]]
        free = [e for e in at if name not in names and (e, name) not in used]
        if not good:
            for endpoint in at:
                left_out[endpoint] += 1
        elif len({classes[e] for e in free}) > 1:
            for endpoint in free:
                left_out[endpoint] += 1
        elif free:
            expected[name] = free
    added = made.config.models[len(config.models) :]
    assert [(m.name, [v.endpoint for v in m.variants]) for m in added] == sorted(expected.items())
    for model in added:
        assert not model.idempotent
        assert {classes[v.endpoint] for v in model.variants} == {model.privacy}
        assert all(
            (v.model, v.version, v.artifact, v.weight) == (None, None, None, 1) for v in model.variants
        )
    assert made.endpoints.keys() == classes.keys()
    for endpoint, offered in made.endpoints.items():
        assert list(offered.names) == [name for name, at in expected.items() if endpoint in at]
        assert offered.left_out == left_out[endpoint]
        assert bool(offered.remark) == bool(offered.left_out)
        assert offered.remark.isprintable()


@settings(deadline=None)
@given(st.frozensets(st.text(max_size=5), max_size=20), st.integers(0, 3), st.integers(-2, 2))
def test_names_are_bounded(odd: frozenset[str], surplus: int, longer: int):
    many = {f"model-{number:05}" for number in range(MAX_MODELS + surplus)}
    long = "n" * (MAX_NAME + longer)
    found = found_of({*many, *odd, long})
    assert len(found.names) == MAX_MODELS
    assert list(found.names) == sorted(set(found.names))
    assert all(0 < len(name) <= MAX_NAME and name.isprintable() for name in found.names)
    assert len(found.names) + found.odd + found.surplus == len({*many, *odd, long})
