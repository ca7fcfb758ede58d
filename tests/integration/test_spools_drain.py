"""Devices that come back with spools of days, beside 200 others that only say that they are there."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from edge_agent.link.deliver import Deliverer
from edge_agent.spool import Spool
from edgewire.places import Place, Tier
from edgewire.v1 import edge_pb2
from gateway.edgehub.streams import Stream
from tests.support.hub import ListedRoll, running_hub
from tests.support.processes import source_env
from tests.support.simfleet import SimFleet, enrolled, run_fixture, secret
from tests.support.waiting import until

OTHERS = 200
DRAINING = 20
RECORDS = 5_000
"""Of each."""
HEARTBEAT_S = 0.5
BEFORE_S = 4.0


class Beats:
    """When each device was heard, as the hub hears it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard: dict[str, list[float]] = {}
        plain = Stream.receive

        def receive(stream: Stream, message: edge_pb2.DeviceMessage) -> None:
            if message.HasField("heartbeat"):
                self.heard.setdefault(stream.device, []).append(time.monotonic())
            plain(stream, message)

        monkeypatch.setattr(Stream, "receive", receive)

    def lateness(self, began: float, ended: float) -> list[float]:
        """Ascending, in seconds: how much longer than the interval each device was silent."""
        found: list[float] = []
        for instants in self.heard.values():
            at = [began, *(instant for instant in instants if began <= instant <= ended), ended]
            found += [b - a - HEARTBEAT_S for a, b in pairwise(at)]
        return sorted(found)


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    made = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        *arguments,
        env=source_env(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield made
    finally:
        if made.returncode is None:
            made.kill()
        await made.wait()


@pytest.mark.quiet
async def test_draining_spools_delays_nobodys_heartbeat(monkeypatch: pytest.MonkeyPatch):
    """100,000 records from twenty devices at once, each as fast as it may; what the hub hears of the others then is
    held against what it heard of them for as long before."""
    others = [f"other-{n}" for n in range(OTHERS)]
    draining = [f"drains-{n}" for n in range(DRAINING)]
    roll = ListedRoll([enrolled(name) for name in (*others, *draining)])
    # A hub keeps none of them either, and collecting a hundred thousand objects takes a while.
    roll.counting.keeps = False
    beats = Beats(monkeypatch)
    async with (
        running_hub(roll, heartbeat_s=HEARTBEAT_S) as hub,
        SimFleet(hub.devices, others, run_fixture) as fleet,
        process(hub.devices, json.dumps(draining)) as drains,
    ):
        assert drains.stdout is not None
        assert drains.stdin is not None
        assert await drains.stdout.readline() == b"filled\n"
        await until(lambda: fleet.connected == OTHERS, 60)
        began = time.monotonic()
        await asyncio.sleep(BEFORE_S)
        before = beats.lateness(began, time.monotonic())
        began = time.monotonic()
        drains.stdin.write(b"go\n")
        assert await drains.stdout.readline() == b"drained\n"
        took_s = time.monotonic() - began
        during = beats.lateness(began, time.monotonic())
        assert [device.connects for device in fleet.devices.values()] == [1] * OTHERS
    assert roll.counting.answered == DRAINING * RECORDS
    assert (roll.counting.holes, roll.counting.lost, roll.counting.again) == (0, 0, 0)
    worst, usual = during[-1], before[-1]
    print(
        f"{DRAINING * RECORDS} records in {took_s:.1f} s; heartbeats late at most {usual * 1000:.0f} ms before, "
        f"{worst * 1000:.0f} ms meanwhile; 99 % {late(before) * 1000:.0f} and {late(during) * 1000:.0f} ms"
    )
    assert late(during) < late(before) + HEARTBEAT_S / 5
    assert worst < usual + HEARTBEAT_S / 2


def late(ascending: list[float]) -> float:
    return ascending[len(ascending) * 99 // 100]


async def drain(folder: Path, hub: str, names: list[str]) -> None:
    """Fill a spool for each, wait for the word, and deliver them all."""
    spools: list[Spool] = []
    for name in names:
        spool = Spool(folder / f"{name}.db", 16 * 2**20)
        await spool.open()
        for number in range(RECORDS):
            window = edge_pb2.Window(
                model="digits",
                version="2",
                digest="sha256:" + "a" * 64,
                took_ms=60_000,
                answered=1,
                latency={number % 300: 1},
            )
            window.signals.add(name="output.confidence", bins=1, counts=[number] * 20)
            spool.append(edge_pb2.Record(window=window))
            if not number % 500:
                await spool.flush()
        await spool.flush()
        spools.append(spool)
    print("filled", flush=True)
    assert await asyncio.to_thread(sys.stdin.readline) == "go\n"
    here = Place(Tier.SITE, site="plant-7")
    tasks = [
        asyncio.create_task(Deliverer(spool, secret(name), Random()).run(hub, here))
        for name, spool in zip(names, spools, strict=True)
    ]
    await until(lambda: not any(spool.waiting for spool in spools), 120)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for spool in spools:
        await spool.close()
    print("drained", flush=True)


if __name__ == "__main__":
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=shared) as made:
        asyncio.run(drain(Path(made), sys.argv[1], json.loads(sys.argv[2])))
