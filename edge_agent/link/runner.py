"""Keeps a stream to a hub up for as long as the agent lives."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from random import Random

import edge_agent
from edge_agent.faults import unexpected
from edge_agent.link import client
from edge_agent.link.client import CallEnded, EnrolmentRefused
from edge_agent.link.deliver import Deliverer
from edge_agent.link.dialing import Dialing, Setback
from edge_agent.link.session import Session, Welcomed
from edge_agent.link.stream import Stream, Telemetry
from edge_agent.ports import Hub, Models
from edge_agent.spool import Spool
from edge_agent.state import DeviceState, Enrolment, StateError
from edgewire.places import Place, Tier
from edgewire.v1 import edge_pb2
from oip.held import BodyBudget

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """`hubs` are addresses, tried in turn. `token` and `device` (the name to ask for) are for enrolling,
    "" where there is none. `facts` are for people: what the device is."""

    hubs: Sequence[str]
    token: str = field(default="", repr=False)
    device: str = ""
    max_body_bytes: int = 64 * 2**20
    facts: Mapping[str, str] = field(default_factory=dict[str, str])


class Link:
    """Serves `models` to whichever hub takes this device, and delivers `spool` to it. Lives on one loop; `rng`
    spreads reconnects."""

    def __init__(
        self,
        settings: LinkSettings,
        state: DeviceState,
        models: Models,
        budget: BodyBudget,
        telemetry: Telemetry,
        spool: Spool,
        rng: Random | None = None,
    ) -> None:
        self._settings = settings
        self._state = state
        self._models = models
        self._budget = budget
        self._telemetry = telemetry
        self._spool = spool
        rng = rng or Random()
        self._dialing = Dialing(settings.hubs, rng)
        self._deliverer = Deliverer(spool, state.credential, rng)
        self._hub = settings.hubs[0]
        self._stream: Stream | None = None
        self._up_since: float | None = None
        self._leaving = asyncio.Event()
        self._told = ""

    @property
    def connected(self) -> bool:
        """Whether a hub has welcomed the device and the stream is up."""
        return self._up_since is not None

    async def enrol(self) -> None:
        """Enrol with the hub whose turn it is, if that is still to be done and there is a token. Raises
        EnrolmentRefused, and CallEnded when the hub could not be asked or the enrolment not be kept."""
        if self._state.enrolment is not None or not self._settings.token:
            return
        hub = self._dialing.hub
        enrolment = await client.enrol(hub, self._state, self._settings.token, self._settings.device)
        try:
            self._state.enrol(enrolment)
        except StateError as error:
            # The hub answers the same when it is asked again, so nothing is lost.
            raise CallEnded(Setback.UNKNOWN, 0.0, f"enrolled this device, but {error}") from None
        logger.info("enrolled as %s at site %s", enrolment.device, enrolment.site)

    async def run(self) -> None:
        """Enrol if need be, connect, serve, and connect again. Returns after `drain`, and at once for a
        device that has neither enrolled nor a token."""
        while not self._leaving.is_set():
            try:
                await self.enrol()
                if self._state.enrolment is None:
                    logger.warning("not enrolled, so no gateway uses this device: run once with --token")
                    return
                await self._serve(self._state.enrolment)
                return
            except EnrolmentRefused as refused:
                end = CallEnded(Setback.REVOKED, 0.0, f"refused to enrol this device: {refused}")
            except CallEnded as ended:
                end = ended
            except Exception as error:
                unexpected(error, "the link")
                end = CallEnded(Setback.UNREACHABLE, 0.0, "was left, because the agent failed inside")
            await self._pause(end)

    async def drain(self, grace_s: float) -> None:
        """Take no more inferences, give those that run `grace_s` seconds, and end the stream."""
        self._leaving.set()
        if self._stream is not None:
            await self._stream.drain(grace_s)

    async def fetch(self, digest: str, offset: int) -> AsyncGenerator[bytes, None]:
        """edge_agent.ports.Fetch, from the hub that welcomed the device last."""
        async with aclosing(client.fetch(self._hub, self._state.credential, digest, offset)) as pieces:
            async for piece in pieces:
                yield piece

    async def metadata(self, name: str) -> AsyncGenerator[bytes, None]:
        """edge_agent.ports.Metadata, from the hub that welcomed the device last."""
        async with aclosing(client.metadata(self._hub, self._state.credential, name)) as pieces:
            async for piece in pieces:
                yield piece

    async def _serve(self, enrolment: Enrolment) -> None:
        hub = self._dialing.hub
        place = Place(Tier.DEVICE, site=enrolment.site, device=enrolment.device)
        hello = edge_pb2.Hello(agent_version=edge_agent.__version__, facts=self._settings.facts)
        session = Session(place, hello, max_body_bytes=self._settings.max_body_bytes, budget=self._budget)

        delivering: list[asyncio.Task[None]] = []

        def welcomed(by: Welcomed) -> Hub:
            self._hub = hub
            self._up_since = time.monotonic()
            self._tell(logging.INFO, f"connected to gateway {by.gateway!r} at {hub}")
            delivering.append(
                asyncio.create_task(self._deliverer.run(hub, by.place), name="tidegate deliver")
            )
            return Hub(self.fetch, self.metadata, place, by.place, enrolment.root, self._state.pin)

        self._stream = Stream(session, self._models, self._telemetry, lambda: self._spool.waiting, welcomed)
        try:
            await self._stream.run(hub, self._state.credential)
        finally:
            self._stream = None
            for task in delivering:
                task.cancel()
            await asyncio.gather(*delivering, return_exceptions=True)

    async def _pause(self, end: CallEnded) -> None:
        """Say what happened, once, and wait until it is time to try again."""
        hub = self._dialing.hub
        if self._up_since is None:
            wait = self._dialing.failed(end.setback, end.hint_s)
        else:
            lived = time.monotonic() - self._up_since
            wait = self._dialing.lost(lived, end.setback, end.hint_s)
        self._up_since = None
        self._tell(logging.WARNING, f"the hub at {hub} {end.words}; answering locally, and trying again")
        try:
            async with asyncio.timeout(wait):
                await self._leaving.wait()
        except TimeoutError:
            return

    def _tell(self, level: int, message: str) -> None:
        """Log what is new: a hub that is away for days is one line, not thousands."""
        if message != self._told:
            logger.log(level, "%s", message)
            self._told = message
