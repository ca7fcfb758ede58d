"""Questions about models go only where the model's class allows, and to a version that is there."""

from __future__ import annotations

import pytest

from gateway.core.errors import Refusal
from gateway.core.ports import Health, ModelHealth
from gateway.core.request import Options
from oip.reasons import Reason
from tests.support.fakes import Bench, bench, config_of, failure

NONE = Options()


async def asked(b: Bench) -> dict[str, list[tuple[str, str]]]:
    """Record which (model, version) every endpoint is asked about from now on."""
    seen: dict[str, list[tuple[str, str]]] = {name: [] for name in b.endpoints}
    for name, endpoint in b.endpoints.items():
        answer = endpoint.model_metadata

        async def record(
            model: str, version: str, timeout_s: float, name: str = name, answer=answer
        ) -> bytes:
            seen[name].append((model, version))
            return await answer(model, version, timeout_s)

        endpoint.model_metadata = record
    return seen


def of_class(privacy: str):
    model = config_of().models[0].model_dump()
    variants = [v for v in model["variants"] if v["endpoint"] != "site"]
    return config_of(models=[{**model, "privacy": privacy, "variants": variants}])


async def test_forbidden_place_is_not_asked():
    b = await bench(of_class("eu"))
    seen = await asked(b)
    b.state.gone("cloud")
    with pytest.raises(Refusal) as refused:
        await b.director.model_metadata("digits", "", NONE)
    assert refused.value.reason is Reason.NO_CANDIDATE
    assert seen == {"site": [], "cloud": [], "far": []}
    assert not b.director.ready()
    assert not await b.director.model_ready("digits", "", NONE)


async def test_class_that_forbids_the_gateway_makes_nothing_ready():
    b = await bench(of_class("own"))
    assert not b.director.ready()
    assert not await b.director.model_ready("digits", "", NONE)


@pytest.mark.parametrize("version", ["v1", "-1", "1.0", "01", " 1", "x" * 5000, "9" * 30, "١"])
async def test_version_that_is_no_number_is_refused_before_anyone_is_asked(version: str):
    b = await bench()
    seen = await asked(b)
    for question in (b.director.model_ready, b.director.model_metadata, b.director.model_config):
        with pytest.raises(Refusal) as refused:
            await question("digits", version, NONE)
        assert refused.value.reason is Reason.MALFORMED
        assert len(refused.value.message) < 400
    assert not any(seen.values())


async def test_version_that_the_endpoint_chooses_is_asked_of_the_endpoint():
    b = await bench()

    async def only_one(models, timeout_s: float) -> Health:
        return Health(True, "", tuple(ModelHealth(m, v, v == "1") for m, v in models))

    for endpoint in b.endpoints.values():
        endpoint.health = only_one
    assert await b.director.model_ready("digits", "1", NONE)
    assert not await b.director.model_ready("digits", "99", NONE)
    assert await b.director.model_ready("digits", "3", NONE)

    async def missing(model: str, version: str, timeout_s: float) -> bytes:
        raise failure(Reason.UNKNOWN_MODEL)

    for endpoint in b.endpoints.values():
        endpoint.model_metadata = missing
    with pytest.raises(Refusal) as refused:
        await b.director.model_ready("digits", "99", NONE)
    assert refused.value.message == "Request for unknown model: 'digits' version 99 is not found"


async def test_callers_class_narrows_where_a_question_goes():
    b = await bench()
    seen = await asked(b)
    eu = Options(privacy="eu")
    for name in ("site", "cloud"):
        b.state.gone(name)
    assert await b.director.model_ready("digits", "", NONE)
    assert not await b.director.model_ready("digits", "", eu)
    for question in (b.director.model_metadata, b.director.model_config):
        with pytest.raises(Refusal) as refused:
            await question("digits", "", eu)
        assert refused.value.reason is Reason.NO_CANDIDATE
    assert not any(seen.values())


async def test_version_that_no_allowed_place_has_is_unknown():
    model = config_of().models[0].model_dump()
    variants = [v for v in model["variants"] if v["endpoint"] != "site"]
    # "far" may have any version, but the class keeps questions from it; "cloud" has version 3.
    b = await bench(config_of(models=[{**model, "variants": variants}]))
    seen = await asked(b)
    eu = Options(privacy="eu")
    for question in (b.director.model_ready, b.director.model_metadata, b.director.model_config):
        with pytest.raises(Refusal) as refused:
            await question("digits", "9", eu)
        assert refused.value.reason is Reason.UNKNOWN_VERSION
        assert refused.value.message == "Request for unknown model: 'digits' version 9 is not found"
    b.state.gone("cloud")
    with pytest.raises(Refusal) as away:
        await b.director.model_metadata("digits", "3", eu)
    assert away.value.reason is Reason.NO_CANDIDATE
    assert not any(seen.values())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (Options(privacy="nobody"), Reason.BAD_OPTION),
        (Options(policy="nobody"), Reason.BAD_OPTION),
        (Options(privacy="own"), Reason.PRIVACY),
    ],
)
async def test_options_alone_can_forbid_a_question(options: Options, reason: Reason):
    b = await bench()
    b.director.admit(NONE)
    with pytest.raises(Refusal) as refused:
        b.director.admit(options)
    assert refused.value.reason is reason
