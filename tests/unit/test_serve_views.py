"""What operators see of endpoints, whatever these say of themselves."""

from __future__ import annotations

import pytest

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
        view["name"]: view for view in await views.endpoints(b.config, b.state.snapshot, b.endpoints, 1.0)
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
    (model,) = views.models(config, ReplicaState(config, "r").snapshot)
    assert model["variants"][0]["artifact"] == "m.tflite"
