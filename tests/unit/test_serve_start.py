"""A gateway whose Ray does not come up says so in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.serve.settings import Address, Listen, ReplicaSettings
from tests.support.quiet_ray import ray
from tests.unit.decide_config import config_of


@pytest.mark.parametrize("kind", [Exception, ConnectionError, OSError])
def test_ray_that_does_not_start_is_told(
    kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Ray raises Exception itself for a node that takes longer than it waits, as on a busy machine."""
    from gateway.serve.app import StartError, running

    def init(**_: Any) -> None:
        raise kind("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    listen = Listen(*(Address("127.0.0.1", 0) for _ in range(3)))
    settings = ReplicaSettings(config_of(), "r", listen, tmp_path)
    told = pytest.raises(StartError, match="Ray did not start: The current node timed out")
    with told, running(settings, "tidegate.yaml"):
        pass
