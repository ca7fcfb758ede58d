"""Which devices a group selects, and what a device is to run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from edgewire.allowed import decode
from edgewire.signals import default_edges
from edgewire.v1 import edge_pb2
from edgewire.wire_places import from_wire
from gateway.backends.edge import EdgeEndpoint
from gateway.compat import Needs
from gateway.core.config import Config
from gateway.core.place import Place, Tier
from gateway.core.release import Blob, GatherOrder, Orders, Reference, Release, ReleaseFile, Stage
from gateway.edgehub.desired import Desires, Known, conflicts
from gateway.edgehub.groups import EdgeConfig, may_share_devices, selects
from gateway.registry.devices import Enrolled
from tests.support.configs import config_from
from tests.support.hub import edge, hub_config
from tests.support.processes import output_of


@pytest.mark.parametrize(
    ("select", "site", "labels", "belongs"),
    [
        ({}, "plant-7", {}, True),
        ({"site": "plant-7"}, "plant-7", {}, True),
        ({"site": ["plant-9", "plant-7"]}, "plant-7", {}, True),
        ({"site": ["plant-9"]}, "plant-7", {}, False),
        ({"labels": {"soc": "imx8mp"}}, "plant-7", {"soc": "imx8mp", "line": "2"}, True),
        ({"labels": {"soc": ["rpi5", "imx8mp"]}}, "plant-7", {"soc": "imx8mp"}, True),
        ({"labels": {"soc": ["rpi5"]}}, "plant-7", {"soc": "imx8mp"}, False),
        ({"labels": {"soc": ["rpi5"]}}, "plant-7", {}, False),
        ({"labels": {"soc": "a", "line": "2"}}, "plant-7", {"soc": "a"}, False),
        ({"site": "plant-9", "labels": {"soc": "a"}}, "plant-7", {"soc": "a"}, False),
    ],
)
def test_every_part_that_is_given_must_hold(select: Any, site: str, labels: dict[str, str], belongs: bool):
    assert selects(edge(**select), site, labels) is belongs


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"select": {"site": []}}, "at least 1 item"),
        ({"select": {"labels": {"soc": []}}}, "at least 1 item"),
        ({"select": {"labels": {"soc": 8}}}, "valid tuple"),
        ({"select": {"sites": ["plant-7"]}}, "Extra inputs"),
        ({"location": {"tier": "device"}}, "Extra inputs"),
        ({"select": {"site": ["a b"]}}, "match pattern"),
    ],
)
def test_wrong_groups_are_refused(given: dict[str, Any], says: str):
    with pytest.raises(ValidationError, match=says):
        EdgeConfig.model_validate({"name": "cameras", "kind": "edge", **given})


def test_a_group_has_no_place_of_its_own_and_its_identity_is_its_selection():
    assert edge().place is None
    assert edge().identity != edge(site="plant-7").identity
    assert EdgeEndpoint.params is EdgeConfig


def test_the_configuration_is_read_without_grpc():
    code = (
        "import sys; import gateway.backends.edge, gateway.edgehub.groups; "
        "print(sorted(m for m in ('grpc', 'tritonclient', 'ray') if m in sys.modules))"
    )
    assert output_of([sys.executable, "-c", code]).strip() == "[]"


RUNTIME = {"runtime": "tflite-runtime 2.14.0", "memory_mb": "4096"}


def file(name: str, golden: bool = False) -> ReleaseFile:
    beside = Blob(f"sha256:g-{name}", 9) if golden else None
    return ReleaseFile("tflite", Blob(f"sha256:{name}", len(name)), beside)


def release(
    model: str, version: str, stage: Stage = Stage.PASSED, places: str = "", **files: ReleaseFile
) -> Release:
    return Release(model, version, files, int(version), stage, places)


def orders(*releases: Release, **more: Any) -> Orders:
    """The first release of a model stands."""
    standing = {one.model: one.version for one in reversed(releases)}
    return Orders({(one.model, one.version): one for one in releases}, **{"standing": standing} | more)


def desired(
    config: Config,
    given: Orders,
    site: str = "plant-7",
    labels: Mapping[str, str] | None = None,
    *,
    running: Mapping[str, tuple[str, str]] | None = None,
    needs: Mapping[str, Needs] | None = None,
    facts: Mapping[str, str] = RUNTIME,
) -> edge_pb2.Desired | None:
    known = Known(Enrolled("cam-1", site, labels or {}), facts, running)
    return Desires(config).of(known, given, needs or {})


def running(found: edge_pb2.Desired | None) -> list[tuple[str, str, str]]:
    assert found is not None
    return [(m.model, m.version, m.digest) for m in found.models]


def models(*given: tuple[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [{"name": name, "variants": variants} for name, variants in given]


CAMERAS = {"endpoint": "cameras", "artifact": "a.tflite"}


def test_a_device_runs_what_every_group_of_it_asks_for():
    config = hub_config(
        [edge("cameras", site="plant-7"), edge("imx", labels={"soc": "imx"})],
        models(
            ("digits", [{**CAMERAS, "batching": {"max_size": 8, "delay_ms": 2}}]),
            ("hey", [{"endpoint": "imx", "artifact": "w.tflite", "model": "wake", "version": "4"}]),
            ("preloaded", [{"endpoint": "imx"}]),
        ),
    )
    given = orders(
        release("digits", "1", cameras=file("a", golden=True)),
        release("hey", "9", imx=file("other")),
        release("hey", "4", imx=file("w")),
    )
    found = {
        (site, soc): running(desired(config, given, site, {"soc": soc}))
        for site in ("plant-7", "plant-9")
        for soc in ("imx", "rpi")
    }
    digits, wake = ("digits", "1", "sha256:a"), ("wake", "4", "sha256:w")
    assert found == {
        ("plant-7", "imx"): [digits, wake],
        ("plant-7", "rpi"): [digits],
        ("plant-9", "imx"): [wake],
        ("plant-9", "rpi"): [],
    }
    whole = desired(config, given, "plant-7", {"soc": "imx"})
    assert whole is not None
    one, other = whole.models
    assert (one.size, one.golden_digest, one.golden_size) == (1, "sha256:g-a", 9)
    assert (one.target, one.golden_target) == ("digits/1/cameras", "digits/1/cameras.golden")
    assert (one.batch_max_size, one.batch_delay_ms) == (8, 2.0)
    assert (other.golden_digest, other.golden_size, other.batch_max_size) == ("", 0, 0)
    # A name of the device's own for the model is in the target's name, and whose model it is.
    assert (other.target, other.golden_target) == ("wake/4/hey%3Aimx", "")
    assert conflicts(config) == []


@pytest.mark.parametrize(
    "second",
    [
        {"endpoint": "all", "artifact": "b.tflite"},
        {"endpoint": "all", "artifact": "a.tflite", "version": "2"},
        {"endpoint": "all", "artifact": "a.tflite", "batching": {"max_size": 4}},
        {"endpoint": "cameras", "artifact": "b.tflite", "version": "2"},
    ],
)
def test_of_two_that_differ_the_first_in_the_file_wins(second: dict[str, Any]):
    groups = [edge("cameras", site="plant-7"), edge("all")]
    given = orders(
        release("digits", "1", cameras=file("a"), all=file("b")),
        release("digits", "2", cameras=file("c"), all=file("d")),
    )
    config = hub_config(groups, models(("digits", [CAMERAS, second])))
    found = desired(config, given)
    assert found is not None
    (model,) = found.models
    assert (model.version, model.digest, model.batch_max_size) == ("1", "sha256:a", 0)
    (conflict,) = conflicts(config)
    assert (conflict.model, conflict.first, conflict.second) == ("digits", "cameras", second["endpoint"])
    assert str(conflict).endswith("the one for cameras wins, because it stands first")
    found = desired(hub_config(groups, models(("digits", [second, CAMERAS]))), given)
    assert found is not None
    (model,) = found.models
    assert (model.version, model.digest, model.batch_max_size) != ("1", "sha256:a", 0)


def test_the_same_work_asked_for_twice_is_no_conflict():
    config = hub_config(
        [edge("cameras"), edge("all")],
        models(
            ("digits", [CAMERAS]), ("copy", [{"endpoint": "all", "artifact": "a.tflite", "model": "digits"}])
        ),
    )
    given = orders(release("digits", "1", cameras=file("a")), release("copy", "1", all=file("a")))
    assert running(desired(config, given)) == [("digits", "1", "sha256:a")]
    assert conflicts(config) == []


FOLLOWS = hub_config([edge("cameras")], [{"name": "digits", "variants": [CAMERAS]}])
ONE = release("digits", "1", cameras=file("one"))
NEEDY = Needs({"ADD": 99}, frozenset(), frozenset({"FLOAT32"}), 1000)
PLAIN = Needs({"ADD": 1}, frozenset(), frozenset({"FLOAT32"}), 1000)


def test_a_device_runs_what_stands_or_where_a_rollout_has_moved_it():
    two = release("digits", "2", tflite=file("two"))
    given = orders(ONE, two, moved={"digits": {"cam-1": "2", "cam-2": "1"}})
    assert running(desired(FOLLOWS, given)) == [("digits", "2", "sha256:two")]
    elsewhere = orders(ONE, two, moved={"digits": {"cam-2": "2"}})
    assert running(desired(FOLLOWS, elsewhere)) == [("digits", "1", "sha256:one")]
    pinned = hub_config([edge("cameras")], models(("digits", [{**CAMERAS, "version": "1"}])))
    assert running(desired(pinned, given)) == [("digits", "1", "sha256:one")]


def test_the_file_for_the_group_comes_before_that_of_the_format():
    both = release("digits", "1", tflite=file("any"), cameras=file("own"))
    assert running(desired(FOLLOWS, orders(both))) == [("digits", "1", "sha256:own")]


def test_a_group_may_be_called_as_another_format_is():
    config = hub_config([edge("onnx")], [{"name": "digits", "variants": [{**CAMERAS, "endpoint": "onnx"}]}])
    both = release("digits", "1", onnx=ReleaseFile("onnx", Blob("sha256:x", 1)), tflite=file("one"))
    assert running(desired(config, orders(both))) == [("digits", "1", "sha256:one")]


NOT_FOR_IT = [
    pytest.param(
        release("digits", "2", tflite=file("two"), places="tier=device;site=plant-9"), {}, id="another place"
    ),
    pytest.param(release("digits", "2", tflite=file("two"), places="?"), {}, id="places that cannot be read"),
    pytest.param(
        release("digits", "2", tflite=file("two")), {"sha256:two": NEEDY}, id="an operator it lacks"
    ),
    pytest.param(
        release("digits", "2", onnx=ReleaseFile("onnx", Blob("sha256:x", 1))), {}, id="no file for it"
    ),
    pytest.param(
        release("digits", "2", cameras=ReleaseFile("onnx", Blob("sha256:x", 1))),
        {},
        id="a file of another kind",
    ),
    pytest.param(release("digits", "2", Stage.CANDIDATE, tflite=file("two")), {}, id="not through its gate"),
    pytest.param(release("digits", "2", Stage.WITHDRAWN, tflite=file("two")), {}, id="withdrawn"),
    pytest.param(release("other", "1", tflite=file("two")), {}, id="unknown to the orders"),
]


@pytest.mark.parametrize(("two", "needs"), NOT_FOR_IT)
def test_what_is_not_for_a_device_is_never_its_to_run_and_it_keeps_what_it_has(two: Release, needs: Any):
    given = orders(two, ONE, standing={"digits": "2"})
    # Before it has said what it runs, it is told nothing: it would stop.
    assert desired(FOLLOWS, given, needs=needs) is None
    kept = {"digits": ("1", "sha256:one")}
    assert running(desired(FOLLOWS, given, needs=needs, running=kept)) == [("digits", "1", "sha256:one")]
    assert running(desired(FOLLOWS, given, needs=needs, running={})) == []
    # What it runs is not ours, or is the very one that is not for it.
    assert running(desired(FOLLOWS, given, needs=needs, running={"digits": ("1", "sha256:odd")})) == []
    assert desired(FOLLOWS, given, needs=needs, running={"digits": ("2", "sha256:x")}) == edge_pb2.Desired(
        report_ms=60_000
    )


def test_a_device_on_a_withdrawn_release_runs_what_stands_and_never_nothing():
    two = release("digits", "2", Stage.WITHDRAWN, tflite=file("two"))
    given = orders(ONE, two, standing={"digits": "1"}, moved={"digits": {"cam-1": "2"}})
    on_it = {"digits": ("2", "sha256:two")}
    assert running(desired(FOLLOWS, given, running=on_it)) == [("digits", "1", "sha256:one")]


def test_a_device_that_runs_what_may_not_be_there_is_told_to_stop():
    here = release("digits", "2", tflite=file("two"), places="tier=device;site=plant-9")
    given = orders(here)
    assert running(desired(FOLLOWS, given, running={"digits": ("2", "sha256:two")})) == []
    assert running(desired(FOLLOWS, given, "plant-9")) == [("digits", "2", "sha256:two")]


def test_what_a_device_runs_it_can_run_whatever_it_says_of_itself():
    needs = {"sha256:one": PLAIN}
    assert running(desired(FOLLOWS, orders(ONE), needs=needs)) == [("digits", "1", "sha256:one")]
    assert running(desired(FOLLOWS, orders(ONE), needs=needs, facts={}, running={})) == []
    kept = {"digits": ("1", "sha256:one")}
    assert running(desired(FOLLOWS, orders(ONE), needs=needs, facts={}, running=kept)) == [
        ("digits", "1", "sha256:one")
    ]


def test_a_trial_is_of_a_candidate_too_and_as_bound_to_places():
    candidate = release("digits", "2", Stage.CANDIDATE, tflite=file("two", golden=True))
    bound = release("digits", "3", Stage.CANDIDATE, "tier=device;site=plant-9", tflite=file("three"))
    gone = release("digits", "4", Stage.WITHDRAWN, tflite=file("four"))
    asked = (("digits", "2"), ("digits", "3"), ("digits", "4"), ("digits", "5"), ("unknown", "1"))
    given = orders(ONE, candidate, bound, gone, trials={"cam-1": asked, "cam-2": (("digits", "3"),)})
    found = desired(FOLLOWS, given)
    assert found is not None
    assert running(found) == [("digits", "1", "sha256:one")]
    assert [(t.version, t.target, t.golden_target) for t in found.trials] == [
        ("2", "digits/2/tflite", "digits/2/tflite.golden")
    ]
    there = desired(FOLLOWS, given, "plant-9")
    assert there is not None
    assert [t.version for t in there.trials] == ["2", "3"]
    lacking = desired(FOLLOWS, given, needs={"sha256:two": NEEDY})
    assert lacking is not None
    assert not lacking.trials


PLANT, CLOUD = Place(Tier.SITE, site="plant-7"), Place(Tier.CLOUD, region="eu")
OPEN = [{"tier": ["device", "site", "regional", "cloud"]}]


@pytest.mark.parametrize(
    ("allow", "training", "gathers", "samples"),
    [
        (OPEN, CLOUD, True, True),
        ([{"tier": ["device", "site"]}], CLOUD, True, False),
        ([{"tier": ["device", "site"], "same": ["site"]}], PLANT, True, True),
        ([{"tier": ["device"], "same": ["device"]}], PLANT, False, False),
        ([{"tier": ["device", "cloud"]}], CLOUD, False, False),
        (OPEN, None, True, False),
    ],
)
def test_only_what_the_models_class_lets_go_is_gathered(
    allow: Any, training: Place | None, gathers: bool, samples: bool
):
    config = hub_config([edge("cameras")], models(("digits", [CAMERAS]))).model_dump(mode="json")
    config["privacy"] = {"default": "own", "classes": {"own": {"allow": allow}}}
    config = config_from({**config, "endpoints": [edge("cameras")]})
    order = GatherOrder(("input.mean", "output.confidence"), training, 500, 0.8)
    known = replace(ONE, reference={"input.mean": Reference((0.0, 0.5), (1, 2, 3))})
    found = desired(config, orders(known, gather={"digits": order}))
    assert found is not None
    (entry,) = found.models
    assert entry.HasField("gather") is gathers
    assert entry.gather.HasField("samples") is samples
    if gathers:
        told = {signal.name: tuple(signal.edges) for signal in entry.gather.signals}
        assert told == {"input.mean": (0.0, 0.5), "output.confidence": default_edges("output.confidence")}
        assert decode(entry.gather.allowed).allows(Place(Tier.DEVICE, site="plant-7", device="cam-1"))
        assert not decode(entry.gather.allowed).allows(
            Place(Tier.DEVICE, site="plant-9")
        ) or "same" not in str(allow)
    if samples:
        assert training is not None
        assert from_wire(entry.gather.samples.training) == training
        assert (entry.gather.samples.max_per_day, entry.gather.samples.confidence_below) == (500, 0.8)


def test_a_device_of_another_site_gives_this_gateway_no_values_of_its_own():
    """`same: [site]` is the device's site, and the gateway is elsewhere."""
    config = hub_config([edge("cameras")], models(("digits", [CAMERAS]))).model_dump(mode="json")
    config["privacy"]["classes"]["open"]["allow"] = [{"tier": ["device", "site"], "same": ["site"]}]
    config = config_from({**config, "endpoints": [edge("cameras")]})
    given = orders(ONE, gather={"digits": GatherOrder(("input.mean",), PLANT, 500, 0.8)})
    here, there = desired(config, given, "plant-7"), desired(config, given, "plant-9")
    assert here is not None
    assert there is not None
    assert here.models[0].HasField("gather")
    assert not there.models[0].HasField("gather")


@pytest.mark.parametrize(
    ("one", "other", "may"),
    [
        ({}, {}, True),
        ({"site": "a"}, {"site": ["b", "a"]}, True),
        ({"site": "a"}, {"site": "b"}, False),
        ({"site": "a"}, {"labels": {"k": "v"}}, True),
        ({"labels": {"k": "v"}}, {"labels": {"k": ["w", "v"]}}, True),
        ({"labels": {"k": "v"}}, {"labels": {"k": "w"}}, False),
        ({"labels": {"k": "v"}}, {"labels": {"l": "w"}}, True),
    ],
)
def test_groups_that_can_share_a_device(one: Any, other: Any, may: bool):
    assert may_share_devices(edge("x", **one), edge("y", **other)) is may
    assert may_share_devices(edge("y", **other), edge("x", **one)) is may
