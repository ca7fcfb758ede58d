"""What a device goes back to by itself, and what it never lets serve."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from edge_agent.delegates import DelegateSpec
from edge_agent.runtime import RuntimeSettings
from edge_agent.update import DeviceModels
from edgewire.v1 import edge_pb2
from gateway.demo.digits import sample
from oip.errors import OipError
from oip.reasons import Reason
from tests.support import tflite_models as models
from tests.support.tflite_models import Hub, output, request, response
from tests.support.waiting import until

ACTIVE, FAILED = edge_pb2.ModelState.ACTIVE, edge_pb2.ModelState.FAILED
PIXELS = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 64)
SETTINGS = RuntimeSettings((DelegateSpec("builtin"),))
SLOW = RuntimeSettings((DelegateSpec("builtin"),), probation_s=0.01)


@asynccontextmanager
async def running(folder: Path, settings: RuntimeSettings = SETTINGS) -> AsyncIterator[DeviceModels]:
    device = DeviceModels(folder / "models", settings)
    await device.start()
    try:
        yield device
    finally:
        await device.close()


class Device:
    """Version 2 of digits on its probation, version 1 behind it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hub = Hub()
        self.one = self.hub.desired("digits", models.digits_file(), "1", models.digits_golden(folder))
        self.two = self.hub.desired(
            "digits", models.digits_int8_file(), "2", models.digits_golden_int8(folder)
        )

    async def update(self, device: DeviceModels) -> None:
        for wanted in (self.one, self.two):
            self.hub.wish(device, wanted)
            await until(lambda: state(device).state == ACTIVE, 30)
        found = state(device)
        assert (found.active_version, found.previous_version) == ("2", "1")
        assert found.previous_digest == self.one.digest

    def disk(self, change: Callable[[Any], Any]) -> None:
        """Edit what the device wrote down, while it is off."""
        path = self.folder / "models" / "state.json"
        document = json.loads(path.read_bytes())
        change(document["models"][0])
        path.write_text(json.dumps(document))

    def blob(self, digest: str) -> Path:
        return self.folder / "models" / "blobs" / digest.removeprefix("sha256:")

    def spoil(self, slot: str) -> None:
        """Give a slot golden vectors that nothing passes."""
        wrong = models.golden_file(
            self.folder, [({"pixels": PIXELS}, {"probabilities": np.zeros((1, 10), np.float32)})], 1e-3
        )
        self.blob(models.digest(wrong)).write_bytes(wrong)

        def change(model: Any) -> None:
            model[slot]["target"] |= {"golden_digest": models.digest(wrong), "golden_size": len(wrong)}

        self.disk(change)


def state(device: DeviceModels) -> edge_pb2.ModelState:
    (found,) = device.states()
    return found


async def answers(device: DeviceModels, version: str) -> None:
    answer = await device.infer(request("digits", pixels=PIXELS), 20)
    assert response(answer).model_version == version
    np.testing.assert_allclose(output(answer), models.digits_model().predict(PIXELS), atol=0.2)


async def kill_workers(device: DeviceModels, until_: Callable[[], bool]) -> int:
    """End the model's worker whenever there is one."""
    killed: set[int] = set()

    def now() -> bool:
        entry = device._serving.get("digits")
        pid = None if entry is None else entry.served.worker_pid
        if pid is not None and pid not in killed and not until_():
            killed.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return until_()

    await until(now, 30)
    return len(killed)


async def test_a_new_model_that_keeps_ending_its_worker_gives_way_without_a_hub(tmp_path: Path):
    made = Device(tmp_path)
    async with running(tmp_path) as device:
        await made.update(device)
        device._bringing.hub = None
        killed = await kill_workers(device, lambda: state(device).active_version == "1")
        # The one that is started after the third may be killed before it is known that the model gives way.
        assert killed in (3, 4)
        found = state(device)
        assert (found.state, found.digest, found.version) == (FAILED, made.two.digest, "2")
        assert (
            found.reason
            == "Model 'digits' version 2 does not keep running here: its worker was ended by SIGKILL."
        )
        assert (found.previous_digest, found.previous_version) == ("", "")
        await answers(device, "1")
    # Not offered anew, by whatever the hub says of the same file, until another was desired.
    async with running(tmp_path) as device:
        await answers(device, "1")
        for wanted in (made.two, made.hub.desired("digits", models.digits_int8_file(), "3")):
            made.hub.wish(device, wanted)
            assert state(device).state == FAILED
            assert "does not keep running" in state(device).reason
        made.hub.wish(device, made.one)
        assert state(device).state == ACTIVE
        made.hub.wish(device, made.two)
        await until(lambda: state(device).state == ACTIVE, 30)
        await answers(device, "2")


async def test_one_that_is_proven_stays(tmp_path: Path):
    made = Device(tmp_path)
    async with running(tmp_path, SLOW) as device:
        await made.update(device)
        await until(lambda: device._state.plans["digits"].proven)
        await kill_workers(device, lambda: "4 times in a row" in state(device).reason)
        assert (state(device).state, state(device).previous_version) == (FAILED, "1")
        await until(lambda: state(device).state == ACTIVE, 30)
        await answers(device, "2")


async def test_one_that_no_longer_works_after_a_restart_gives_way_without_a_hub(tmp_path: Path):
    made = Device(tmp_path)
    async with running(tmp_path) as device:
        await made.update(device)
    made.spoil("active")
    for _ in range(2):
        async with running(tmp_path) as device:
            await answers(device, "1")
            found = state(device)
            assert (found.state, found.digest) == (FAILED, made.two.digest)
            assert "version 2 no longer works on this device: golden case 0" in found.reason


async def test_when_both_are_bad_nothing_serves_and_it_is_said(tmp_path: Path):
    made = Device(tmp_path)
    async with running(tmp_path) as device:
        await made.update(device)
    made.spoil("active")
    made.spoil("previous")
    for _ in range(3):
        async with running(tmp_path) as device:
            with pytest.raises(OipError) as caught:
                await device.infer(request("digits", pixels=PIXELS), 5)
            assert caught.value.reason is Reason.MODEL_UNAVAILABLE
            found = state(device)
            assert (found.state, found.active_digest) == (FAILED, "")
            assert "version 2 no longer works" in found.reason
            assert "What served before does not work either: " in found.reason
            assert [t for t in made.hub.asked if t[0] == made.one.digest] == [(made.one.digest, 0)]
    # And it is reachable: another model brings it back.
    async with running(tmp_path) as device:
        made.hub.wish(device, made.hub.desired("digits", models.digits_file(), "3"))
        await until(lambda: state(device).state == ACTIVE, 30)
        await answers(device, "3")


async def test_a_file_that_was_damaged_is_fetched_anew_while_the_one_before_serves(tmp_path: Path):
    made = Device(tmp_path)
    async with running(tmp_path) as device:
        await made.update(device)
    made.blob(made.two.digest).write_bytes(b"x")
    async with running(tmp_path) as device:
        await answers(device, "1")
        made.hub.wish(device, made.two)
        await until(lambda: state(device).active_version == "2", 30)
        await answers(device, "2")
        assert state(device).previous_version == "1"


async def test_the_one_before_is_kept_and_what_is_older_is_not(tmp_path: Path):
    made = Device(tmp_path)
    async with running(tmp_path) as device:
        await made.update(device)
        three = made.hub.desired("digits", models.digits_file() + b"\0" * 16, "3")
        made.hub.wish(device, three)
        await until(lambda: state(device).state in (ACTIVE, FAILED), 30)
        assert state(device).reason == ""
        kept = {made.two.digest, made.two.golden_digest, three.digest}
        await until(lambda: {f"sha256:{p.name}" for p in blobs(tmp_path)} == kept)


def blobs(folder: Path) -> list[Path]:
    return list((folder / "models" / "blobs").iterdir())


async def test_a_state_from_before_there_were_two_slots_is_read(tmp_path: Path):
    made = Device(tmp_path)
    async with running(tmp_path) as device:
        made.hub.wish(device, made.one)
        await until(lambda: state(device).state == ACTIVE, 30)
    path = tmp_path / "models" / "state.json"
    (model,) = json.loads(path.read_bytes())["models"]
    plain = {k: v for k, v in model["active"]["target"].items() if k not in ("name", "golden_name")}
    path.write_text(json.dumps({"format": 1, "models": [{"desired": plain, "active": plain}]}))
    async with running(tmp_path) as device:
        await answers(device, "1")
        assert state(device).state == ACTIVE
        made.hub.wish(device, made.two)
        await until(lambda: state(device).active_version == "2", 30)
        assert state(device).previous_version == "1"


async def test_a_model_that_this_runtime_gets_wrong_in_silence_is_stopped_by_its_golden_vectors(
    tmp_path: Path,
):
    """Per-channel dynamic-range int8: right in LiteRT, loaded and wrong in tflite-runtime."""
    data = models.digits_dynamic_file()
    images, labels = sample(100)
    litert = Interpreter(model_content=data)
    runner = litert.get_signature_runner()
    right = np.concatenate([runner(pixels=image[None])["probabilities"] for image in images])
    assert (right.argmax(1) == labels).mean() > 0.8
    made = Device(tmp_path)
    async with running(tmp_path) as device:
        made.hub.wish(device, made.one)
        await until(lambda: state(device).state == ACTIVE, 30)
        # Without golden vectors nothing shows: it loads, and its answers are finite.
        made.hub.wish(device, made.hub.desired("digits", data, "2"))
        await until(lambda: state(device).active_version == "2", 30)
        found = output(await device.infer(request("digits", pixels=images), 20))
        assert (found.argmax(1) == labels).mean() < 0.5
    cases = [({"pixels": images}, {"probabilities": right})]
    golden = models.golden_file(tmp_path, cases, 0.2)
    async with running(tmp_path) as device:
        made.hub.wish(device, made.hub.desired("digits", models.digits_file(), "3"))
        await until(lambda: state(device).active_version == "3", 30)
        made.hub.wish(device, made.hub.desired("digits", data, "4", golden))
        await until(lambda: state(device).state == FAILED, 30)
        assert "version 4 does not work on this device: golden case 0" in state(device).reason
        await answers(device, "3")


async def test_a_device_that_is_enrolled_with_another_gateway_takes_what_that_one_signs(tmp_path: Path):
    """Orders and versions of two gateways say nothing of each other."""
    made = Device(tmp_path)
    async with running(tmp_path) as device:
        await made.update(device)
        made.hub.wish(device, made.one)
        await until(lambda: "a step back that nobody ordered" in state(device).reason, 30)
        assert state(device).active_version == "2"
    other = Hub()
    mine = other.desired("digits", models.digits_int8_file(), "1", models.digits_golden_int8(tmp_path))
    last = other.desired("digits", models.digits_file(), "2", models.digits_golden(tmp_path))
    async with running(tmp_path) as device:
        await answers(device, "2")
        for wanted in (mine, last):
            other.wish(device, wanted)
            await until(lambda wanted=wanted: state(device).active_version == wanted.version, 30)
            assert (state(device).state, state(device).active_digest) == (ACTIVE, wanted.digest)
    async with running(tmp_path) as device:
        # What is signed from now on counts again, also after a restart.
        other.wish(device, mine)
        await until(lambda: "a step back that nobody ordered" in state(device).reason, 30)
        await answers(device, "2")
