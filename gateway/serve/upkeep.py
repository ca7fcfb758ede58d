"""What control does of its own accord: releases, evidence, updates, rollouts, and who follows them.

Put together here, each part driven by a tick a second of its own, so that none waits for another's store or
hub. Each keeps its own state on disk, so that a control that was killed goes on where it was.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from google.protobuf.message import DecodeError
from sqlalchemy.ext.asyncio import AsyncEngine

from edgewire.places import Place, Tier
from edgewire.v1 import edge_pb2
from gateway.analytics.consent import GATEWAY_SOURCE, Consent
from gateway.analytics.evidence import EvidenceBook
from gateway.analytics.ingest import Ingest
from gateway.analytics.samples import Samples
from gateway.control.fits import Fitting
from gateway.control.followers import Followers
from gateway.control.gauges import gauges
from gateway.control.ports import Outside
from gateway.control.releases import Releases
from gateway.control.rollouts import Rollouts
from gateway.control.update_ports import UpdatePorts
from gateway.control.updates import Updates
from gateway.core.config import Config, RolloutConfig
from gateway.core.config.updates import report_interval_s
from gateway.core.evidence import Evidence
from gateway.core.fleet import DeviceReport
from gateway.core.release import Orders, Release
from gateway.jobs.judging import measure_quality
from gateway.jobs.training import train
from gateway.serve.fleet_watch import FleetWatch
from gateway.serve.known import KnownReleases
from gateway.serve.models import Models
from gateway.store.blobs import BlobStore
from gateway.telemetry.metrics import ToldGauge
from oip.errors import OipError
from oip.reasons import Reason

TICK_S = 1.0
KEEP_EVERY_S = 300.0
DEVICE_SOURCE = "device:"
logger = logging.getLogger(__name__)


class Plane(Protocol):
    """The data plane, as control sees it. Calls raise OipError where it cannot be asked."""

    async def follow(self, release: Release) -> Mapping[str, str]: ...

    async def teach(self, model: str, teacher: str, request: bytes, allowed: str) -> Sequence[int]: ...

    async def gauges(self, rows: Sequence[ToldGauge]) -> None: ...


class Upkeep:
    """`fleet` is the hub's devices, `tell_hub` has the hub read its orders anew (raises OipError)."""

    def __init__(
        self,
        config: Config,
        state_dir: Path,
        engine: AsyncEngine,
        fleet: FleetWatch,
        tell_hub: Callable[[], Awaitable[None]],
        plane: Plane,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._plane = plane
        self.blobs = BlobStore(config.artifacts, state_dir)
        self.releases = Releases(engine, self.blobs, state_dir)
        self.known = known = KnownReleases(self.releases)
        consent = Consent(config)
        interval_s = report_interval_s(config.updates)
        self._ingest = Ingest(engine, known, consent, max(1, int(interval_s)))
        self._evidence = EvidenceBook(engine, known)
        self._fitting = Fitting(config, self.blobs)
        self.models = Models(config, self.releases, self._devices, self._fitting.fit)
        self.followers = Followers(config, self.releases.get, plane.follow)
        self.rollouts = Rollouts(
            engine,
            Outside(
                self.releases,
                self._devices,
                self._fitting.fit,
                self._of_devices,
                self.followers.of,
                self.followers.follow,
                self._plan_of,
                tell_hub,
            ),
        )
        self.updates = Updates(
            engine,
            config,
            state_dir,
            UpdatePorts(
                self.releases,
                Samples(engine, consent),
                self._evidence,
                self.rollouts,
                train,
                measure_quality,
                self.blobs.get,
                plane.teach,
                self._devices,
                self._fitting.fit,
                tell_hub,
            ),
        )
        self._ticking: list[asyncio.Task[None]] = []
        self._kept_at = 0.0

    async def start(self) -> None:
        """Read what there is and go on with it. Raises what `Releases.start` raises."""
        await self.releases.start(self._config)
        await self.rollouts.resume_all()
        await self.updates.resume_all()
        self.followers.start({**self.releases.standing(), **self.rollouts.followed()})
        self._fleet.start()
        self._ticking = [
            asyncio.create_task(_again(work), name=f"control's {work.__qualname__}")
            for work in (self.rollouts.tick, self.updates.tick, self._keep, self._tell_gauges)
        ]

    async def orders(self) -> Orders:
        """What devices are to run, try and gather."""
        return Orders(
            **self.releases.snapshot(),
            moved=self.rollouts.moved(),
            trials=self.updates.trials(),
            gather=self.updates.gather(),
            report_ms=self.updates.report_ms(),
        )

    async def deliver(self, device: str, site: str, request: bytes) -> bytes:
        """A device's records, counted once; a serialized DeliverReply. Raises OipError."""
        place = Place(Tier.DEVICE, site=site or None, device=device)
        return await self._take(DEVICE_SOURCE + device, place, request)

    async def observed(self, replica: str, place: Place, request: bytes) -> bytes:
        """The like of what answered at a place, by a data plane replica."""
        return await self._take(GATEWAY_SOURCE + replica, place, request)

    async def _take(self, source: str, place: Place, request: bytes) -> bytes:
        try:
            message = edge_pb2.DeliverRequest.FromString(request)
        except DecodeError:
            raise OipError(Reason.MALFORMED, "The records are no DeliverRequest.") from None
        return (await self._ingest.take(source, place, message)).SerializeToString()

    async def _devices(self) -> Sequence[DeviceReport]:
        await self._fitting.learn(self.releases.snapshot()["releases"].values())
        return await self._fleet.devices()

    async def _of_devices(self, model: str, version: str, since: float, until: float) -> Evidence:
        """Of devices alone: what pools and servers answer says nothing of a rollout over devices."""
        return await self._evidence.evidence(model, version, since, until, tier=Tier.DEVICE)

    def _plan_of(self, model: str) -> RolloutConfig:
        return next((u.rollout for u in self._config.updates if u.model == model), RolloutConfig())

    async def _keep(self) -> None:
        if time.monotonic() - self._kept_at >= KEEP_EVERY_S:
            self._kept_at = time.monotonic()
            await self.releases.keep(time.time())

    async def _tell_gauges(self) -> None:
        if self._config.updates:
            devices = await self._fleet.devices()
            rows = gauges(self.updates.watches.all(), self.rollouts.views(), devices)
            await self._plane.gauges(rows)


async def _again(work: Callable[[], Awaitable[None]]) -> None:
    """Each TICK_S, whatever becomes of it."""
    while True:
        try:
            await work()
        except OipError as error:
            logger.warning("%s", error.message)
        except Exception:
            logger.exception("control's tick failed")
        await asyncio.sleep(TICK_S)
