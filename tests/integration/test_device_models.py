"""From desired state to answers, with real worker processes."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from edge_agent.runtime import RuntimeSettings
from edge_agent.update import DeviceModels
from edgewire.v1 import edge_pb2
from oip.errors import OipError
from oip.reasons import Reason
from tests.support import tflite_models as models
from tests.support.tflite_models import Hub, output, request, response
from tests.support.waiting import until

ACTIVE, FAILED = edge_pb2.ModelState.ACTIVE, edge_pb2.ModelState.FAILED
PIXELS = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 64)


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest_asyncio.fixture
async def device(tmp_path: Path) -> AsyncIterator[DeviceModels]:
    found = DeviceModels(tmp_path / "models")
    await found.start()
    yield found
    await found.close()


def state(device: DeviceModels, model: str = "digits") -> edge_pb2.ModelState:
    return next(s for s in device.states() if s.model == model)


async def settled(device: DeviceModels, model: str = "digits") -> edge_pb2.ModelState:
    """Once the model is active or has failed."""
    await until(lambda: state(device, model).state in (ACTIVE, FAILED), 30)
    return state(device, model)


async def test_a_desired_model_is_fetched_tried_and_answers(device: DeviceModels, hub: Hub, tmp_path: Path):
    data = models.digits_file()
    hub.wish(device, hub.desired("digits", data, "3", models.digits_golden(tmp_path)))
    assert state(device).state == edge_pb2.ModelState.FETCHING
    with pytest.raises(OipError) as early:
        await device.infer(request("digits", pixels=PIXELS), 5)
    assert early.value.reason is Reason.MODEL_UNAVAILABLE
    found = await settled(device)
    assert (found.state, found.reason, found.version) == (ACTIVE, "", "3")
    assert (found.active_digest, found.active_version) == (models.digest(data), "3")
    assert (found.delegate, found.delegated_nodes, found.nodes, found.degraded) == ("xnnpack", 3, 3, "")
    metadata = models.pb.ModelMetadataResponse.FromString(found.metadata)
    assert [(t.name, t.datatype, list(t.shape)) for t in (*metadata.inputs, *metadata.outputs)] == [
        ("pixels", "FP32", [-1, 64]),
        ("probabilities", "FP32", [-1, 10]),
    ]
    assert (device.metadata("digits", ""), device.config("digits", "")) == (found.metadata, found.config)
    assert found.config
    assert device.ready("digits", "3")
    answer = await device.infer(request("digits", "3", "seven", pixels=PIXELS), 5)
    assert (response(answer).model_version, response(answer).id) == ("3", "seven")
    np.testing.assert_allclose(output(answer), models.digits_model().predict(PIXELS), atol=1e-5)


async def test_questions_about_what_it_has_not(device: DeviceModels, hub: Hub):
    hub.wish(device, hub.desired("digits", models.digits_file()))
    await settled(device)
    for ask in (device.metadata, device.config, device.ready):
        with pytest.raises(OipError, match=r"^Request for unknown model: 'nothing' is not found$") as unknown:
            ask("nothing", "")
        assert unknown.value.reason is Reason.UNKNOWN_MODEL
        with pytest.raises(OipError, match="version 9 is not found") as version:
            ask("digits", "9")
        assert version.value.reason is Reason.UNKNOWN_VERSION
        with pytest.raises(OipError, match="specified version string '01'") as malformed:
            ask("digits", "01")
        assert malformed.value.reason is Reason.MALFORMED


async def test_an_update_under_load_drops_no_request_and_names_who_answered(device: DeviceModels, hub: Hub):
    """The two versions answer differently, so that a wrong name shows."""
    graph = models.difference()
    hub.wish(device, hub.desired("m", graph, "1"))
    await settled(device, "m")
    swapped = models.Graph("sum")
    a, b, c = (swapped.tensor(name, (2,)) for name in "abc")
    swapped.node("ADD", (a, b), (c,), models.schema.AddOptionsT())
    other = swapped.build({"a": a, "b": b}, {"c": c})
    stop = asyncio.Event()
    versions: list[str] = []

    async def caller(number: int) -> None:
        while not stop.is_set():
            one = np.array([number, 1], np.float32)
            two = np.array([1, number], np.float32)
            answer = await device.infer(request("m", a=one, b=two), 20)
            version = response(answer).model_version
            right = one - two if version == "1" else one + two
            np.testing.assert_array_equal(output(answer), right)
            versions.append(version)

    callers = [asyncio.create_task(caller(number)) for number in range(8)]
    await until(lambda: len(versions) > 50)
    hub.wish(device, hub.desired("m", other, "2"))
    await until(lambda: versions.count("2") > 100, 30)
    stop.set()
    await asyncio.gather(*callers)
    assert set(versions) == {"1", "2"}
    assert versions[:50].count("1") == 50
    assert state(device, "m").active_version == "2"


async def test_a_failed_update_leaves_the_old_model_serving_and_is_not_tried_again(
    device: DeviceModels, hub: Hub, tmp_path: Path
):
    good = hub.desired("digits", models.digits_file(), "1")
    hub.wish(device, good)
    await settled(device)
    wrong = models.golden_file(
        tmp_path, [({"pixels": PIXELS}, {"probabilities": np.zeros((1, 10), np.float32)})], 1e-3
    )
    bad = hub.desired("digits", models.digits_int8_file(), "2", wrong)
    hub.wish(device, bad)
    found = await settled(device)
    assert found.state == FAILED
    assert (found.digest, found.active_digest, found.active_version) == (bad.digest, good.digest, "1")
    assert found.reason.startswith("Model 'digits' version 2 does not work on this device: golden case 0")
    assert "allowed" in found.reason
    assert response(await device.infer(request("digits", pixels=PIXELS), 5)).model_version == "1"
    asked = len(hub.asked)
    hub.wish(device, bad)
    assert state(device).state == FAILED
    hub.wish(device, good)
    assert state(device).state == ACTIVE
    assert len(hub.asked) == asked
    hub.wish(device, bad)
    assert (await settled(device)).state == FAILED


async def test_a_restart_without_a_hub_serves_what_served_last(tmp_path: Path, hub: Hub):
    first = DeviceModels(tmp_path / "models")
    await first.start()
    hub.wish(first, hub.desired("digits", models.digits_file(), "5"))
    await settled(first)
    await first.close()
    again = DeviceModels(tmp_path / "models")
    await again.start()
    try:
        assert state(again).state == ACTIVE
        assert response(await again.infer(request("digits", pixels=PIXELS), 5)).model_version == "5"
    finally:
        await again.close()


async def test_what_is_no_longer_desired_stops_and_its_file_goes(
    device: DeviceModels, hub: Hub, tmp_path: Path
):
    hub.wish(device, hub.desired("digits", models.digits_file()))
    await settled(device)
    pid = device._serving["digits"].served.worker_pid
    hub.wish(device)
    assert device.states() == []
    with pytest.raises(OipError) as gone:
        await device.infer(request("digits", pixels=PIXELS), 5)
    assert gone.value.reason is Reason.UNKNOWN_MODEL
    await until(lambda: not Path(f"/proc/{pid}").exists())
    assert list((tmp_path / "models" / "blobs").iterdir()) == []


async def test_a_fetch_goes_on_where_it_broke_off(device: DeviceModels, hub: Hub):
    data = models.digits_file()
    broken = iter([True])

    def before(at: int) -> None:
        if at >= 8192 and next(broken, False):
            raise OipError(Reason.UNAVAILABLE, "The stream is gone.")

    hub.before = before
    wanted = hub.desired("digits", data)
    hub.wish(device, wanted)
    found = await settled(device)
    assert (found.state, found.reason) == (FAILED, "The hub cannot give the artifact: The stream is gone.")
    hub.wish(device, wanted)
    await until(lambda: state(device).state == ACTIVE)
    assert hub.asked == [(wanted.digest, 0), (wanted.digest, 8192)]


@pytest.mark.parametrize("wrong", ["other bytes", "too short", "too long"])
async def test_what_does_not_have_the_digest_is_not_used(
    device: DeviceModels, hub: Hub, tmp_path: Path, wrong: str
):
    data = models.digits_file()
    sent = {"other bytes": data[:-1] + b"x", "too short": data[:-1], "too long": data + b"x"}[wrong]
    wanted = hub.desired("digits", data)
    hub.files[wanted.digest] = sent
    hub.wish(device, wanted)
    found = await settled(device)
    assert found.state == FAILED
    assert found.reason.startswith("What the hub sent" if wrong == "other bytes" else "The hub sent")
    assert not [p for p in (tmp_path / "models" / "blobs").iterdir() if p.suffix != ".part"]


async def test_an_artifact_too_large_is_not_fetched(tmp_path: Path, hub: Hub):
    device = DeviceModels(tmp_path / "models", RuntimeSettings(max_artifact_mb=1))
    await device.start()
    try:
        wanted = hub.desired("digits", bytes(2**20 + 1))
        hub.wish(device, wanted)
        assert (await settled(device)).reason == (
            "The artifact has 1048577 bytes, and this device takes at most 1048576."
        )
        assert hub.asked == []
    finally:
        await device.close()


async def test_no_room_on_the_disk_fails_the_update_and_nothing_else(
    device: DeviceModels, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The limit on a file's size stands for a full disk: a write past it fails in the same place."""
    hub.wish(device, hub.desired("digits", models.digits_file()))
    await settled(device)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        hub.wish(device, hub.desired("digits", models.digits_int8_file(), "2"))
        found = await settled(device)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert found.reason == "The device's disk is full: make room for the artifact."
    assert found.active_version == "1"
    assert response(await device.infer(request("digits", pixels=PIXELS), 5)).model_version == "1"
    assert [p.suffix for p in (tmp_path / "models" / "blobs").iterdir()] == [""]
    # And goes on by itself once there is room.
    await until(lambda: state(device).state == ACTIVE, 30)


async def test_a_worker_killed_amid_requests_costs_only_what_it_held(device: DeviceModels, hub: Hub):
    hub.wish(device, hub.desired("digits", models.digits_file()))
    await settled(device)
    wanted = models.digits_model().predict(PIXELS)
    right = 0
    faults: list[OipError] = []

    async def one(number: int) -> None:
        nonlocal right
        try:
            answer = await device.infer(request("digits", id=str(number), pixels=PIXELS), 20)
        except OipError as fault:
            faults.append(fault)
            return
        assert response(answer).id == str(number)
        np.testing.assert_allclose(output(answer), wanted, atol=1e-5)
        right += 1

    calls = [asyncio.create_task(one(number)) for number in range(200)]
    await until(lambda: right >= 20)
    pid = device._serving["digits"].served.worker_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await asyncio.gather(*calls)
    assert right + len(faults) == 200
    assert {fault.reason for fault in faults} == {Reason.MODEL_UNAVAILABLE}
    assert all("SIGKILL" in fault.message for fault in faults)
    await until(lambda: device.ready("digits", ""))
    assert state(device).active_version == "1"
    await one(201)


async def test_two_models_of_one_file_take_one_download(device: DeviceModels, hub: Hub):
    data = models.digits_file()
    hub.piece = 100

    async def fetch(wanted: str, offset: int) -> AsyncGenerator[bytes, None]:
        async for piece in hub.fetch(wanted, offset):
            await asyncio.sleep(0)
            yield piece

    hub.wish(device, hub.desired("one", data), hub.desired("two", data), fetch=fetch)
    assert [(await settled(device, model)).reason for model in ("one", "two")] == ["", ""]
    assert hub.asked == [(models.digest(data), 0)]


async def test_what_ends_its_requests_keeps_its_file(device: DeviceModels, hub: Hub, tmp_path: Path):
    """A model with state loads it anew for the next of those that wait."""
    old, new = models.slow(800), models.digits_file()
    hub.wish(device, hub.desired("m", old))
    await settled(device, "m")
    blob = tmp_path / "models" / "blobs" / models.digest(old).removeprefix("sha256:")
    size = np.zeros((800, 800), np.float32)
    running = [asyncio.create_task(device.infer(request("m", x=size), 30)) for _ in range(8)]
    await until(lambda: device.inflight == 8)
    hub.wish(device, hub.desired("m", new, "2"))
    await until(lambda: state(device, "m").active_version == "2", 30)
    hub.wish(device)
    assert device.inflight
    assert blob.exists()
    await asyncio.gather(*running)
    await until(lambda: not blob.exists())


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ({"batch_max_size": 4, "batch_delay_ms": float("nan")}, "A batch delay of nan ms is asked for"),
        ({"batch_max_size": 4, "batch_delay_ms": -1.0}, "A batch delay of -1 ms is asked for"),
        ({"batch_max_size": 2**31}, "Batches of 2147483648 are asked for"),
    ],
)
async def test_a_wish_that_no_device_can_fulfil_fails_with_its_reason(
    device: DeviceModels, hub: Hub, wish: dict[str, float], reason: str
):
    hub.wish(device, hub.desired("digits", models.digits_file(), **wish))
    found = await settled(device)
    assert (found.state, found.reason.startswith(reason)) == (FAILED, True)
    assert hub.asked == []


async def test_a_download_of_empty_pieces_ends(device: DeviceModels, hub: Hub):
    async def fetch(wanted: str, offset: int) -> AsyncGenerator[bytes, None]:
        while True:
            await asyncio.sleep(0)
            yield b""

    hub.wish(device, hub.desired("digits", models.digits_file()), fetch=fetch)
    found = await settled(device)
    assert found.reason == "The hub sent an empty piece of the artifact."


async def test_a_state_tells_the_batch_that_the_device_makes(device: DeviceModels, hub: Hub):
    hub.wish(device, hub.desired("digits", models.digits_file(), batch_max_size=4))
    found = await settled(device)
    assert found.config == device.config("digits", "")
    assert models.pb.ModelConfigResponse.FromString(found.config).config.max_batch_size == 4
