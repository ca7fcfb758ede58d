"""Each part of a whole gateway is killed as soon as an update enters each of its phases, with real agents
at work. Runs where TIDEGATE_KILLS is set: it takes minutes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from gateway.demo.digits.data import held_out_images
from gateway.demo.plant import token, wait_devices
from gateway.demo.processes import Agent
from gateway.store.database import FILE
from tests.support.gateway import Gateway, running_gateway
from tests.support.tflite_models import digits_golden_int8, digits_int8_file

pytestmark = pytest.mark.skipif("TIDEGATE_KILLS" not in os.environ, reason="set TIDEGATE_KILLS")

CONFIG = """\
version: 1
gateway: {{name: gw, location: {{tier: site, site: plant-7}}}}
endpoints: [{{name: cams, kind: edge}}]
models: [{{name: digits, variants: [{{endpoint: cams, artifact: "{folder}/digits.tflite"}}]}}]
privacy: {{default: plant, classes: {{plant: {{allow: [{{tier: [device, site]}}]}}}}}}
policies: [{{name: default, match: {{}}, weights: {{latency: 1}}}}]
updates:
  - model: digits
    drift: {{threshold: 100, min_samples: 100, window_s: 10}}
    train: {{entrypoint: "gateway.demo.digits.train:run", data: digits, location: {{tier: site, site: plant-7}}, timeout_s: 120}}
    gate: {{min: 0.8, not_worse_than_current: false, per_class_drop: 1, latency_ratio: 100, data: "{folder}/held.npz"}}
    rollout:
      waves: [1, "100%"]
      soak_s: 3
      min_requests: 30
      device_timeout_s: 60
      halt: {{error_rate: 0.5, latency_p95_ratio: 1000, confidence_drop: 1}}
"""
PARTS = ("Control", "EdgeHub", "DataPlane")
LIMIT_S = 240.0


@dataclass
class Reader:
    """Digits read on a device, one after the other, while it runs."""

    agent: Agent
    answered: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._read, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _read(self, stop: threading.Event) -> None:
        images, truth = held_out_images()
        with httpx.Client(timeout=30) as client:
            while not stop.wait(0.05):
                at = sum(self.answered.values()) % 64
                tensor = {"name": "pixels", "datatype": "FP32", "shape": [64, 64]}
                rows = np.roll(images[:64], -at, axis=0)
                body = {"inputs": [{**tensor, "data": rows.ravel().tolist()}]}
                answer = client.post(f"http://{self.agent.http}/v2/models/digits/infer", json=body)
                if answer.status_code != 200:
                    self.wrong.append(answer.text)
                    continue
                found = answer.json()
                self.answered[found["model_version"]] += 1
                read = np.reshape(found["outputs"][0]["data"], (64, 10)).argmax(axis=1)
                if np.mean(read == np.roll(truth[:64], -at)) < 0.8:
                    self.wrong.append(f"version {found['model_version']} reads other digits")


def pids_of(gateway: Gateway, part: str) -> list[int]:
    found: list[int] = []
    for process in psutil.Process(gateway.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if f":{part}" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def told(gateway: Gateway, path: str) -> Any:
    """None while the part that would answer is replaced."""
    with contextlib.suppress(httpx.HTTPError):
        answer = httpx.get(f"http://{gateway.http}{path}", timeout=15)
        assert answer.status_code in (200, 503), answer.text
        return answer.json() if answer.status_code == 200 else None


def begun(gateway: Gateway) -> str:
    answer = httpx.post(f"http://{gateway.http}/api/v1/updates", json={"model": "digits"}, timeout=15)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def stored(database: sqlite3.Connection, id: str) -> tuple[bool, str]:
    """Whether an update is open, and its phase, whoever is being replaced."""
    is_open, document = database.execute("SELECT open, document FROM updates WHERE id = ?", (id,)).fetchone()
    return bool(is_open), json.loads(document)["phase"]


def update_under_kills(gateway: Gateway, database: sqlite3.Connection, part: str) -> tuple[str, list[str]]:
    """An update that comes to its end: its id, and the phases at whose beginning `part` was killed."""
    id, killed = begun(gateway), list[str]()
    until = time.monotonic() + LIMIT_S
    while True:
        assert time.monotonic() < until, f"killed in {killed}: {gateway.log.read_text()[-2000:]}"
        is_open, phase = stored(database, id)
        if not is_open:
            gateway.wait(lambda: told(gateway, f"/api/v1/updates/{id}") is not None, 60.0)
            return id, killed
        time.sleep(0.02)
        if phase not in killed and (pids := pids_of(gateway, part)):
            killed.append(phase)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_every_part_is_killed_in_every_phase_and_the_update_ends_as_it_would(tmp_path: Path) -> None:
    (tmp_path / "digits.tflite").write_bytes(digits_int8_file())
    (tmp_path / "digits.tflite.golden.npz").write_bytes(digits_golden_int8(tmp_path))
    images, truth = held_out_images()
    np.savez(tmp_path / "held.npz", **{"input/pixels": images, "label": truth})
    with contextlib.ExitStack() as stack:
        gateway = stack.enter_context(running_gateway(CONFIG.format(folder=tmp_path), tmp_path / "gw"))
        assert gateway.edge is not None
        readers: list[Reader] = []
        for name in ("cam-1", "cam-2"):
            agent = Agent(name, gateway.edge, tmp_path, token(gateway.http, "plant-7", name))
            agent.start()
            stack.callback(agent.stop)
            readers.append(Reader(agent))
        wait_devices(gateway.http, {"cam-1", "cam-2"})
        for reader in readers:
            stack.enter_context(reader.reading())
        database = stack.enter_context(
            contextlib.closing(sqlite3.connect(f"file:{tmp_path / 'gw' / 'state' / FILE}?mode=ro", uri=True))
        )
        made: list[str] = []
        for turn, part in enumerate(PARTS, start=2):
            id, killed = update_under_kills(gateway, database, part)
            view = told(gateway, f"/api/v1/updates/{id}")
            print(f"{part} killed in {', '.join(killed)}: {view['phase']}, version {view['version']}")
            # A replica is replaced in seconds, in which a phase or two may pass.
            assert "rolling" in killed
            assert len(killed) >= 4
            assert (view["phase"], view["version"]) == ("recovered", str(turn)), view["outcome"]
            made.append(id)
            for reader in readers:
                gateway.wait(lambda r=reader, v=str(turn): r.answered[v] > 0, 60.0)
        assert [reader.wrong for reader in readers] == [[], []]
        answered = sum((reader.answered for reader in readers), Counter[str]())
        assert set(answered) == {"1", "2", "3", "4"}
        assert gateway.stop() == 0
    with sqlite3.connect(tmp_path / "gw" / "state" / FILE) as database:
        releases = database.execute("SELECT version, document FROM releases ORDER BY version").fetchall()
        counted = Counter[str]()
        for version, document in database.execute("SELECT version, document FROM evidence"):
            counted[version] += json.loads(document)["answered"]
    assert [json.loads(document)["source"] for _, document in releases] == ["file", *made]
    print(f"answered {dict(answered)}, counted {dict(counted)}")
    # Reports that a device still holds are not lost, but nothing may be counted twice.
    assert all(0 < counted[version] <= answered[version] for version in answered)
