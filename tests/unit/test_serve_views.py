"""What operators see of endpoints, whatever these say of themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.fleet import Device, group_of
from gateway.core.place import Place, Tier
from gateway.core.ports import Health, ModelHealth
from gateway.pipeline.state import ReplicaState
from gateway.serve import views
from tests.support.configs import config_from
from tests.support.fakes import bench


async def test_statistics_that_cannot_be_read_hide_no_other_endpoint(monkeypatch: pytest.MonkeyPatch):
    b = await bench()

    async def broken(model: str, version: str, timeout_s: float) -> bytes:
        return b"\xff"

    monkeypatch.setattr(b.endpoints["site"], "statistics", broken)
    seen = {
        view["name"]: view
        for view in await views.endpoints(b.state.snapshot, b.endpoints, lambda _: None, 1.0)
    }
    assert list(seen) == ["site", "cloud", "far"]
    assert [model["statistics"] for model in seen["site"]["models"]] == [None]
    assert [model["statistics"] for model in seen["cloud"]["models"]] == [[]]


def test_of_an_artifact_the_file_name_alone_is_told():
    config = config_from(
        {
            "version": 1,
            "gateway": {"name": "gw", "location": {"tier": "site", "site": "plant-7"}},
            "endpoints": [{"name": "cameras", "kind": "fake", "location": {"tier": "device"}}],
            "models": [
                {
                    "name": "m",
                    "variants": [{"endpoint": "cameras", "artifact": "/srv/secret-folder/m.tflite"}],
                }
            ],
            "privacy": {"default": "any", "classes": {"any": {"allow": [{"tier": ["device", "site"]}]}}},
            "policies": [{"name": "default", "match": {}, "weights": {"latency": 1}}],
        }
    )
    (model,) = views.models(ReplicaState(config, "r").snapshot, {"digits"})
    assert model["variants"][0]["artifact"] == "m.tflite"


async def test_the_versions_that_answer_now():
    b = await bench()
    b.state.heard("site", Health(True, "", (ModelHealth("digits", "", True, ("2", "3")),)))
    snapshot = b.state.snapshot
    devices = [
        Device(name, Place(Tier.DEVICE, device=name), connected, models=frozenset({("digits", version)}))
        for name, connected, version in (("a", True, "10"), ("b", True, "9"), ("c", False, "8"))
    ]
    told: dict[str, list[str]] = {}
    for shown in (snapshot, replace(snapshot, groups={"far": group_of(devices)})):
        (model, *_) = views.models(shown, {"digits"})
        told |= {variant["endpoint"]: variant["versions"] for variant in model["variants"]}
    assert (told["site"], told["far"]) == (["2", "3"], ["9", "10"])
