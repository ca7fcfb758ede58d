"""kill -9 of a device's agent anywhere in an update: at every step of it, and at any moment.

At 200 points: TIDEGATE_KILLS=200 python -m pytest tests/chaos/test_swap_kill.py
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from edge_agent.update import DeviceModels
from edgewire.v1 import edge_pb2
from tests.support import tflite_models as models
from tests.support.processes import source_env
from tests.support.swap_agent import Served
from tests.support.tflite_models import output, request, response
from tests.support.waiting import until

POINTS = int(os.environ.get("TIDEGATE_KILLS", "4"))
AMID = 3
"""One point in so many is a moment, the others are steps."""
PIXELS = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 64)


class World:
    """A device on which version 1 serves, or none yet, and a hub that wants version 2."""

    def __init__(self, folder: Path, first: bool) -> None:
        self.folder = folder
        self.first = first
        self.hub = models.Hub()
        self.old = self.hub.desired("digits", models.digits_file(), "1", models.digits_golden(folder))
        self.served = Served(folder / "hub")
        self.base = folder / "base"
        self.base.mkdir()
        if not first:
            self.served.write(self.hub, self.old)
            self.agent(self.base)
        golden = models.digits_golden_int8(folder)
        self.new = self.hub.desired("digits", models.digits_int8_file(), "2", golden)
        self.served.write(self.hub, self.new)
        whole = self.copy("whole")
        began = time.monotonic()
        self.steps = self.agent(whole)
        self.took = time.monotonic() - began
        self.seen: Counter[str] = Counter()

    def copy(self, name: str) -> Path:
        return Path(shutil.copytree(self.base, self.folder / name, symlinks=True))

    def start(self, folder: Path, last: int = 0) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.support.swap_agent", folder, self.served.folder, str(last)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=source_env())

    def agent(self, folder: Path) -> int:
        """A whole update; how many steps it took."""
        process = self.start(folder)
        told, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        return int(told)

    def killed_at(self, step: int) -> Path:
        folder = self.copy(f"step{step}")
        process = self.start(folder, step)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, step
        return folder

    def killed_after(self, seconds: float) -> Path:
        folder = self.copy(f"after{seconds:.6f}")
        process = self.start(folder)
        try:
            process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate(timeout=60)
        return folder

    async def goes_on(self, folder: Path, where: str) -> None:
        """Started again it has a working model, or none yet; with the hub it comes to the end of its update."""
        device = DeviceModels(folder)
        await device.start()
        try:
            (state,) = device.states() or [None]
            if state is not None and state.active_version:
                self.seen[state.active_version] += 1
                await self.answers(device, state.active_version, where)
            else:
                assert self.first, (where, state)
                self.seen["none"] += 1
            self.served.wish(device)
            await until(lambda: device.states()[0].state == edge_pb2.ModelState.ACTIVE, 30)
            await self.answers(device, "2", where)
            assert device.states()[0].previous_version == ("" if self.first else "1"), where
        finally:
            await device.close()
        kept = {self.new.digest, self.new.golden_digest}
        if not self.first:
            kept |= {self.old.digest, self.old.golden_digest}
        blobs = {f"blobs/{digest.removeprefix('sha256:')}" for digest in kept}
        trust = {f"trust/{name}.json" for name in ("root", "timestamp", "snapshot", "targets")}
        assert files(folder) == {"state.json", "trust/root_history/1.root.json"} | blobs | trust, where
        shutil.rmtree(folder)

    async def answers(self, device: DeviceModels, version: str, where: str) -> None:
        answer = await device.infer(request("digits", pixels=PIXELS), 20)
        assert response(answer).model_version == version, where
        np.testing.assert_allclose(output(answer), models.digits_model().predict(PIXELS), atol=0.2)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", [False, True], ids=["an update", "the first model ever"])
async def test_wherever_it_dies_it_has_a_working_model_and_the_update_ends(tmp_path: Path, first: bool):
    world = World(tmp_path, first)
    assert world.steps >= 40
    points = max(2, POINTS // 4) if first else max(2, POINTS - POINTS // 4)
    rng = random.Random(7)
    moments = points // AMID
    at_steps = points - moments
    # Spread over all of them, the last included; several rounds where there are more points than steps.
    spread = [1 + (at * (world.steps - 1)) // max(1, at_steps - 1) for at in range(at_steps)]
    for number, step in enumerate(spread):
        await world.goes_on(world.killed_at(step), f"step {step} of {world.steps}, point {number}")
    for _ in range(moments):
        seconds = world.took * rng.random()
        await world.goes_on(world.killed_after(seconds), f"after {seconds:.3f} of {world.took:.3f} s")
    assert sum(world.seen.values()) == points
    assert set(world.seen) == ({"none", "2"} if first else {"1", "2"})
