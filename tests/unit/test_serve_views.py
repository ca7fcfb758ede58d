"""What operators see of endpoints, whatever these say of themselves."""

from __future__ import annotations

import pytest

from gateway.serve import views
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
