"""What a data plane process knows of its device groups, over a real hub."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from edgewire.allowed import AllowedRule, AllowedSet
from edgewire.v1 import edge_pb2, inside_pb2
from gateway.backends import _hub
from gateway.backends._fleet import Members, seen
from gateway.backends.edge import EdgeEndpoint
from gateway.core.errors import AttemptError
from gateway.core.fleet import Group
from gateway.core.place import Place, Tier
from gateway.core.ports import Permit, RemoteSpan, Surroundings
from gateway.edgehub.fleet import Fleet
from gateway.edgehub.groups import EdgeConfig
from oip.errors import OipError
from oip.reasons import Reason
from tests.support.hub import ListedRoll, Running, edge, hub_config, running_hub
from tests.support.simfleet import (
    FIXTURE_STATES,
    Given,
    SimDevice,
    SimFleet,
    active,
    digest,
    enrolled,
    run_fixture,
    secret,
)
from tests.support.triton import slow_body
from tests.support.waiting import until

DEVICES = AllowedSet((AllowedRule(tiers=frozenset({Tier.DEVICE})),))


def permit(device: str, **changes) -> Permit:
    return replace(
        Permit(DEVICES, Place(Tier.DEVICE, site="plant-7", device=device), device=device), **changes
    )


class Known:
    """Takes in what endpoints say of their groups."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.told: dict[str, int] = {}

    def take(self, name: str, group: Group) -> None:
        self.groups[name] = group
        self.told[name] = self.told.get(name, 0) + 1


@asynccontextmanager
async def endpoints(hub: Running, *configs: EdgeConfig) -> AsyncIterator[tuple[Known, list[EdgeEndpoint]]]:
    known = Known()
    around = Surroundings(hub_config(configs), Path("unused"), known.take, hub.inside)
    made = [EdgeEndpoint(config, around) for config in configs]
    for endpoint in made:
        await endpoint.start()
    try:
        yield known, made
    finally:
        for endpoint in made:
            await endpoint.close()


async def test_groups_hold_the_devices_they_select_as_they_are():
    roll = ListedRoll(
        [
            enrolled("cam-1", soc="imx8mp"),
            enrolled("cam-2", soc="rpi5"),
            enrolled("door-1", "plant-9", soc="imx8mp"),
        ]
    )
    configs = (
        edge("cameras", site="plant-7", labels={"soc": ["imx8mp", "rpi5"]}),
        edge("imx", labels={"soc": "imx8mp"}),
    )
    async with (
        running_hub(roll) as hub,
        SimFleet(hub.devices, ["cam-1", "door-1"], run_fixture, FIXTURE_STATES) as fleet,
        endpoints(hub, *configs) as (known, made),
    ):
        fleet["cam-1"].telemetry.MergeFrom(
            edge_pb2.Telemetry(battery_percent=55, temperature_c=61.5, throttled=False, inflight=3)
        )
        key = ("slow_identity", "1")
        await until(lambda: bool(known.groups.get("cameras", Group()).ready.get(key)))
        await until(lambda: len(known.groups["imx"].ready.get(key, {})) == 2)
        cameras, imx = known.groups["cameras"], known.groups["imx"]
        assert set(cameras.devices) == {"cam-1", "cam-2"}
        assert set(imx.devices) == {"cam-1", "door-1"}
        assert imx.ready[key] == {(None, "plant-7"): ("cam-1",), (None, "plant-9"): ("door-1",)}
        one = cameras.devices["cam-1"]
        assert one.place == Place(Tier.DEVICE, site="plant-7", device="cam-1")
        assert one.credential_sha256 == digest(secret("cam-1"))
        assert one.models == {("id2d_fp32", "1"), ("slow_identity", "1")}
        assert time.monotonic() - 2 < one.heard_at <= time.monotonic()
        assert not cameras.devices["cam-2"].connected
        await until(lambda: known.groups["cameras"].devices["cam-1"].battery_percent == 55)
        one = known.groups["cameras"].devices["cam-1"]
        assert (one.temperature_c, one.throttled) == (61.5, False)
        assert known.groups["imx"].devices["door-1"].throttled is None

        hub.roll.change("cam-1", drained=True)
        await hub.server.roll_changed()
        await until(lambda: known.groups["cameras"].devices["cam-1"].drained)
        assert not known.groups["cameras"].ready
        hub.roll.change("cam-1", site="plant-9", drained=False)
        await hub.server.roll_changed()
        await until(lambda: set(known.groups["cameras"].devices) == {"cam-2"})
        assert known.groups["imx"].devices["cam-1"].place.site == "plant-9"
        del hub.roll.devices["door-1"]
        await hub.server.roll_changed()
        await until(lambda: set(known.groups["imx"].devices) == {"cam-1"})
        assert len(_hub._links) == 1, "both groups share one watch"
        assert [endpoint.kind for endpoint in made] == ["edge", "edge"]
    assert not _hub._links


async def test_a_hub_that_goes_takes_every_device_along_and_brings_them_back():
    roll = ListedRoll([enrolled("cam-1")])
    key = ("slow_identity", "")
    async with running_hub(roll) as hub:
        _, port = hub.server.address
        fleet = SimFleet(hub.devices, ["cam-1"], run_fixture, FIXTURE_STATES)
        async with fleet, endpoints(hub, edge()) as (known, (endpoint,)):
            await until(lambda: bool(known.groups.get("cameras", Group()).ready.get(key)))
            assert (await endpoint.health([key], 5)).models[0].ready
            await hub.server.close(0)
            await until(lambda: not known.groups["cameras"].devices["cam-1"].connected)
            assert not known.groups["cameras"].ready
            health = await endpoint.health([key], 5)
            assert (health.up, health.detail) == (False, "the edge hub cannot be reached")
            with pytest.raises(AttemptError) as caught:
                await endpoint.infer(slow_body(0), (), 5, permit("cam-1"))
            assert (caught.value.reason, caught.value.sent) == (Reason.UNAVAILABLE, False)
            again = type(hub.server)(
                hub_config(),
                ("127.0.0.1", port),
                hub.folder / "run" / "hub.sock",
                roll,
                lambda path: path,
                0.5,
            )
            await again.start()
            await until(lambda: bool(known.groups["cameras"].ready.get(key)))
            assert await endpoint.infer(slow_body(0), (), 5, permit("cam-1"))
            await again.close(0)


@pytest.mark.parametrize(
    ("reason", "becomes", "retryable"),
    [
        ("malformed", Reason.MALFORMED, False),
        ("model_unavailable", Reason.MODEL_UNAVAILABLE, True),
        ("overloaded", Reason.OVERLOADED, True),
        ("unknown_version", Reason.UNKNOWN_VERSION, True),
        ("privacy", Reason.PRIVACY, True),
        ("internal", Reason.ENDPOINT_FAILED, False),
        ("cancelled", Reason.ENDPOINT_FAILED, False),
        ("forbidden", Reason.ENDPOINT_FAILED, False),
    ],
)
async def test_a_devices_reason_is_taken_as_far_as_it_is_a_devices_to_give(
    reason: str, becomes: Reason, retryable: bool
):
    async def fails(device: SimDevice, given: Given) -> bytes:
        raise OipError(Reason(reason), "Because of it.")

    roll = ListedRoll([enrolled("cam-1")])
    async with (
        running_hub(roll) as hub,
        SimFleet(hub.devices, ["cam-1"], fails, FIXTURE_STATES) as fleet,
        endpoints(hub, edge()) as (_, (endpoint,)),
    ):
        await until(lambda: fleet.connected == 1)
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(slow_body(0), (), 5, permit("cam-1"))
        error = caught.value
        assert (error.reason, error.retryable, error.sent) == (becomes, retryable, True)
        assert error.message == "Because of it."


async def test_permits_travel_and_spans_come_back_on_this_clock():
    told: list[RemoteSpan] = []
    seen_by_device: list[edge_pb2.Infer] = []

    async def notes(device: SimDevice, given: Given) -> bytes:
        seen_by_device.append(given.infer)
        return await run_fixture(device, given)

    roll = ListedRoll([enrolled("cam-1")])
    async with (
        running_hub(roll) as hub,
        SimFleet(hub.devices, ["cam-1"], notes, FIXTURE_STATES) as fleet,
        endpoints(hub, edge()) as (_, (endpoint,)),
    ):
        await until(lambda: fleet.connected == 1)
        began = time.monotonic()
        here = AllowedSet((AllowedRule(sites=frozenset({"plant-7"})),))
        leave = permit("cam-1", allowed=here, tell=told.append)
        await endpoint.infer(slow_body(0.1), [("traceparent", "00-abc")], 5, leave)
        (infer,) = seen_by_device
        assert (infer.allowed, infer.traceparent) == ("site=plant-7", "00-abc")
        assert 0 < infer.timeout_ms <= 5000
        (span,) = told
        assert (span.name, span.attributes) == ("tidegate.agent.infer", {"outcome": "ok"})
        assert began < span.began < span.ended < time.monotonic()
        assert span.ended - span.began >= 0.1
        for wrong, reason in (
            (permit("cam-1", allowed=AllowedSet(())), Reason.PRIVACY),
            (permit("cam-9"), Reason.UNAVAILABLE),
            (permit(""), Reason.MODEL_UNAVAILABLE),
        ):
            with pytest.raises(AttemptError) as caught:
                await endpoint.infer(slow_body(0), (), 5, wrong)
            assert (caught.value.reason, caught.value.sent) == (reason, False)
        assert fleet["cam-1"].given == 1


async def test_a_device_whose_model_differs_is_named():
    roll = ListedRoll([enrolled(f"cam-{n}") for n in range(4)])
    async with (
        running_hub(roll) as hub,
        SimFleet(hub.devices, list(roll.devices), run_fixture, FIXTURE_STATES) as fleet,
        endpoints(hub, edge()) as (known, (endpoint,)),
    ):
        odd = fleet["cam-2"]
        odd.states = (active("id2d_fp32", shape=(-1, 8)), FIXTURE_STATES[1])
        key = ("id2d_fp32", "1")
        await until(
            lambda: (
                len(known.groups.get("cameras", Group()).ready.get(key, {}).get((None, "plant-7"), ())) == 4
            )
        )

        async def detail() -> str:
            return (await endpoint.health([key, ("slow_identity", "1")], 5)).detail

        expected = "cam-2 tell other metadata of id2d_fp32 than most devices"
        for _ in range(200):
            if await detail() == expected:
                break
            await asyncio.sleep(0.02)
        assert await detail() == expected
        metadata = service_pb2.ModelMetadataResponse.FromString(
            await endpoint.model_metadata("id2d_fp32", "1", 5)
        )
        assert list(metadata.inputs[0].shape) == [-1, -1]


async def test_no_hub_is_a_group_that_is_down():
    endpoint = EdgeEndpoint(edge(), Surroundings(hub_config(), Path("unused"), lambda name, group: None))
    await endpoint.start()
    assert (await endpoint.health([], 1)).detail == "there is no edge hub here"
    with pytest.raises(AttemptError) as caught:
        await endpoint.infer(b"", (), 1, permit("cam-1"))
    assert caught.value.message == "Endpoint cameras has no edge hub here."
    await endpoint.close()


async def test_a_thousand_devices_are_told_a_few_times_a_second():
    """Every device beats once and some come and go: what is sent and built is bounded by time, not by
    the number of devices."""
    names = [f"cam-{n}" for n in range(1000)]
    devices = {name: enrolled(name) for name in names}
    fleet = Fleet(devices.get, lambda: names, time.monotonic)
    for name in names:
        fleet.joined(name, {"os": "sim"})
        fleet.beat(name, edge_pb2.Heartbeat(models=FIXTURE_STATES))
    members, known = Members(edge()), {}
    messages: list[inside_pb2.Fleet] = []
    spent: list[float] = []

    async def watch() -> None:
        async for message in fleet.watch():
            messages.append(message)
            before = time.process_time()
            known.update({told.name: seen(told, time.monotonic()) for told in message.devices})
            members.take_in([told.name for told in message.devices], known)
            members.group()
            spent.append(time.process_time() - before)

    watching = asyncio.create_task(watch())
    began = time.monotonic()
    for turn in range(50):
        for name in names[turn * 20 : turn * 20 + 20]:
            fleet.beat(name, edge_pb2.Heartbeat(models=FIXTURE_STATES))
        if turn == 25:
            fleet.left("cam-3")
            asked = len(messages)
        await asyncio.sleep(0.02)
    await until(lambda: len(members.group().ready[("id2d_fp32", "1")][(None, "plant-7")]) == 999)
    elapsed = time.monotonic() - began
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert messages[0].complete
    assert len(messages[0].devices) == 1000
    assert len(messages) - 1 <= elapsed / 0.1
    assert any("cam-3" in [d.name for d in m.devices] for m in messages[asked : asked + 2])
    print(f"{len(messages)} messages in {elapsed:.2f} s, {1000 * max(spent):.1f} ms of CPU at most for one")
