"""From a device's spool to whoever counts: over the real hub, with an agent's own link."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from edge_agent.link.deliver import Deliverer
from edge_agent.link.runner import Link, LinkSettings
from edge_agent.spool import Spool
from edge_agent.state import DeviceState, Enrolment
from edgewire.places import Place, Tier
from edgewire.v1 import edge_pb2, edge_pb2_grpc
from edgewire.wire_places import to_wire
from gateway.core.config import Config
from gateway.edgehub import deliveries
from oip.errors import OipError
from oip.held import BodyBudget
from oip.reasons import Reason
from tests.integration.test_agent_link import AtOnce
from tests.support.agent import AgentProcess, running_agent
from tests.support.configs import config_from
from tests.support.hub import ListedRoll, Running, hub_config, running_hub
from tests.support.hub_double import HubDouble
from tests.support.simfleet import digest, enrolled, secret
from tests.support.tiny_models import TinyModels
from tests.support.waiting import until

SITE = Place(Tier.SITE, site="plant-7")
HERE = to_wire(SITE).SerializeToString(deterministic=True)


def window(number: int, signals: bool = False) -> edge_pb2.Record:
    made = edge_pb2.Record(window=edge_pb2.Window(model="digits", version="2", answered=number))
    if signals:
        made.window.signals.add(name="output.confidence", bins=7, counts=[1, number])
    return made


def sample(allowed: str) -> edge_pb2.Record:
    return edge_pb2.Record(sample=edge_pb2.Sample(model="digits", request=b"whole", allowed=allowed))


@dataclass
class Device:
    link: Link
    spool: Spool
    rng: AtOnce


@asynccontextmanager
async def device(folder: Path, *hubs: str, name: str = "cam-1") -> AsyncIterator[Device]:
    """A running link, whose credential is the simulated devices'."""
    with DeviceState(folder) as state:
        state.credential = digest(name).hex()
        state.enrol(Enrolment(name, "plant-7"))
        spool = Spool(folder / "spool.db", 4 * 2**20)
        await spool.open()
        rng = AtOnce()

        async def telemetry() -> edge_pb2.Telemetry:
            return edge_pb2.Telemetry()

        settings = LinkSettings(hubs)
        link = Link(settings, state, TinyModels(), BodyBudget(2**26, "device"), telemetry, spool, rng)
        running = asyncio.create_task(link.run())
        try:
            yield Device(link, spool, rng)
        finally:
            await link.drain(1.0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await spool.close()
            assert not [t for t in asyncio.all_tasks() if t.get_name().startswith("tidegate")]


def roll_of(*names: str) -> ListedRoll:
    """Devices with the credentials that `device` writes."""
    listed = [enrolled(name) for name in names]
    roll = ListedRoll(listed)
    for name in names:
        roll.change(name, credential_sha256=digest(digest(name).hex()))
    return roll


async def filled(spool: Spool, count: int, first: int = 1) -> None:
    for number in range(first, first + count):
        spool.append(window(number))
    await spool.flush()


async def test_what_waited_is_delivered_in_order_and_forgotten(tmp_path: Path):
    roll = roll_of("cam-1")
    async with running_hub(roll) as hub, device(tmp_path / "cam-1", hub.devices) as made:
        await filled(made.spool, 1000)
        await until(lambda: made.spool.waiting == 0)
        assert [w.answered for w in roll.counting.windows()] == list(range(1, 1001))
        assert (roll.counting.holes, roll.counting.lost, roll.counting.again) == (0, 0, 0)
        assert max(records for records, _ in roll.counting.sizes) == 64
        ages = [record.age_ms for _, _, record in roll.counting.records]
        assert all(0 <= age < 60_000 for age in ages)
        assert {who for who, _, _ in roll.counting.records} == {"cam-1"}
        # And what comes later, at once.
        await filled(made.spool, 1, 1001)
        await until(lambda: roll.counting.calls > 16 and made.spool.waiting == 0)


async def test_large_records_travel_in_batches_of_half_a_megabyte(tmp_path: Path):
    roll = roll_of("cam-1")
    async with running_hub(roll) as hub, device(tmp_path / "cam-1", hub.devices) as made:
        for _ in range(6):
            record = edge_pb2.Record(
                sample=edge_pb2.Sample(model="digits", request=bytes(240_000), allowed="tier=site")
            )
            made.spool.append(record)
            await made.spool.flush()
        await until(lambda: made.spool.waiting == 0)
        assert len(list(roll.counting.samples())) == 6
        assert max(size for _, size in roll.counting.sizes) <= 512 * 1024


async def test_nothing_is_counted_twice_when_answers_are_lost_and_control_is_away(tmp_path: Path):
    """The answer to every other call is lost after it was counted; some calls find control gone."""
    roll = roll_of("cam-1")

    def away(_: str, call: int) -> None:
        if call % 5 == 4:
            raise OipError(Reason.UNAVAILABLE, "control is away")

    def lost(_: str, call: int) -> None:
        if call % 2:
            raise ConnectionError("the answer never arrived")

    roll.counting.before, roll.counting.after = away, lost
    async with running_hub(roll) as hub, device(tmp_path / "cam-1", hub.devices) as made:
        await filled(made.spool, 640)
        await until(lambda: made.spool.waiting == 0)
        assert [w.answered for w in roll.counting.windows()] == list(range(1, 641))
        assert roll.counting.holes == 0
        assert roll.counting.again >= 64
        # Full jitter: each wait could have been longer than the one before, from a second on.
        assert {1.0} <= set(made.rng.ranges) <= {0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0}


async def test_a_hub_that_counts_nothing_is_not_asked_without_a_pause(tmp_path: Path):
    class Deaf(ListedRoll):
        async def deliver(self, device: Any, request: bytes) -> bytes:
            self.counting.calls += 1
            return edge_pb2.DeliverReply().SerializeToString()

    roll = Deaf(roll_of("cam-1").devices.values())
    async with running_hub(roll) as hub, device(tmp_path / "cam-1", hub.devices) as made:
        await filled(made.spool, 10)
        await until(lambda: len(made.rng.ranges) >= 3)
        assert made.rng.ranges[:3] == [5.0, 10.0, 20.0]
        assert made.spool.waiting == 10


async def test_the_hubs_wish_for_a_pause_is_granted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    plain = asyncio.sleep

    async def sleep(seconds: float, *rest: Any) -> None:
        slept.append(seconds)
        await plain(0 if seconds > 100 else seconds, *rest)

    roll = roll_of("cam-1")
    roll.counting.pause_ms = 123_000
    async with running_hub(roll) as hub, device(tmp_path / "cam-1", hub.devices) as made:
        monkeypatch.setattr("edge_agent.link.deliver.asyncio.sleep", sleep)
        await filled(made.spool, 130)
        await until(lambda: made.spool.waiting == 0)
        assert slept.count(123.0) == 3


async def test_heartbeats_say_how_many_records_wait(tmp_path: Path):
    double = HubDouble(heartbeat_ms=100)
    address = await double.start()
    try:
        async with device(tmp_path / "cam-1", address) as made:
            await filled(made.spool, 37)
            await until(lambda: any(beat.spooled == 37 for beat in double.heartbeats))
            # This hub takes no deliveries: that is tried rarely.
            await until(lambda: made.rng.ranges != [])
            assert made.rng.ranges[0] == 60.0
    finally:
        await double.stop()


def elsewhere() -> Config:
    return config_from(
        {
            **hub_config().model_dump(include={"version", "models", "privacy", "policies"}, mode="json"),
            "gateway": {"name": "gw-cloud", "location": {"tier": "cloud", "region": "eu-west-1"}},
            "endpoints": list(hub_config().endpoints),
        }
    )


async def test_another_gateway_gets_the_plain_counts_and_no_sample_that_may_not_go_there(tmp_path: Path):
    """The spool was filled for a gateway on site; the hub that is there now is in the cloud."""
    roll = roll_of("cam-1")
    async with running_hub(roll, elsewhere()) as hub, device(tmp_path / "cam-1", hub.devices) as made:
        made.spool.append(window(1, signals=True), HERE)
        made.spool.append(sample("tier=device+site;site=plant-7"))
        made.spool.append(sample("tier=site+cloud"))
        made.spool.append(window(2))
        await made.spool.flush()
        await until(lambda: made.spool.waiting == 0)
        assert [(w.answered, len(w.signals)) for w in roll.counting.windows()] == [(1, 0), (2, 0)]
        assert [s.allowed for s in roll.counting.samples()] == ["tier=site+cloud"]
        assert (roll.counting.lost, roll.counting.holes) == (1, 0)
        assert all(b"whole" not in record.SerializeToString() for *_, record in roll.counting.records[:2])


async def test_the_gateway_that_it_was_counted_for_gets_all(tmp_path: Path):
    roll = roll_of("cam-1")
    async with running_hub(roll) as hub, device(tmp_path / "cam-1", hub.devices) as made:
        made.spool.append(window(1, signals=True), HERE)
        made.spool.append(sample("tier=device+site;site=plant-7"))
        await made.spool.flush()
        await until(lambda: made.spool.waiting == 0)
        (found,) = roll.counting.windows()
        assert list(found.signals[0].counts) == [1, 1]
        assert [s.request for s in roll.counting.samples()] == [b"whole"]


async def test_it_goes_on_with_the_next_hub_where_the_first_left_off(tmp_path: Path):
    roll = roll_of("cam-1")
    async with (
        running_hub(roll) as first,
        running_hub(roll) as second,
        device(tmp_path / "cam-1", first.devices, second.devices) as made,
    ):
        await filled(made.spool, 100)
        await until(lambda: roll.counting.calls >= 1)
        await first.server.close(0)
        await filled(made.spool, 100, 101)
        await until(lambda: made.spool.waiting == 0)
    assert sorted(w.answered for w in roll.counting.windows()) == list(range(1, 201))
    assert roll.counting.holes == 0


def report(*numbers: int, spool: str = "a" * 32) -> edge_pb2.DeliverRequest:
    return edge_pb2.DeliverRequest(
        spool=spool, records=[edge_pb2.Record(number=n, window=window(n).window) for n in numbers]
    )


@asynccontextmanager
async def calls_to(hub: Running) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(hub.devices) as channel:
        yield edge_pb2_grpc.EdgeHubStub(channel)


def credentials(name: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {secret(name)}"),)


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (report(1, spool=""), "32 lower-case hex digits"),
        (report(1, spool="A" * 32), "32 lower-case hex digits"),
        (report(1, spool="a" * 33), "32 lower-case hex digits"),
        (report(), "1 to 64 records, not 0"),
        (report(*range(1, 66)), "1 to 64 records, not 65"),
        (report(0, 1), "ascending order"),
        (report(2, 2), "ascending order"),
        (report(3, 2), "ascending order"),
    ],
)
async def test_what_is_no_report_never_reaches_control(request_: edge_pb2.DeliverRequest, told: str):
    roll = ListedRoll([enrolled("cam-1")])
    async with running_hub(roll) as hub, calls_to(hub) as stub:
        with pytest.raises(grpc.aio.AioRpcError, match=told) as refused:
            await stub.Deliver(request_, metadata=credentials("cam-1"))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert roll.counting.calls == 0
        reply = await stub.Deliver(report(1), metadata=credentials("cam-1"))
        assert reply.counted == 1


async def test_only_an_enrolled_device_delivers_and_no_more_than_a_megabyte():
    roll = ListedRoll([enrolled("cam-1"), enrolled("cam-2")])
    roll.change("cam-2", revoked=True)
    async with running_hub(roll) as hub, calls_to(hub) as stub:
        for name, code in (("cam-2", "PERMISSION_DENIED"), ("nobody", "UNAUTHENTICATED")):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Deliver(report(1), metadata=credentials(name))
            assert refused.value.code().name == code
        large = report(1)
        large.records[0].sample.request = bytes(2**20)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Deliver(large, metadata=credentials("cam-1"))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert roll.counting.calls == 0


async def test_control_is_asked_for_few_at_once_and_one_of_a_device():
    names = [f"cam-{n}" for n in range(8)]
    roll = ListedRoll([enrolled(name) for name in names])
    roll.counting.wait_s = 3600
    async with running_hub(roll) as hub, calls_to(hub) as stub:
        asked = []
        for count, name in enumerate(names[: deliveries.AT_ONCE], 1):
            asked.append(stub.Deliver(report(1), metadata=credentials(name)))
            await until(lambda count=count: roll.counting.at_once == count)
        for name, told in ((names[0], "cam-0 delivers already"), (names[-1], "Too many devices")):
            with pytest.raises(grpc.aio.AioRpcError, match=told) as refused:
                await stub.Deliver(report(1), metadata=credentials(name))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            hint = dict(refused.value.trailing_metadata() or ())["retry-after-ms"]
            assert 0 < int(hint) <= 1000
        # A device that hangs up makes room for another.
        asked[0].cancel()
        await until(lambda: roll.counting.at_once == deliveries.AT_ONCE - 1)
        roll.counting.wait_s = 0
        assert (await stub.Deliver(report(1), metadata=credentials(names[-1]))).counted == 1
        for call in asked:
            call.cancel()


async def test_those_who_deliver_are_asked_for_pauses_in_which_all_have_their_turn():
    names = [f"cam-{n}" for n in range(3)]
    now = 100.0
    taken = deliveries.Deliveries(ListedRoll(), lambda: now)
    pauses = [(await taken.take(enrolled(name), report(1))).pause_ms for name in names]
    assert pauses == [5, 10, 15]
    now += 1
    assert (await taken.take(enrolled("cam-0"), report(2))).pause_ms == 5
    slow = ListedRoll()
    slow.counting.pause_ms = 700
    assert (await deliveries.Deliveries(slow, lambda: now).take(enrolled("cam-0"), report(1))).pause_ms == 700


async def test_many_devices_that_come_at_once_are_all_counted(tmp_path: Path):
    """More than the hub takes at once: those who were refused come again."""
    names = [f"cam-{n}" for n in range(10)]
    roll = roll_of(*names)
    roll.counting.wait_s = 0.02
    async with running_hub(roll) as hub:
        spools: list[Spool] = []
        for name in names:
            spool = Spool(tmp_path / f"{name}.db", 4 * 2**20)
            await spool.open()
            await filled(spool, 130)
            spools.append(spool)
        tasks = [
            asyncio.create_task(Deliverer(spool, digest(name).hex(), AtOnce()).run(hub.devices, SITE))
            for name, spool in zip(names, spools, strict=True)
        ]
        await until(lambda: all(spool.waiting == 0 for spool in spools), 30)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for spool in spools:
            await spool.close()
    assert (roll.counting.holes, roll.counting.answered) == (0, 10 * sum(range(1, 131)))


KILLS = {1: "before", 3: "after"}
"""By the call at which the agent is killed: before it is counted, or after that and before the answer."""
if os.environ.get("TIDEGATE_KILL") == "all":
    KILLS = {call: "before" if call % 2 else "after" for call in range(1, 11)}


async def test_kill_9_amid_delivering_counts_each_record_once(tmp_path: Path):
    """At every call: TIDEGATE_KILL=all python -m pytest tests/integration/test_agent_deliver.py"""
    state = tmp_path / "cam-1"
    with DeviceState(state) as folder:
        folder.enrol(Enrolment("cam-1", "plant-7"))
        sha = folder.credential_sha256
    spool = Spool(state / "spool.db", 4 * 2**20)
    await spool.open()
    await filled(spool, 320)
    await spool.close()
    roll = ListedRoll([enrolled("cam-1")])
    roll.change("cam-1", credential_sha256=sha)
    agents: list[AgentProcess] = []

    def kill_at(moment: str) -> Callable[[str, int], None]:
        def kill(_: str, call: int) -> None:
            if KILLS.get(call) == moment:
                os.kill(agents[-1].pid, signal.SIGKILL)

        return kill

    roll.counting.before, roll.counting.after = kill_at("before"), kill_at("after")

    def live(address: str) -> None:
        with running_agent(state, address) as agent:
            agents.append(agent)
            agent.process.wait(60)

    async with running_hub(roll) as hub:
        for _ in KILLS:
            await asyncio.to_thread(live, hub.devices)
            assert agents[-1].process.returncode == -signal.SIGKILL
        running = asyncio.create_task(asyncio.to_thread(live, hub.devices))
        await until(
            lambda: len(agents) == len(KILLS) + 1 and roll.counting.answered == sum(range(1, 321)), 60
        )
        agents[-1].process.send_signal(signal.SIGTERM)
        await running
    assert [w.answered for w in roll.counting.windows()] == list(range(1, 321))
    assert (roll.counting.holes, roll.counting.lost) == (0, 0)
    assert roll.counting.again > 0
