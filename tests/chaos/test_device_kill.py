"""kill -9 of a device's agent between any two steps of an update.

At every step there is: TIDEGATE_KILL=all python -m pytest tests/chaos/test_device_kill.py
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_agent.update import DeviceModels
from tests.support import tflite_models as models
from tests.support.tflite_models import output, request, response

ROOT = Path(__file__).parents[2]
PIXELS = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 64)

AGENT = """
import asyncio, os, signal, sys
from pathlib import Path
from edge_agent.update import DeviceModels, device, disk, fetch
from edgewire.v1 import edge_pb2

steps = 0
last = int(sys.argv[3])

def counted(holder, name):
    plain = getattr(holder, name)
    def call(*given, **named):
        step()
        found = plain(*given, **named)
        step()
        return found
    setattr(holder, name, call)

def step():
    global steps
    steps += 1
    if steps == last:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    models = DeviceModels(Path(sys.argv[1]))
    await models.start()
    # Everything that touches the disk, starts a worker or swaps.
    for holder, name in ((os, "fsync"), (disk.Path, "replace"), (disk.Path, "unlink"),
                         (device.DeviceModels, "_swap"), (device.DeviceModels, "_commit"),
                         (device.DeviceModels, "_launch")):
        counted(holder, name)

    async def fetch(digest, offset):
        step()
        yield Path(sys.argv[2], digest.partition(":")[2]).read_bytes()[offset:]
        step()

    wanted = edge_pb2.DesiredModel.FromString(bytes.fromhex(sys.argv[4]))
    models.desire([wanted], fetch)
    while True:
        (found,) = models.states()
        if found.state == edge_pb2.ModelState.ACTIVE and not models._ending:
            break
        await asyncio.sleep(0.01)
    print(steps, flush=True)
    await models.close()

asyncio.run(main())
"""


def agent(folder: Path, hub: Path, last: int, wanted: bytes) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", AGENT, str(folder), str(hub), str(last), wanted.hex()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("first", [True, False], ids=["the first model ever", "an update"])
async def test_whatever_step_it_dies_at_a_restart_has_a_working_model_or_none(tmp_path: Path, first: bool):
    store = tmp_path / "hub"
    store.mkdir()
    hub = models.Hub()
    old = hub.desired("digits", models.digits_file(), "1")
    new = hub.desired("digits", models.digits_int8_file(), "2", models.digits_golden_int8(tmp_path))
    for name, data in hub.files.items():
        (store / name.partition(":")[2]).write_bytes(data)
    base = tmp_path / "base"
    if not first:
        done = agent(base, store, 0, old.SerializeToString())
        assert done.returncode == 0, done.stderr
    whole = agent(copy(base, tmp_path / "whole"), store, 0, new.SerializeToString())
    assert whole.returncode == 0, whole.stderr
    steps = int(whole.stdout)
    assert steps >= 12
    seen: set[str] = set()
    few = (2, steps // 2, steps - 4)
    for last in range(1, steps + 1) if os.environ.get("TIDEGATE_KILL") == "all" else few:
        folder = copy(base, tmp_path / f"at{last}")
        killed = agent(folder, store, last, new.SerializeToString())
        assert killed.returncode == -signal.SIGKILL, (last, killed.stderr)
        device = DeviceModels(folder)
        await device.start()
        try:
            (plan,) = device.states() or [None]
            if plan is not None and plan.active_version:
                answer = await device.infer(request("digits", pixels=PIXELS), 20)
                seen.add(response(answer).model_version)
                np.testing.assert_allclose(output(answer).sum(), 1, atol=0.02)
            else:
                assert first, json.dumps([last, str(plan)])
                seen.add("none")
        finally:
            await device.close()
    assert seen == ({"none", "2"} if first else {"1", "2"})


def copy(source: Path, target: Path) -> Path:
    if source.exists():
        shutil.copytree(source, target)
    return target
