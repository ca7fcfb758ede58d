"""Control and its upkeep, while what they need is away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import tests.support.quiet_ray  # noqa: F401  # isort: skip  # before anything that uses Ray
from gateway.control import fits
from gateway.control.fits import Fitting
from gateway.core.fleet import DeviceReport
from gateway.core.place import Place, Tier
from gateway.core.release import Blob, Release, ReleaseFile, Stage
from gateway.edgehub.groups import EdgeConfig
from gateway.serve import control as module
from gateway.serve import upkeep as upkeep_module
from gateway.serve.control import Control
from gateway.serve.fleet_watch import FleetWatch
from gateway.serve.settings import Address, Listen, ReplicaSettings
from gateway.serve.upkeep import Upkeep
from gateway.store.blobs import BlobError, blob_of
from gateway.store.database import migrate, open_database
from oip.errors import OipError
from oip.reasons import Reason
from tests.support.fakes import config_of
from tests.support.reports import watched
from tests.support.tflite_models import logarithm
from tests.support.waiting import until


class Plane:
    """A data plane that takes everything."""

    async def follow(self, release: Release) -> Mapping[str, str]:
        return {}

    async def teach(self, model: str, teacher: str, request: bytes, allowed: str) -> Sequence[int]:
        return ()

    async def gauges(self, rows: Sequence[Any]) -> None:
        return


async def nobody() -> None:
    return


@contextlib.asynccontextmanager
async def upkeep_of(folder: Path) -> AsyncIterator[Upkeep]:
    migrate(folder)
    engine = open_database(folder)
    before = asyncio.all_tasks()
    try:
        yield Upkeep(watched(), folder, engine, FleetWatch(None), nobody, Plane())
    finally:
        begun = asyncio.all_tasks() - before
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        await engine.dispose()


async def test_a_control_whose_store_is_away_is_healthy_and_begins_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "bind_replica_to_loopback", lambda: None)
    anywhere = Address("127.0.0.1", 0)
    listen = Listen(anywhere, anywhere, anywhere)
    control = Control(ReplicaSettings(watched(), "r", listen, tmp_path), "f")
    upkeep = control._upkeep  # pyright: ignore[reportPrivateUsage]
    faults: list[Exception] = [
        BlobError("the store is away"),
        OSError("no disk"),
        OipError(Reason.UNAVAILABLE, "x"),
    ]
    begun: list[int] = []

    async def start() -> None:
        begun.append(len(faults))
        if faults:
            raise faults.pop(0)

    monkeypatch.setattr(upkeep, "start", start)
    await control.check_health()
    assert await control.describe() == {"failure": "the store is away"}
    assert await control.describe() == {"failure": "no disk"}
    answer = await control.standing_releases()
    assert answer == {"error": {"reason": "unavailable", "message": "x"}}
    await control.check_health()
    await until(lambda: len(begun) == 4)
    assert await control.standing_releases() == {"value": {}}
    await control.check_health()
    assert begun == [3, 2, 1, 0]


async def test_a_part_that_waits_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep_module, "TICK_S", 0.0)
    async with upkeep_of(tmp_path) as upkeep:
        ticks: list[str] = []

        async def stuck(now: float) -> None:
            ticks.append("keep")
            await asyncio.Event().wait()

        async def fails() -> None:
            ticks.append("updates")
            raise ValueError("a fault of its own")

        async def goes_on() -> None:
            ticks.append("rollouts")

        monkeypatch.setattr(upkeep.releases, "keep", stuck)
        monkeypatch.setattr(upkeep.updates, "tick", fails)
        monkeypatch.setattr(upkeep.rollouts, "tick", goes_on)
        await upkeep.start()
        await until(lambda: min(ticks.count("rollouts"), ticks.count("updates")) >= 3)
        assert ticks.count("keep") == 1


class Store:
    """Blobs of a store that is away for a while."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.away = True

    async def get(self, blob: Blob) -> bytes:
        if self.away:
            raise BlobError("the store is away")
        return self.content


async def test_what_a_file_needs_is_learnt_once_the_store_is_back() -> None:
    content, now = logarithm(), 0.0
    store: Any = Store(content)
    base = config_of()
    (model,) = (model.model_dump() for model in base.models)
    cameras = EdgeConfig(name="cameras", kind="edge")
    variants = [{"endpoint": "cameras", "artifact": "/model.tflite"}]
    config = config_of(endpoints=[*base.endpoints, cameras], models=[{**model, "variants": variants}])
    fitting = Fitting(config, store, lambda: now)
    release = Release("digits", "1", {"tflite": ReleaseFile("tflite", blob_of(content))}, 1, Stage.PASSED)
    device = DeviceReport(
        "cam-1", Place(Tier.DEVICE, site="s1", device="cam-1"), {}, True, {"runtime": "tflite-runtime 2.2.0"}
    )
    await fitting.learn([release])
    found = fitting.fit(release, device)
    assert found is not None
    assert not found.why_not
    store.away = False
    await fitting.learn([release])
    assert fitting.fit(release, device) == found
    now = fits.AGAIN_S
    await fitting.learn([release])
    known = fitting.fit(release, device)
    assert known is not None
    assert known.why_not == "what the runtime 'tflite-runtime 2.2.0' can do is not known"
