"""The agent's link over real grpc.aio: to a hub that does as the test says, and to the gateway's own."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

from edge_agent.link import client
from edge_agent.link.client import CallEnded, EnrolmentRefused
from edge_agent.link.runner import Link, LinkSettings
from edge_agent.spool import Spool
from edge_agent.state import DeviceState, Enrolment, read_enrolment
from edgewire.places import Place, Tier
from edgewire.v1 import edge_pb2
from oip.errors import OipError
from oip.held import BodyBudget
from oip.reasons import Reason
from tests.support.hub_double import ALLOWED, HubDouble
from tests.support.tiny_models import TinyModels, identity_request, pb
from tests.support.waiting import until

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class AtOnce(Random):
    """Waits for nothing, and remembers what it could have waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[float] = []

    def uniform(self, a: float, b: float) -> float:
        self.ranges.append(b)
        return 0.0


class Device:
    """A link with what stands around it."""

    def __init__(
        self, state: DeviceState, hubs: tuple[str, ...], token: str = "", limit: int = 2**26
    ) -> None:
        self.state = state
        self.models = TinyModels()
        self.budget = BodyBudget(4 * limit, "device")
        self.rng = AtOnce()
        self.readings = 0
        settings = LinkSettings(hubs, token, "wanted", limit, {"arch": "test"})
        self.spool = Spool(state.folder / "spool.db", 4 * 2**20)
        self.link = Link(settings, state, self.models, self.budget, self._telemetry, self.spool, self.rng)

    async def _telemetry(self) -> edge_pb2.Telemetry:
        self.readings += 1
        return edge_pb2.Telemetry(cpu_percent=12.5)


@asynccontextmanager
async def device(
    folder: Path, *hubs: str, token: str = "", enrolled: bool = True, limit: int = 2**26
) -> AsyncIterator[Device]:
    """A running link; whatever it leaves running or holding fails the test."""
    with DeviceState(folder) as state:
        if enrolled:
            state.enrol(Enrolment("cam-7a", "plant-7"))
        made = Device(state, hubs, token, limit)
        before = asyncio.all_tasks()
        running = asyncio.create_task(made.link.run())
        try:
            yield made
        finally:
            await made.link.drain(5.0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert made.budget.held == 0
        assert {task for task in asyncio.all_tasks() if task.get_name().startswith("tidegate")} == set()
        await until(lambda: len(asyncio.all_tasks()) <= len(before) + 1)


@pytest.fixture
async def hub() -> AsyncIterator[tuple[HubDouble, str]]:
    double = HubDouble()
    address = await double.start()
    yield double, address
    await double.stop()


Hub = tuple[HubDouble, str]


async def test_it_enrols_once_and_comes_back_by_its_credential(hub: Hub, tmp_path: Path):
    double, address = hub
    async with device(tmp_path, address, token="good", enrolled=False) as made:
        await until(lambda: made.link.connected)
        assert made.state.enrolment == Enrolment("cam-7a", "plant-7", {"soc": "imx8mp"})
        credential = made.state.credential
    (asked,) = double.enrolments
    assert asked.device == "wanted"
    assert asked.credential_sha256 == hashlib.sha256(credential.encode()).digest()
    async with device(tmp_path, address, token="good", enrolled=False) as made:
        await until(lambda: made.link.connected)
        assert made.state.credential == credential
    assert len(double.enrolments) == 1
    assert double.credentials == [f"Bearer {credential}"] * 2
    assert double.hellos[0].facts == {"arch": "test"}


async def test_a_token_that_is_refused_keeps_the_credential(hub: Hub, tmp_path: Path):
    _, address = hub
    with DeviceState(tmp_path) as state:
        made = Device(state, (address,), "used")
        before = state.credential
        with pytest.raises(EnrolmentRefused, match="the token is used up"):
            await made.link.enrol()
        assert state.enrolment is None
    with DeviceState(tmp_path) as state:
        assert state.credential == before


async def test_a_hub_that_is_away_is_no_refusal(tmp_path: Path):
    with DeviceState(tmp_path) as state, pytest.raises(CallEnded):
        await Device(state, ("127.0.0.1:1",), "good").link.enrol()


async def test_inferences_small_and_large_with_heartbeats_between(hub: Hub, tmp_path: Path):
    double, address = hub
    async with device(tmp_path, address) as made:
        await until(lambda: made.link.connected)
        large = identity_request(request_id="large", padding=3_000_000)
        await double.infer(1, large, traceparent=SAMPLED)
        await double.infer(2, identity_request(request_id="small"))
        arrived = await double.answer(1)
        response = pb.ModelInferResponse.FromString(bytes(arrived.body))
        assert response.id == "large"
        assert len(response.raw_output_contents[1]) == 3_000_000
        assert set(made.models.asked) == {ALLOWED}
        (span,) = arrived.answer.spans
        assert span.name == "tidegate.agent.infer"
        assert dict(span.attributes) == {"tidegate.outcome": "ok"}
        assert span.took_us < 60_000_000
        small = await double.answer(2)
        assert pb.ModelInferResponse.FromString(bytes(small.body)).id == "small"
        assert list(small.answer.spans) == []
        assert double.heartbeats[0].telemetry.cpu_percent == 12.5
        assert [state.model for state in double.heartbeats[0].models] == list(made.models.names)


async def test_failures_are_answered_with_their_reason(hub: Hub, tmp_path: Path):
    double, address = hub
    async with device(tmp_path, address, limit=1_000_000) as made:
        await until(lambda: made.link.connected)
        await double.infer(1, identity_request("fails"))
        await double.infer(2, identity_request("boom"))
        await double.infer(3, identity_request("nobody"))
        await double.infer(4, identity_request(), allowed="tier=device;site=plant-9")
        await double.infer(5, identity_request("slow"), timeout_ms=50)
        await double.infer(6, identity_request(padding=1_000_001))
        reasons = [(await double.answer(id)).answer.reason for id in range(1, 7)]
        assert reasons == [
            "model_unavailable", "internal", "unknown_model", "privacy", "deadline", "too_large",
        ]  # fmt: skip
        assert double.answers[2].answer.message == "the agent failed inside; its log says where"
        await until(lambda: made.models.cancelled == 1)


async def test_a_cancel_stops_the_work(hub: Hub, tmp_path: Path):
    double, address = hub
    async with device(tmp_path, address) as made:
        await until(lambda: made.link.connected)
        await double.infer(1, identity_request("slow"))
        await made.models.entered.wait()
        await double.send(edge_pb2.HubMessage(cancel=edge_pb2.Cancel(id=1)))
        await until(lambda: made.models.cancelled == 1)
        await double.infer(2, identity_request())
        await double.answer(2)
        assert 1 not in double.answers


async def test_a_lost_stream_cancels_what_runs_and_a_new_one_follows(hub: Hub, tmp_path: Path):
    double, address = hub
    async with device(tmp_path, address) as made:
        await until(lambda: made.link.connected)
        for id in range(10):
            await double.infer(id, identity_request("slow"))
        await until(lambda: made.models.inflight == 10)
        await double.cut()
        await until(lambda: made.models.cancelled == 10)
        await until(lambda: made.link.connected and len(double.hellos) == 2)
        await double.infer(1, identity_request(request_id="again"))
        arrived = await double.answer(1)
        assert pb.ModelInferResponse.FromString(bytes(arrived.body)).id == "again"


async def test_a_models_new_state_is_told_at_once(hub: Hub, tmp_path: Path):
    double, address = hub
    async with device(tmp_path, address) as made:
        await until(lambda: len(double.heartbeats) == 1)
        made.models.state = edge_pb2.ModelState.FAILED
        await until(lambda: len(double.heartbeats) == 2, timeout_s=5)
        assert double.heartbeats[1].models[0].state == edge_pb2.ModelState.FAILED


async def test_heartbeats_come_at_the_hubs_interval(tmp_path: Path):
    double = HubDouble(heartbeat_ms=100)
    address = await double.start()
    async with device(tmp_path, address):
        await until(lambda: len(double.heartbeats) >= 4)
    await double.stop()


async def test_desired_state_and_its_download(hub: Hub, tmp_path: Path):
    double, address = hub
    double.artifact = bytes(range(256)) * 2000
    double.metadata = {"7.targets.json": bytes(range(256)) * 500}
    double.place = edge_pb2.Place(tier="site", site="plant-7")
    async with device(tmp_path, address) as made:
        await until(lambda: made.link.connected)
        models = [edge_pb2.DesiredModel(model="digits", digest="sha256:aa", size=512_000)]
        wanted = edge_pb2.Desired(models=models, trials=models, report_ms=7)
        await double.send(edge_pb2.HubMessage(desired=wanted))
        await until(lambda: len(made.models.desired) == 1)
        assert made.models.desired[0] == wanted
        hub = made.models.hub
        assert hub is not None
        assert hub.here == Place(Tier.DEVICE, site="plant-7", device="cam-7a")
        assert hub.there == Place(Tier.SITE, site="plant-7")
        assert b"".join([piece async for piece in hub.fetch("sha256:aa", 1000)]) == double.artifact[1000:]
        assert (
            b"".join([piece async for piece in hub.metadata("7.targets.json")])
            == double.metadata["7.targets.json"]
        )
        with pytest.raises(OipError) as missing:
            await anext(hub.metadata("8.targets.json"))
        assert missing.value.reason is Reason.NOT_FOUND
        double.refuse = grpc.StatusCode.UNAVAILABLE
        for pieces in (hub.fetch("sha256:bb", 0), hub.metadata("timestamp.json")):
            with pytest.raises(OipError, match="UNAVAILABLE") as away:
                await anext(pieces)
            assert away.value.reason is Reason.UNAVAILABLE


async def test_the_root_of_trust_comes_with_the_enrolment(hub: Hub, tmp_path: Path):
    double, address = hub
    double.root = b'{"signed": {}}'
    async with device(tmp_path, address, token="good", enrolled=False) as made:
        await until(lambda: made.link.connected)
        await double.send(edge_pb2.HubMessage(desired=edge_pb2.Desired()))
        await until(lambda: made.models.hub is not None)
        assert made.models.hub is not None
        assert made.models.hub.root == double.root
        made.models.hub.pin(b"another")
    enrolled = read_enrolment(tmp_path)
    assert enrolled is not None
    assert enrolled.root == double.root


@pytest.mark.parametrize(
    ("status", "words", "range_s"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "does not know this device's credential, which is kept", 5.0),
        (
            grpc.StatusCode.PERMISSION_DENIED,
            "revoked: to let it in, a new token and a new --state folder",
            60.0,
        ),
        (grpc.StatusCode.UNAVAILABLE, "is gone (UNAVAILABLE)", 1.0),
    ],
)
async def test_a_refusal_never_wipes_the_identity(
    hub: Hub,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    status: grpc.StatusCode,
    words: str,
    range_s: float,
):
    double, address = hub
    double.refuse = status
    async with device(tmp_path, address) as made:
        await until(lambda: len(made.rng.ranges) >= 2)
        assert made.rng.ranges[0] == range_s
        assert made.state.enrolment == Enrolment("cam-7a", "plant-7")
        double.refuse = None
        await until(lambda: made.link.connected)
    told = [record.getMessage() for record in caplog.records if words in record.getMessage()]
    assert len(told) == 1
    assert "answering locally" in told[0]
    with DeviceState(tmp_path) as state:
        assert state.enrolment == Enrolment("cam-7a", "plant-7")


async def test_a_hubs_wish_for_a_pause_is_heeded(hub: Hub, tmp_path: Path):
    double, address = hub
    double.refuse = grpc.StatusCode.RESOURCE_EXHAUSTED
    double.retry_after_ms = 250
    with DeviceState(tmp_path) as state:
        state.enrol(Enrolment("cam-7a", "plant-7"))
        async with client.channel_to(address) as stub:
            call: Any = stub.Connect(metadata=client.bearer(state.credential))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
    ended = client.call_ended(caught.value)
    assert (ended.hint_s, ended.words) == (0.25, "has too many devices at once")


async def test_hubs_are_tried_in_turn(hub: Hub, tmp_path: Path):
    _, address = hub
    async with device(tmp_path, "127.0.0.1:1", address) as made:
        await until(lambda: made.link.connected)
        assert len(made.rng.ranges) == 1


async def test_a_silent_hub_is_left(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    double, address = hub
    monkeypatch.setattr(client, "CALL_TIMEOUT_S", 0.1)
    double.silent = True
    async with device(tmp_path, address) as made:
        await until(lambda: len(double.hellos) >= 2)
        assert not made.link.connected


async def test_a_hub_that_never_says_welcome_does_not_hold_up_the_end(hub: Hub, tmp_path: Path):
    double, address = hub
    double.silent = True
    async with device(tmp_path, address) as made:
        await until(lambda: len(double.hellos) == 1)
        async with asyncio.timeout(5):
            await made.link.drain(60.0)


async def test_a_hub_that_breaks_the_protocol_is_left(hub: Hub, tmp_path: Path):
    double, address = hub
    async with device(tmp_path, address) as made:
        await until(lambda: made.link.connected)
        await double.infer(1, identity_request("slow"))
        await made.models.entered.wait()
        await double.send(edge_pb2.HubMessage(data=edge_pb2.Data(id=1, piece=b"more")))
        await until(lambda: len(double.hellos) == 2)
        assert made.models.cancelled == 1


async def test_drain_finishes_what_runs(hub: Hub, tmp_path: Path):
    double, address = hub
    async with device(tmp_path, address) as made:
        await until(lambda: made.link.connected)
        await double.infer(1, identity_request("slow", request_id="last"))
        await made.models.entered.wait()
        draining = asyncio.create_task(made.link.drain(10.0))
        await until(lambda: made.link._stream is not None and made.link._stream.session._draining)
        await double.infer(2, identity_request())
        assert (await double.answer(2)).answer.reason == "draining"
        made.models.release.set()
        await draining
        arrived = await double.answer(1)
        assert pb.ModelInferResponse.FromString(bytes(arrived.body)).id == "last"
        await until(lambda: double.streams == 0)


async def test_a_large_answer_does_not_hold_up_a_heartbeat(hub: Hub, tmp_path: Path):
    """The hub reads nothing for a while. A heartbeat that is made meanwhile comes before the rest of a
    16 MB answer, most of which is still on the device."""
    double, address = hub
    async with device(tmp_path, address) as made:
        await until(lambda: len(double.heartbeats) == 1)
        double.hold_at_answer = True
        await double.infer(1, identity_request(padding=16_000_000))
        await until(lambda: 1 in double.answers)
        made.models.state = edge_pb2.ModelState.FAILED
        await until(lambda: made.readings == 2)
        double.reading.set()
        await double.answer(1)
        assert double.frames.count("data") > 200
        held = double.frames[double.frames.index("answer") :]
        assert held.index("heartbeat") < double.frames.count("data") // 2
