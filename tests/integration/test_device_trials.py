"""Models that are tried and timed beside what serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from edge_agent.update import DeviceModels
from edgewire.v1 import edge_pb2
from oip.errors import OipError
from oip.reasons import Reason
from tests.support import tflite_models as models
from tests.support.tflite_models import Hub, request, response
from tests.support.waiting import until

ACTIVE, FAILED = edge_pb2.ModelState.ACTIVE, edge_pb2.ModelState.FAILED
PIXELS = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 64)


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest_asyncio.fixture
async def device(tmp_path: Path, hub: Hub) -> AsyncIterator[DeviceModels]:
    found = DeviceModels(tmp_path / "models")
    await found.start()
    yield found
    await found.close()


async def ended(device: DeviceModels, at: int = 0) -> edge_pb2.Trial:
    await until(lambda: device.trials()[at].state in (ACTIVE, FAILED), 30)
    return device.trials()[at]


def blobs(folder: Path) -> set[str]:
    return {f"sha256:{path.name}" for path in (folder / "models" / "blobs").iterdir()}


async def test_a_trial_is_timed_beside_what_serves_and_forgotten(
    device: DeviceModels, hub: Hub, tmp_path: Path
):
    one = hub.desired("digits", models.digits_file(), "1", models.digits_golden(tmp_path))
    hub.wish(device, one)
    await until(lambda: device.states()[0].state == ACTIVE, 30)
    serving = device._serving["digits"].served.worker_pid
    two = hub.desired(
        "digits", models.digits_int8_file(), "2", models.digits_golden_int8(tmp_path), {"trial": True}
    )
    hub.wish(device, one, trials=[two])
    assert device.trials() == [
        edge_pb2.Trial(model="digits", version="2", digest=two.digest, state=edge_pb2.ModelState.FETCHING)
    ]
    seen: set[int] = set()
    while device.trials()[0].state not in (ACTIVE, FAILED):
        seen.add(device.trials()[0].state)
        answer = await device.infer(request("digits", pixels=PIXELS), 20)
        assert response(answer).model_version == "1"
    found = device.trials()[0]
    assert (found.state, found.reason, found.runs) == (ACTIVE, "", 50)
    assert 0 < found.latency_p50_ms <= found.latency_p95_ms < 1000
    assert 0 < found.active_p50_ms <= found.active_p95_ms < 1000
    assert edge_pb2.ModelState.TRYING in seen
    (state,) = device.states()
    assert (state.state, state.digest, state.active_version) == (ACTIVE, one.digest, "1")
    assert (state.previous_digest, device._serving["digits"].served.worker_pid) == ("", serving)
    with pytest.raises(OipError) as caught:
        await device.infer(request("digits", "2", pixels=PIXELS), 5)
    assert caught.value.reason is Reason.UNKNOWN_VERSION
    kept = {one.digest, one.golden_digest, two.digest, two.golden_digest}
    assert blobs(tmp_path) == kept
    # Listed again it is not tried again; listed no more it goes.
    hub.wish(device, one, trials=[two])
    assert device.trials() == [found]
    assert blobs(tmp_path) == kept
    hub.wish(device, one)
    assert device.trials() == []
    await until(lambda: blobs(tmp_path) == {one.digest, one.golden_digest})


async def test_without_anything_that_serves_there_is_nothing_to_compare(device: DeviceModels, hub: Hub):
    hub.wish(device, trials=[hub.desired("digits", models.digits_file(), "1")])
    found = await ended(device)
    assert (found.state, found.active_p50_ms, found.active_p95_ms) == (ACTIVE, 0, 0)
    assert device.states() == []


async def test_a_trial_that_fails_says_why_and_nothing_that_serves_changes(
    device: DeviceModels, hub: Hub, tmp_path: Path
):
    one = hub.desired("digits", models.digits_file(), "1")
    hub.wish(device, one)
    await until(lambda: device.states()[0].state == ACTIVE, 30)
    wrong = models.golden_file(
        tmp_path, [({"pixels": PIXELS}, {"probabilities": np.zeros((1, 10), np.float32)})], 1e-3
    )
    data = models.digits_int8_file()
    trials = [
        hub.desired("digits", data, "2", wrong, {"trial": True}),
        hub.desired("digits", data, "3", custom={"places": "tier=cloud", "trial": True}),
        hub.desired("digits", b"no model", "4", custom={"trial": True}),
        hub.desired("digits", data, "5"),
        hub.desired("other", models.difference(), "1", batch_max_size=4),
    ]
    trials[3].target = "digits/999/tflite"
    hub.wish(device, one, trials=trials)
    reasons = [(await ended(device, at)).reason for at in range(len(trials))]
    starts = (
        "Model 'digits' version 2 does not work on this device: golden case 0",
        "What is signed as 'digits/3/tflite' may not be at the place of this device.",
        "Model 'digits' version 4 does not work on this device: ",
        "Nothing is signed under the name 'digits/999/tflite'.",
        "Model 'other' version 1 does not work on this device: batching is asked for",
    )
    for reason, start in zip(reasons, starts, strict=True):
        assert reason.startswith(start), reason
    assert {trial.runs for trial in device.trials()} == {0}
    (state,) = device.states()
    assert (state.state, state.active_version) == (ACTIVE, "1")
    assert response(await device.infer(request("digits", pixels=PIXELS), 5)).model_version == "1"


async def test_a_trial_that_waits_for_another_time_is_tried_again_when_the_hub_speaks(
    device: DeviceModels, hub: Hub
):
    def away(name: str) -> None:
        raise OipError(Reason.UNAVAILABLE, "gone")

    trial = hub.desired("digits", models.digits_file(), "1", custom={"trial": True})
    hub.signed.before = away
    hub.wish(device, trials=[trial])
    assert (await ended(device)).reason == "The hub cannot give the signed metadata."
    hub.signed.before = lambda name: None
    hub.wish(device, trials=[trial])
    assert device.trials()[0].state == edge_pb2.ModelState.FETCHING
    assert (await ended(device)).state == ACTIVE


async def test_trials_that_are_listed_no_more_leave_nothing_behind(
    device: DeviceModels, hub: Hub, tmp_path: Path
):
    before = len(asyncio.all_tasks())
    for version in range(1, 5):
        hub.wish(device, trials=[hub.desired("digits", models.digits_file(), str(version))])
        await until(lambda: device.trials()[0].state != edge_pb2.ModelState.FETCHING, 30)
    hub.wish(device)
    await until(lambda: len(asyncio.all_tasks()) <= before, 30)
    assert blobs(tmp_path) == set()


async def test_what_is_to_serve_does_not_wait_for_the_download_of_a_trial(device: DeviceModels, hub: Hub):
    """And the trial goes on where it was."""
    one = hub.desired("digits", models.digits_file(), "1")
    trials = [
        hub.desired("digits", models.digits_int8_file(), "2", custom={"trial": True}),
        hub.desired("digits", models.difference(), "3", custom={"trial": True}),
    ]
    slow, stalled, free = trials[0].digest, asyncio.Event(), asyncio.Event()

    async def fetch(digest: str, offset: int) -> AsyncGenerator[bytes, None]:
        async for piece in hub.fetch(digest, offset):
            yield piece
            if digest == slow and not free.is_set():
                stalled.set()
                await free.wait()

    hub.wish(device, trials=trials, fetch=fetch)
    await asyncio.wait_for(stalled.wait(), 30)
    hub.wish(device, one, trials=trials, fetch=fetch)
    await until(lambda: device.states()[0].state == ACTIVE, 20)
    assert device.trials()[0].state == edge_pb2.ModelState.FETCHING
    free.set()
    assert (await ended(device, 0)).state == ACTIVE
    assert (await ended(device, 1)).state == ACTIVE
    assert max(offset for digest, offset in hub.asked if digest == slow) > 0
