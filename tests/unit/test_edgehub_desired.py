"""Which devices a group selects, and what a device is to run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.backends.edge import EdgeEndpoint
from gateway.edgehub.desired import conflicts, desired_of
from gateway.edgehub.groups import EdgeConfig, may_share_devices, selects
from tests.support.hub import Blob, edge, hub_config
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


def artifact(name: str, golden: bool = False) -> Blob:
    beside = Path(f"{name}.golden.npz") if golden else None
    return Blob(
        Path(name),
        f"sha256:{name}",
        len(name),
        beside,
        f"sha256:g-{name}" if golden else "",
        9 if golden else 0,
    )


ARTIFACTS = {name: artifact(name, golden=name == "a.tflite") for name in ("a.tflite", "b.tflite", "w.tflite")}


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
    found = {
        (site, soc): [
            (m.model, m.version, m.digest) for m in desired_of(config, ARTIFACTS, site, {"soc": soc})
        ]
        for site in ("plant-7", "plant-9")
        for soc in ("imx", "rpi")
    }
    digits, wake = ("digits", "1", "sha256:a.tflite"), ("wake", "4", "sha256:w.tflite")
    assert found == {
        ("plant-7", "imx"): [digits, wake],
        ("plant-7", "rpi"): [digits],
        ("plant-9", "imx"): [wake],
        ("plant-9", "rpi"): [],
    }
    one, other = desired_of(config, ARTIFACTS, "plant-7", {"soc": "imx"})
    assert (one.size, one.golden_digest, one.golden_size) == (8, "sha256:g-a.tflite", 9)
    assert (one.batch_max_size, one.batch_delay_ms) == (8, 2.0)
    assert (other.golden_digest, other.golden_size, other.batch_max_size) == ("", 0, 0)
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
    config = hub_config(groups, models(("digits", [CAMERAS, second])))
    (model,) = desired_of(config, ARTIFACTS, "plant-7", {})
    assert (model.version, model.digest, model.batch_max_size) == ("1", "sha256:a.tflite", 0)
    (conflict,) = conflicts(config)
    assert (conflict.model, conflict.first, conflict.second) == ("digits", "cameras", second["endpoint"])
    assert str(conflict).endswith("the one for cameras wins, because it stands first")
    turned = hub_config(groups, models(("digits", [second, CAMERAS])))
    (model,) = desired_of(turned, ARTIFACTS, "plant-7", {})
    assert (model.version, model.digest, model.batch_max_size) != ("1", "sha256:a.tflite", 0)


def test_the_same_work_asked_for_twice_is_no_conflict():
    config = hub_config(
        [edge("cameras"), edge("all")],
        models(
            ("digits", [CAMERAS]), ("copy", [{"endpoint": "all", "artifact": "a.tflite", "model": "digits"}])
        ),
    )
    assert len(desired_of(config, ARTIFACTS, "x", {})) == 1
    assert conflicts(config) == []


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
