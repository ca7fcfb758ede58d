"""A whole gateway in the middle of an update: control is killed and the next one goes on; the gateway is
stopped and leaves no trainer behind. Runs where TIDEGATE_KILLS is set: gateways that start are slow."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gateway.store.database import FILE
from tests.support.gateway import Gateway, running_gateway
from tests.support.tflite_models import difference

CONFIG = """\
version: 1
gateway: {{name: gw, location: {{tier: site, site: plant-7}}}}
endpoints: [{{name: cams, kind: edge}}]
models: [{{name: digits, variants: [{{endpoint: cams, artifact: "{folder}/a.tflite"}}]}}]
privacy: {{default: plant, classes: {{plant: {{allow: [{{tier: [device, site]}}]}}}}}}
policies: [{{name: default, match: {{}}, weights: {{latency: 1}}}}]
updates:
  - model: digits
    samples: {{collect: none}}
    train:
      entrypoint: "tests.support.trainers:staying_first"
      data: "{folder}/runs"
      location: {{tier: site, site: plant-7}}
      retries: 0
"""
LIMIT_S = 120.0


def start(gateway: Gateway) -> str:
    answer = httpx.post(f"http://{gateway.http}/api/v1/updates", json={"model": "digits"}, timeout=15)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def view(gateway: Gateway, id: str) -> dict[str, Any] | None:
    """None while control is replaced."""
    try:
        answer = httpx.get(f"http://{gateway.http}/api/v1/updates/{id}", timeout=15)
    except httpx.HTTPError:
        return None
    assert answer.status_code in (200, 503), answer.text
    return answer.json() if answer.status_code == 200 else None


def runs(folder: Path) -> list[int]:
    """Process ids of the training runs that began."""
    file = folder / "runs"
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.skipif("TIDEGATE_KILLS" not in os.environ, reason="set TIDEGATE_KILLS")
def test_control_killed_and_the_gateway_stopped_while_a_model_is_trained(tmp_path: Path) -> None:
    (tmp_path / "a.tflite").write_bytes(difference())
    with running_gateway(CONFIG.format(folder=tmp_path), tmp_path / "gw") as gateway:
        id = start(gateway)
        gateway.wait(lambda: len(runs(tmp_path)) == 1, LIMIT_S)
        os.kill(gateway.pids["control"][0], signal.SIGKILL)
        gateway.wait(lambda: (view(gateway, id) or {"open": True})["open"] is False, LIMIT_S)
        ended = view(gateway, id)
        assert ended is not None
        assert len(runs(tmp_path)) == 2
        assert all(gone(pid) for pid in runs(tmp_path))
        # The run that was lost with control is no failed attempt of the trainer's: there was none to retry.
        assert (ended["attempt"], ended["failures"]) == (1, [])
        phases = [stage["phase"] for stage in ended["stages"]]
        assert phases[:3] == ["gathering", "training", "measuring"]
        assert len(set(phases)) == len(phases)

        second = start(gateway)
        gateway.wait(lambda: len(runs(tmp_path)) == 3, LIMIT_S)
        assert gateway.stop() == 0
        assert all(gone(pid) for pid in runs(tmp_path))
    with sqlite3.connect(tmp_path / "gw" / "state" / FILE) as database:
        rows = database.execute("SELECT version, document FROM releases").fetchall()
        open_ones = database.execute("SELECT id FROM updates WHERE open").fetchall()
    assert [version for version, document in rows if json.loads(document)["source"] == id] == ["2"]
    assert open_ones == [(second,)]
