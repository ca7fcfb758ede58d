"""The hub over real gRPC, with simulated devices on the other side."""

from __future__ import annotations

import asyncio
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from edgewire.v1 import edge_pb2, edge_pb2_grpc, inside_pb2
from gateway.core.config import Config
from gateway.edgehub import book, server
from gateway.edgehub.server import HubServer
from gateway.registry.devices import Enrolled
from gateway.store.blobs import BlobStore
from tests.support.hub import (
    ListedRoll,
    Running,
    digest_of,
    edge,
    hub_config,
    running_hub,
)
from tests.support.hub_calls import inside_of, one_device, thin_link, why
from tests.support.released import shop_of
from tests.support.simfleet import (
    FIXTURE_STATES,
    Die,
    Given,
    SimDevice,
    SimFleet,
    digest,
    enrolled,
    numbers,
    run_fixture,
    secret,
)
from tests.support.triton import slow_body
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def _brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry may be asked more often than in earnest."""
    monkeypatch.setattr(book, "ASK_EVERY_S", 0.2)
    monkeypatch.setattr(server, "ROLL_AGAIN_S", 0.2)


async def test_an_inference_comes_back_as_the_device_answered_it():
    async with one_device() as (_, inside, device):
        assert device.welcome is not None
        assert (device.welcome.gateway, device.welcome.heartbeat_ms) == ("gw-plant-7", 500)
        for count in (1, 2**14, 2**18):
            body = numbers("id2d_fp32", count)
            reply = await inside.forward("cam-1", body)
            assert why(reply) == ("", True)
            assert reply.response == await run_fixture(None, Given(edge_pb2.Infer(), body))
            assert [span.name for span in reply.spans] == ["tidegate.agent.infer"]
            assert reply.took_us >= reply.spans[0].took_us


async def test_an_error_of_the_device_keeps_its_reason():
    async with one_device() as (_, inside, _device):
        reply = await inside.forward("cam-1", numbers("nope", 1))
        assert why(reply) == ("unknown_model", True)
        assert reply.message == "Request for unknown model: 'nope'."


async def test_small_requests_and_heartbeats_pass_a_large_tensor_on_a_thin_link():
    """The large one takes many heartbeats' time; whoever waited for it would be dead."""
    roll = ListedRoll([enrolled("cam-1")])
    async with (
        running_hub(roll, heartbeat_s=0.3) as hub,
        thin_link(hub.devices, 2**20) as (thin, carried),
        SimFleet(thin, ["cam-1"], run_fixture, FIXTURE_STATES) as fleet,
        inside_of(hub) as inside,
    ):
        await until(lambda: fleet.connected == 1)
        large = inside.start("cam-1", numbers("id2d_fp32", 2**18), timeout_s=60)
        await until(lambda: carried() > 2**18)
        took: list[float] = []
        while not large.done():
            began = time.monotonic()
            assert why(await inside.forward("cam-1", numbers("id2d_fp32", 4))) == ("", True)
            took.append(time.monotonic() - began)
        assert why(large.result()) == ("", True)
        assert len(took) >= 3
        print(f"1 MiB there and back; beside it {len(took)} small ones, the slowest {max(took):.3f} s")
        assert fleet["cam-1"].connects == 1


async def test_a_deadline_ends_the_call_and_the_work_at_the_device():
    async with one_device() as (_, inside, device):
        reply = await inside.forward("cam-1", slow_body(20, "late"), timeout_s=0.3)
        assert why(reply) == ("deadline", True)
        assert reply.message == "Device cam-1 did not answer in time."
        assert reply.took_us >= 300_000
        await until(lambda: device.cancelled == ["late"])
        assert why(await inside.forward("cam-1", slow_body(0))) == ("", True)


async def test_a_cancelled_call_cancels_the_work_at_the_device():
    async with one_device() as (_, inside, device):
        call = inside.start("cam-1", slow_body(20, "gone"))
        await until(lambda: device.given == 1)
        call.cancel()
        await until(lambda: device.cancelled == ["gone"])


async def test_late_answers_of_a_device_that_knows_no_cancel_harm_nobody():
    async def late(device: SimDevice, given: Given) -> bytes:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.3)
        return await run_fixture(device, given)

    async with one_device(late) as (_, inside, device):
        first = await inside.forward("cam-1", numbers("id2d_fp32", 2**16), timeout_s=0.1)
        assert why(first) == ("deadline", True)
        assert why(await inside.forward("cam-1", numbers("id2d_fp32", 4))) == ("", True)
        assert device.connects == 1


async def test_a_lost_stream_fails_its_requests_at_once():
    async with one_device() as (_, inside, device):
        calls = [inside.start("cam-1", slow_body(20)) for _ in range(10)]
        await until(lambda: device.given == 10)
        began = time.monotonic()
        device.cut()
        replies = await asyncio.gather(*calls)
        assert {why(reply) for reply in replies} == {("unavailable", True)}
        assert replies[0].message == "Device cam-1 went away before it answered."
        assert time.monotonic() - began < 5, "the timeouts of 10 s are not waited for"
        await until(lambda: device.connects == 2 and device.up.is_set())
        assert why(await inside.forward("cam-1", slow_body(0))) == ("", True)


async def test_a_device_that_dies_in_the_middle_of_its_answer():
    async def dies(device: SimDevice, given: Given) -> bytes:
        if device.connects == 1:
            raise Die
        return await run_fixture(device, given)

    async with one_device(dies) as (_, inside, device):
        assert why(await inside.forward("cam-1", slow_body(0))) == ("unavailable", True)
        await until(lambda: device.connects == 2 and device.up.is_set())
        assert why(await inside.forward("cam-1", slow_body(0))) == ("", True)


async def test_a_device_that_falls_silent_is_gone_although_its_connection_stays():
    async with one_device(heartbeat_s=0.2) as (_, inside, device):
        call = inside.start("cam-1", slow_body(20))
        await until(lambda: device.given == 1)
        device.silent = True
        reply = await call
        assert why(reply) == ("unavailable", True)
        await until(lambda: bool(device.ends))
        assert device.ends[0][0] == "UNAVAILABLE"
        assert "Nothing was heard of the device" in device.ends[0][1]


async def test_newer_streams_replace_older_ones_and_stay():
    """Old streams end after the new ones were made; their ends take nothing along."""
    roll = ListedRoll([enrolled("cam-1")])
    async with running_hub(roll) as hub, inside_of(hub) as inside:
        twins = [
            SimDevice(hub.devices, "cam-1", run_fixture, FIXTURE_STATES, back_off_s=1e6) for _ in range(5)
        ]
        for twin in twins:
            twin.start()
            await asyncio.wait_for(twin.up.wait(), 15)
            assert why(await inside.forward("cam-1", slow_body(0))) == ("", True)
        await until(lambda: all(t.ends for t in twins[:4]))
        assert {t.ends[0][0] for t in twins[:4]} == {"ABORTED"}
        assert "took the place" in twins[0].ends[0][1]
        await asyncio.gather(*(t.stop() for t in twins[:4]))
        assert why(await inside.forward("cam-1", slow_body(0))) == ("", True)
        assert twins[4].given == 2
        await twins[4].stop()


async def refused(hub: Running, credential: str | None) -> tuple[str, str]:
    """Status and text of a stream that is not let in."""
    metadata = () if credential is None else (("authorization", f"Bearer {credential}"),)
    async with grpc.aio.insecure_channel(hub.devices) as channel:
        call: Any = edge_pb2_grpc.EdgeHubStub(channel).Connect(metadata=metadata)
        return (await call.code()).name, await call.details()


async def test_a_device_that_dials_without_a_pause_waits_for_itself_alone():
    roll = ListedRoll([enrolled("cam-1"), enrolled("cam-2")])
    async with running_hub(roll) as hub, grpc.aio.insecure_channel(hub.devices) as channel:
        stub: Any = edge_pb2_grpc.EdgeHubStub(channel)

        def dial() -> Any:
            return stub.Connect(metadata=(("authorization", f"Bearer {secret('cam-1')}"),))

        # One stays, some gave way to a newer one, and in which order the hub sees them is the connection's.
        calls = [dial() for _ in range(41)]
        await until(lambda: sum(call.done() for call in calls) == 40)
        ended = [(await call.code(), dict(await call.trailing_metadata())) for call in calls if call.done()]
        refused = [told for code, told in ended if code.name == "RESOURCE_EXHAUSTED"]
        assert {code.name for code, _ in ended} <= {"RESOURCE_EXHAUSTED", "ABORTED"}
        assert len(refused) > 20
        assert all(int(told["retry-after-ms"]) > 0 for told in refused)
        async with SimFleet(hub.devices, ["cam-2"], run_fixture) as fleet:
            await until(lambda: fleet.connected == 1)
        for call in calls:
            call.cancel()


async def test_more_enrolments_than_the_registry_is_asked_at_once_are_told_when_to_come():
    roll, asked = ListedRoll(tokens={"tok": "plant-9"}), asyncio.Event()
    redeem = roll.enrol

    async def slowly(token: str, device: str, credential_sha256: bytes) -> Enrolled:
        await asked.wait()
        return await redeem(token, device, credential_sha256)

    roll.enrol = slowly
    async with running_hub(roll) as hub, grpc.aio.insecure_channel(hub.devices) as channel:
        stub = edge_pb2_grpc.EdgeHubStub(channel)
        guesses: list[Any] = [stub.Enrol(edge_pb2.EnrolRequest(token=f"guess {n}")) for n in range(20)]
        await until(lambda: sum(guess.done() for guess in guesses) == 4)
        asked.set()
        names = [(await guess.code()).name for guess in guesses]
        assert (names.count("RESOURCE_EXHAUSTED"), names.count("PERMISSION_DENIED")) == (4, 16)


async def test_who_is_not_let_in_and_why():
    roll = ListedRoll([enrolled("cam-1"), enrolled("cam-2")])
    roll.change("cam-2", revoked=True)
    async with running_hub(roll) as hub:
        assert (await refused(hub, None))[0] == "UNAUTHENTICATED"
        status, text = await refused(hub, "nobody's")
        assert (status, "not that of an enrolled device" in text) == ("UNAUTHENTICATED", True)
        assert await refused(hub, secret("cam-2")) == (
            "PERMISSION_DENIED",
            "Device cam-2 is revoked: ask the gateway's operator.",
        )


async def test_a_registry_that_is_away_makes_nobody_unknown():
    roll = ListedRoll([enrolled("cam-1")])
    async with running_hub(roll) as hub:
        roll.away = True
        assert (await refused(hub, "new")) == (
            "UNAVAILABLE",
            "The registry of devices cannot be asked at the moment; try again.",
        )
        async with SimFleet(hub.devices, ["cam-1"], run_fixture) as fleet:
            await until(lambda: fleet.connected == 1)
    roll.away = True
    async with running_hub(roll) as hub, SimFleet(hub.devices, ["cam-1"], run_fixture) as fleet:
        await until(lambda: bool(fleet["cam-1"].ends))
        assert fleet["cam-1"].ends[0][0] == "UNAVAILABLE"
        roll.away = False
        await until(lambda: fleet.connected == 1)


async def test_many_unknown_credentials_cost_the_registry_little():
    roll = ListedRoll([enrolled("cam-1")])
    async with running_hub(roll) as hub:
        asked = roll.asked
        answers = await asyncio.gather(*(refused(hub, f"guess {n}") for n in range(12)))
        assert {status for status, _ in answers} == {"UNAUTHENTICATED"}
        assert roll.asked - asked <= 2
        roll.devices["cam-2"] = enrolled("cam-2")
        async with SimFleet(hub.devices, ["cam-2"], run_fixture) as fleet:
            await until(lambda: fleet.connected == 1)


async def test_a_device_enrols_with_a_token_and_connects():
    roll = ListedRoll(tokens={"tok": "plant-9"})
    async with running_hub(roll) as hub, grpc.aio.insecure_channel(hub.devices) as channel:
        stub = edge_pb2_grpc.EdgeHubStub(channel)
        asked = edge_pb2.EnrolRequest(token="tok", device="cam-9", credential_sha256=digest(secret("cam-9")))
        reply = await stub.Enrol(asked)
        assert (reply.device, reply.site) == ("cam-9", "plant-9")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Enrol(edge_pb2.EnrolRequest(token="no"))
        assert (caught.value.code().name, caught.value.details()) == (
            "PERMISSION_DENIED",
            "no such enrolment token",
        )
        asked_before = roll.asked
        async with SimFleet(hub.devices, ["cam-9"], run_fixture) as fleet:
            await until(lambda: fleet.connected == 1)
        assert roll.asked == asked_before, "the book has it from the enrolment"


@pytest.mark.parametrize(
    "allowed",
    [
        "tier=site",
        "tier=device;site=plant-9",
        "tier=device;device=cam-2",
        "tier=device;region=eu",
        "none",
        "",
        "x=",
    ],
)
async def test_a_device_outside_the_allowed_set_gets_not_one_byte(allowed: str):
    async with one_device() as (_, inside, device):
        reply = await inside.forward("cam-1", slow_body(0), allowed=allowed)
        assert why(reply) == ("privacy", False)
        allowed_here = await inside.forward(
            "cam-1", slow_body(0), allowed="tier=cloud,site=plant-7;device=cam-1"
        )
        assert why(allowed_here) == ("", True)
        assert device.given == 1


async def test_requests_that_are_never_sent_say_so():
    async with one_device(config=hub_config(max_body_mb=1)) as (hub, inside, device):
        assert why(await inside.forward("cam-7", b"x")) == ("unavailable", False)
        assert why(await inside.forward("cam-1", bytes(2**20 + 1))) == ("too_large", False)
        assert why(await inside.forward("cam-1", b"x", timeout_s=0)) == ("deadline", False)
        calls = [inside.start("cam-1", slow_body(20)) for _ in range(256)]
        await until(lambda: device.given == 256)
        full = await inside.forward("cam-1", slow_body(0))
        assert (why(full), full.message) == (
            ("overloaded", False),
            "Device cam-1 has 256 requests under way.",
        )
        hub.roll.change("cam-1", drained=True)
        await hub.server.roll_changed()
        drained = await inside.forward("cam-1", slow_body(0))
        assert (why(drained), drained.message) == (("unavailable", False), "Device cam-1 is drained.")
        for call in calls:
            call.cancel()


def files_config(folder: Path, **files: bytes) -> Config:
    """Model digits on cameras (plant-7) and, pinned to version 3, on doors (plant-9)."""
    for name, content in files.items():
        (folder / f"{name}.tflite").write_bytes(content)
    batching = {"max_size": 8, "delay_ms": 2}
    variants = [
        {"endpoint": "cameras", "artifact": str(folder / "a.tflite"), "batching": batching},
        {"endpoint": "doors", "artifact": str(folder / "b.tflite"), "version": "3"},
    ]
    groups = [edge("cameras", site="plant-7"), edge("doors", site="plant-9")]
    return hub_config(groups, [{"name": "digits", "variants": variants}])


def as_device(name: str) -> Any:
    return (("authorization", f"Bearer {secret(name)}"),)


async def read(call: Any) -> bytes:
    return b"".join([chunk.piece async for chunk in call])


async def test_a_device_learns_what_to_run_and_fetches_that_alone(tmp_path: Path):
    content = bytes(range(256)) * 2500
    config = files_config(tmp_path, a=content, b=b"other")
    (tmp_path / "a.tflite.golden.npz").write_bytes(b"golden")
    roll = ListedRoll([enrolled("cam-1"), enrolled("door-1", "plant-9")])
    async with (
        shop_of(config, tmp_path / "gateway") as shop,
        running_hub(roll, config, shop.blobs) as hub,
        SimFleet(hub.devices, ["cam-1", "door-1"], run_fixture) as fleet,
        grpc.aio.insecure_channel(hub.devices) as channel,
    ):
        roll.given = shop.orders(report_ms=1234)
        await hub.server.roll_changed()
        await until(lambda: all(d.desired is not None and d.desired.models for d in fleet.devices.values()))
        desired = fleet["cam-1"].desired
        assert desired is not None
        assert desired.report_ms == 1234
        (model,) = desired.models
        assert (model.model, model.version, model.size) == ("digits", "1", len(content))
        assert (model.target, model.golden_target) == ("digits/1/cameras", "digits/1/cameras.golden")
        assert (model.batch_max_size, model.batch_delay_ms) == (8, 2.0)
        assert (model.golden_digest, model.golden_size) == ("sha256:" + digest_of(b"golden"), 6)
        assert not model.HasField("gather")

        stub = edge_pb2_grpc.EdgeHubStub(channel)

        async def fetch(digest: str, offset: int = 0, name: str = "cam-1") -> bytes:
            return await read(
                stub.Fetch(edge_pb2.FetchRequest(digest=digest, offset=offset), metadata=as_device(name))
            )

        assert await fetch(model.digest) == content
        assert await fetch(model.digest, 600_001) == content[600_001:]
        assert await fetch(model.digest, len(content)) == b""
        assert await fetch(model.golden_digest) == b"golden"
        for digest_, offset, name, status in (
            ("sha256:" + digest_of(b"other"), 0, "cam-1", "NOT_FOUND"),
            (model.digest, 0, "door-1", "NOT_FOUND"),
            ("sha256:../../etc/passwd", 0, "cam-1", "NOT_FOUND"),
            ("", 0, "cam-1", "NOT_FOUND"),
            (model.digest, len(content) + 1, "cam-1", "OUT_OF_RANGE"),
            (model.digest, 0, "cam-9", "UNAUTHENTICATED"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await fetch(digest_, offset, name)
            assert caught.value.code().name == status

        stored = shop.state_dir / "artifacts" / "blobs" / model.digest[7:9] / model.digest[7:]
        stored.write_bytes(b"shorter")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await fetch(model.digest)
        assert caught.value.code().name == "DATA_LOSS"
        stored.unlink()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await fetch(model.digest)
        assert caught.value.code().name == "UNAVAILABLE"

        roll.change("cam-1", site="plant-9")
        await hub.server.roll_changed()
        await until(lambda: [m.version for m in fleet["cam-1"].desired.models] == ["3"])  # type: ignore[union-attr]


async def test_metadata_is_given_by_its_names_alone_and_the_root_with_the_enrolment(tmp_path: Path):
    config = files_config(tmp_path, a=b"a", b=b"b")
    roll = ListedRoll([enrolled("cam-1")], tokens={"token": "plant-7"})
    async with (
        shop_of(config, tmp_path / "gateway") as shop,
        running_hub(roll, config, shop.blobs) as hub,
        grpc.aio.insecure_channel(hub.devices) as channel,
    ):
        stub = edge_pb2_grpc.EdgeHubStub(channel)
        reply = await stub.Enrol(
            edge_pb2.EnrolRequest(token="token", device="cam-2", credential_sha256=digest(secret("cam-2")))
        )
        assert reply.root == shop.releases.root()
        for name in ("timestamp.json", "1.snapshot.json", "1.targets.json", "1.root.json"):
            found = await read(
                stub.Metadata(edge_pb2.MetadataRequest(name=name), metadata=as_device("cam-2"))
            )
            assert found == (shop.metadata / name).read_bytes()
        for name in (
            "2.root.json",
            "root.json",
            "snapshot.json",
            "../1.root.json",
            "01.root.json",
            "",
            "1.ROOT.json",
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await read(stub.Metadata(edge_pb2.MetadataRequest(name=name), metadata=as_device("cam-2")))
            assert caught.value.code().name == "NOT_FOUND"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read(stub.Metadata(edge_pb2.MetadataRequest(name="timestamp.json")))
        assert caught.value.code().name == "UNAUTHENTICATED"


async def test_devices_go_on_as_they_do_until_their_orders_are_known(tmp_path: Path):
    config = files_config(tmp_path, a=b"a", b=b"b")
    roll = ListedRoll([enrolled("cam-1")])
    roll.given = None
    async with (
        shop_of(config, tmp_path / "gateway") as shop,
        running_hub(roll, config, shop.blobs) as hub,
        SimFleet(hub.devices, ["cam-1"], run_fixture, FIXTURE_STATES) as fleet,
        grpc.aio.insecure_channel(hub.devices) as channel,
        inside_of(hub) as inside,
    ):
        await fleet["cam-1"].up.wait()
        async for message in inside.stub.Watch(inside_pb2.WatchRequest()):
            if any(device.models for device in message.devices):
                break
        # It has said what it runs, and can be asked.
        assert why(await inside.forward("cam-1", numbers("id2d_fp32", 4))) == ("", True)
        assert fleet["cam-1"].desired is None
        wanted = edge_pb2.FetchRequest(digest="sha256:" + digest_of(b"a"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read(edge_pb2_grpc.EdgeHubStub(channel).Fetch(wanted, metadata=as_device("cam-1")))
        assert caught.value.code().name == "UNAVAILABLE"
        roll.given = shop.orders()
        await until(lambda: fleet["cam-1"].desired is not None)
        assert [m.target for m in fleet["cam-1"].desired.models] == ["digits/1/cameras"]  # type: ignore[union-attr]
        # What was known holds while control is away.
        roll.away = True
        await hub.server.roll_changed()
        fleet["cam-1"].desired = None
        fleet["cam-1"].cut()
        await until(lambda: fleet["cam-1"].desired is not None)
        assert [m.target for m in fleet["cam-1"].desired.models] == ["digits/1/cameras"]  # type: ignore[union-attr]


async def test_revoking_and_enrolling_anew_end_the_stream():
    async with one_device() as (hub, inside, device):
        hub.roll.change("cam-1", revoked=True)
        await hub.server.roll_changed()
        await until(lambda: bool(device.ends))
        assert device.ends[0][0] == "PERMISSION_DENIED"
        assert why(await inside.forward("cam-1", slow_body(0))) == ("unavailable", False)
        hub.roll.change("cam-1", revoked=False)
        await hub.server.roll_changed()
        await until(lambda: device.connects == 2 and device.up.is_set())
        hub.roll.change("cam-1", credential_sha256=digest("another"))
        await hub.server.roll_changed()
        await until(lambda: device.ends[-1][0] == "UNAUTHENTICATED")
        assert ("PERMISSION_DENIED", "Device cam-1 was enrolled anew with another credential.") in device.ends


async def test_watchers_get_everybody_and_then_what_changed():
    roll = ListedRoll([enrolled("cam-1", soc="imx"), enrolled("cam-2")])
    async with (
        running_hub(roll) as hub,
        inside_of(hub) as inside,
        SimFleet(hub.devices, ["cam-1"], run_fixture, FIXTURE_STATES) as fleet,
    ):
        fleet["cam-1"].telemetry.battery_percent = 40
        known: dict[str, inside_pb2.FleetDevice] = {}
        complete: list[bool] = []
        removed: list[str] = []

        async def watch() -> None:
            async for message in inside.stub.Watch(inside_pb2.WatchRequest()):
                complete.append(message.complete)
                removed.extend(message.removed)
                known.update({d.name: d for d in message.devices})

        watching = asyncio.create_task(watch())
        await until(lambda: "cam-1" in known and len(known["cam-1"].models) == 2)
        cam = known["cam-1"]
        assert (cam.site, dict(cam.labels), cam.connected) == ("plant-7", {"soc": "imx"}, True)
        assert (cam.credential_sha256, cam.facts["os"]) == (digest(secret("cam-1")), "sim")
        assert (cam.telemetry.battery_percent, cam.telemetry.HasField("temperature_c")) == (40, False)
        assert cam.silent_ms < 1000
        assert not known["cam-2"].connected
        call = inside.start("cam-1", slow_body(20))
        await until(lambda: known["cam-1"].inflight == 1)
        call.cancel()
        await until(lambda: known["cam-1"].inflight == 0)
        fleet["cam-1"].back_off_s = 1e6
        fleet["cam-1"].cut()
        await until(lambda: not known["cam-1"].connected)
        assert len(known["cam-1"].models) == 2, "what it ran is still told"
        del roll.devices["cam-2"]
        await hub.server.roll_changed()
        await until(lambda: removed == ["cam-2"])
        assert complete == [True] + [False] * (len(complete) - 1)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_broken_rule_ends_the_stream_with_the_reason():
    async with one_device() as (_, _inside, device):
        device.tell(edge_pb2.DeviceMessage(answer=edge_pb2.Answer(id=77)))
        await until(lambda: bool(device.ends))
        assert device.ends[0] == (
            "INVALID_ARGUMENT",
            "The device sent something for inference 77, which was never asked for.",
        )


async def test_closing_lets_what_runs_finish_and_leaves_nothing():
    roll = ListedRoll([enrolled("cam-1")])
    before = asyncio.all_tasks()
    async with running_hub(roll) as hub, SimFleet(hub.devices, ["cam-1"], run_fixture) as fleet:
        async with inside_of(hub) as inside:
            await until(lambda: fleet.connected == 1)
            call = inside.start("cam-1", slow_body(0.5))
            await until(lambda: fleet["cam-1"].given == 1)
            closing = asyncio.create_task(hub.server.close(10))
            await asyncio.sleep(0)
            late = await inside.forward("cam-1", slow_body(0))
            assert (why(late), late.message) == (("unavailable", False), "The edge hub is stopping.")
            assert why(await call) == ("", True)
            await closing
        await until(lambda: bool(fleet["cam-1"].ends))
        assert fleet["cam-1"].ends[0] == ("UNAVAILABLE", "The hub is stopping.")
        assert not (hub.folder / "run" / "hub.sock").exists()
    await until(lambda: not {t.get_name() for t in asyncio.all_tasks() - before if "cam" in t.get_name()})


async def test_the_inner_socket_is_this_users_alone():
    async with running_hub(ListedRoll()) as hub:
        socket = hub.folder / "run" / "hub.sock"
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "edge.example"])
def test_a_hub_listens_on_loopback_only(host: str, tmp_path: Path):
    with pytest.raises(ValueError, match=f"^edge: {host} is not a loopback address: .*no mutual TLS$"):
        HubServer(hub_config(), (host, 0), tmp_path / "s", ListedRoll(), BlobStore(None, tmp_path))


async def test_an_address_that_is_taken_is_an_error(tmp_path: Path):
    async with running_hub(ListedRoll()) as hub:
        other = HubServer(
            hub_config(), hub.server.address, tmp_path / "s", ListedRoll(), BlobStore(None, tmp_path)
        )
        with pytest.raises(OSError, match=r"cannot listen on 127\.0\.0\.1"):
            await other.start()
        await other.close(0)


async def test_three_hundred_devices_come_back_after_a_restart():
    names = [f"cam-{n}" for n in range(300)]
    roll = ListedRoll([enrolled(name) for name in names])
    async with running_hub(roll, heartbeat_s=2.0) as hub:
        _, port = hub.server.address
        fleet = SimFleet(hub.devices, names, run_fixture, FIXTURE_STATES)
        async with fleet:
            await until(lambda: fleet.connected == 300, 60)
            await hub.server.close(0)
            await until(lambda: fleet.connected == 0)
            began, cpu = time.monotonic(), time.process_time()
            async with running_hub(roll, heartbeat_s=2.0, port=port) as again, inside_of(again) as inside:
                await until(lambda: fleet.connected == 300, 60)
                took, spent = time.monotonic() - began, time.process_time() - cpu
                told_to_wait = sum(
                    s == "RESOURCE_EXHAUSTED" for d in fleet.devices.values() for s, _ in d.ends
                )
                print(
                    f"300 devices back in {took:.1f} s, {spent:.1f} s of CPU with the devices' own; "
                    f"{told_to_wait} were told to wait"
                )
                replies = await asyncio.gather(*(inside.forward(name, slow_body(0)) for name in names))
                assert {why(reply) for reply in replies} == {("", True)}
