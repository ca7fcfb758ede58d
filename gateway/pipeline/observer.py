"""What this replica sees of models that are kept fit, where nobody else reports of them.

Devices and upstream gateways report of themselves; pools, Triton and other OIP endpoints do not. Every
attempt there is counted, with its latency, under the version that answered. Of a few a second, signals are
taken too (edgewire.signals), in a thread beside the loop that falls behind rather than holding anything up;
and only if the request may be at the gateway's own place. Requests whose answer was unsure are kept as
samples where that is wanted and they may also go where they are trained on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from edgewire.allowed import AllowedSet
from edgewire.gathering import Tally
from edgewire.signals import CONFIDENCE, output_values
from edgewire.v1 import edge_pb2
from gateway.core.config import Config
from gateway.core.config.updates import UpdateConfig, report_interval_s
from gateway.core.decision import VariantKey
from gateway.core.place import Place
from gateway.pipeline.outgoing import Outgoing
from oip.errors import OipError
from oip.infer import parse_request, parse_response
from oip.reasons import Reason
from oip.scan import scan_response
from oip.signature import Signature

logger = logging.getLogger(__name__)

LOOKS_PER_S = 4.0
"""Requests of a model, each second, whose values are looked at."""
WAITING_BYTES = 2**23
"""Requests and answers that wait to be looked at; more are only counted."""
MOST_BYTES = 2**22
"""A request and its answer together that are looked at: larger ones take the thread too long."""
KEPT_BYTES = 2**23
"""Records of one place that wait for control."""
MOST_VERSIONS = 64
"""Told apart between two reports: an endpoint may call its versions what it likes."""
CLOSE_S = 2.0
DAY_S = 86400.0
ELSEWHERE = frozenset({"edge", "gateway"})
"""Kinds of endpoints that report of themselves."""
_ANY = Signature((), ())
Edges = Mapping[str, tuple[float, ...]]


class Desk(Protocol):
    """Control, as a replica sees it. Calls raise OipError where it cannot be reached."""

    async def edges(self, model: str, version: str) -> Edges | None:
        """In which bins a version's signals are counted; None for one that is not released."""
        ...

    async def deliver(self, place: Place, request: edge_pb2.DeliverRequest) -> edge_pb2.DeliverReply:
        """Records of what answered at a place, to be counted once."""
        ...


class Seen(NamedTuple):
    """What is told apart."""

    model: str
    version: str
    place: Place


@dataclass(frozen=True, slots=True)
class _Look:
    """A request and its answer to be looked at. `sample`: where it may go, as text, if it may be kept."""

    seen: Seen
    took_s: float
    body: bytes = field(repr=False)
    response: bytes = field(repr=False)
    sample: str = ""

    @property
    def size(self) -> int:
        return len(self.body) + len(self.response)


class Observer:
    """Counts for one replica and reports to `desk`. Lives on one loop."""

    def __init__(self, config: Config, desk: Desk, clock: Callable[[], float] = time.monotonic) -> None:
        self._desk = desk
        self._report_s = report_interval_s(config.updates)
        self._clock = clock
        self._gateway = config.gateway.location.place
        self._updates = {update.model: update for update in config.updates}
        self._endpoints = {e.name for e in config.endpoints if e.kind not in ELSEWHERE}
        self._counts: dict[Seen, Tally] = {}
        self._edges: dict[tuple[str, str], Edges] = {}
        self._served: dict[VariantKey, str] = {}
        self._look_at: dict[str, float] = {}
        self._waiting_bytes = 0
        self._outgoing: dict[Place, Outgoing] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tidegate-observer")
        self._looker = _Looker(self._updates, clock)
        self._began = clock()
        self._away = False
        self._closing = asyncio.Event()
        self._reporting: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._reporting = asyncio.create_task(self._report_on(), name="report observations")

    async def close(self) -> None:
        """Report what there is, if control hears it at once."""
        self._closing.set()
        if self._reporting is not None:
            _, late = await asyncio.wait({self._reporting}, timeout=CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def ended(
        self,
        model: str,
        key: VariantKey,
        place: Place,
        allowed: AllowedSet,
        took_s: float,
        body: bytes,
        response: bytes | None,
        failed: Reason | None,
    ) -> None:
        """An attempt ended: with a response, or as it `failed`. `allowed` is where its data may go."""
        update = self._updates.get(model)
        if update is None or key.endpoint not in self._endpoints:
            return
        if response is None:
            version = self._served.get(key, key.version)
            if failed is not None and version and (tally := self._tally(Seen(model, version, place))):
                tally.failed(failed.value)
            return
        version = self._served[key] = scan_response(response).model_version or key.version
        seen = Seen(model, version, place)
        look = self._look(seen, update, allowed, took_s, body, response)
        if look is not None:
            self._queue(look)
        elif tally := self._tally(seen):
            tally.answered(took_s, {}, {}, allowed=False)

    async def report(self) -> None:
        """Put what was counted since the last time to what waits, and hand that over as far as control
        takes it."""
        now = self._clock()
        took_ms = round((now - self._began) * 1000)
        self._began = now
        counted, self._counts = self._counts, {}
        windows = [(seen, tally.take(took_ms)) for seen, tally in counted.items()]
        looked, samples = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._looker.take, took_ms
        )
        for seen, window in (*windows, *looked):
            if window is not None:
                self._put(seen.place, edge_pb2.Record(window=window), now)
        for seen, sample in samples:
            self._put(seen.place, edge_pb2.Record(sample=sample), now)
        try:
            await self._learn({(seen.model, seen.version) for seen, _ in (*windows, *looked)})
            for place, outgoing in self._outgoing.items():
                await self._deliver(place, outgoing)
            self._away = False
        except OipError as error:
            if not self._away:
                logger.warning("control takes no reports: %s; they wait", error.message)
            self._away = True

    async def _report_on(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._report_s):
                    await self._closing.wait()
            last = self._closing.is_set()
            await self.report()
            if last:
                return

    async def _learn(self, seen: set[tuple[str, str]]) -> None:
        """The bins of versions that were not known before."""
        for model, version in seen - self._edges.keys():
            edges = await self._desk.edges(model, version)
            if edges is None:
                continue
            gone = next((known for known in self._edges if known not in seen), None)
            if len(self._edges) >= MOST_VERSIONS and gone is not None:
                del self._edges[gone]
            if len(self._edges) < MOST_VERSIONS:
                self._edges[model, version] = edges

    async def _deliver(self, place: Place, outgoing: Outgoing) -> None:
        while (request := outgoing.front(self._clock())) is not None:
            waited = len(outgoing)
            reply = await self._desk.deliver(place, request)
            outgoing.counted(reply.counted)
            if len(outgoing) == waited:
                return
            if outgoing:
                await asyncio.sleep(reply.pause_ms / 1000)

    def _put(self, place: Place, record: edge_pb2.Record, now: float) -> None:
        if place not in self._outgoing:
            self._outgoing[place] = Outgoing(secrets.token_hex(16), KEPT_BYTES)
        self._outgoing[place].put(record, now)

    def _tally(self, seen: Seen) -> Tally | None:
        found = self._counts.get(seen)
        if found is None and len(self._counts) < MOST_VERSIONS:
            found = self._counts[seen] = Tally(seen.model, seen.version, "", {})
        return found

    def _look(
        self,
        seen: Seen,
        update: UpdateConfig,
        allowed: AllowedSet,
        took_s: float,
        body: bytes,
        response: bytes,
    ) -> _Look | None:
        """What to look at of an answer; None for nothing."""
        now, size = self._clock(), len(body) + len(response)
        edges = self._edges.get((seen.model, seen.version))
        if edges is None or now < self._look_at.get(seen.model, now) or not allowed.allows(self._gateway):
            return None
        if size > MOST_BYTES or self._waiting_bytes + size > WAITING_BYTES:
            return None
        self._look_at[seen.model] = now + 1 / LOOKS_PER_S
        return _Look(seen, took_s, body, response, _sample_allowed(update, allowed))

    def _queue(self, look: _Look) -> None:
        self._waiting_bytes += look.size
        edges = self._edges[look.seen.model, look.seen.version]
        done = asyncio.get_running_loop().run_in_executor(self._thread, self._looker.look, look, edges)
        done.add_done_callback(lambda _: self._looked(look.size))

    def _looked(self, size: int) -> None:
        self._waiting_bytes -= size


class _Looker:
    """The thread's side: everything here is used by it alone."""

    def __init__(self, updates: Mapping[str, UpdateConfig], clock: Callable[[], float]) -> None:
        self._updates = updates
        self._clock = clock
        self._tallies: dict[Seen, Tally] = {}
        self._samples: list[tuple[Seen, edge_pb2.Sample]] = []
        self._taken: dict[str, tuple[float, int]] = {}

    def look(self, look: _Look, edges: Edges) -> None:
        seen = look.seen
        tally = self._tallies.setdefault(seen, Tally(seen.model, seen.version, "", edges))
        try:
            inputs, outputs = parse_request(look.body, _ANY).inputs, parse_response(look.response)
        except OipError:
            tally.answered(look.took_s, {}, {}, allowed=False)
            return
        tally.answered(look.took_s, inputs, outputs, allowed=True)
        if look.sample:
            confidence = output_values(outputs).get(CONFIDENCE)
            samples = self._updates[seen.model].samples
            least = 1.0 if confidence is None else float(confidence.min())
            if least < samples.confidence_below and self._room(seen.model, samples.max_per_day):
                sample = edge_pb2.Sample(
                    model=seen.model,
                    version=seen.version,
                    request=look.body,
                    confidence=least,
                    allowed=look.sample,
                )
                self._samples.append((seen, sample))

    def take(
        self, took_ms: int
    ) -> tuple[list[tuple[Seen, edge_pb2.Window | None]], list[tuple[Seen, edge_pb2.Sample]]]:
        windows = [(seen, tally.take(took_ms)) for seen, tally in self._tallies.items()]
        samples, self._samples = self._samples, []
        self._tallies.clear()
        return windows, samples

    def _room(self, model: str, max_per_day: int) -> bool:
        """Whether the model's day has room for one sample more."""
        now = self._clock()
        began, taken = self._taken.get(model, (now, 0))
        if now - began >= DAY_S:
            began, taken = now, 0
        self._taken[model] = (began, taken + 1)
        return taken < max_per_day


def observed(config: Config) -> bool:
    """Whether there is anything to observe: a model under `updates` with a variant that nobody reports of."""
    names = {update.model for update in config.updates}
    silent = {endpoint.name for endpoint in config.endpoints if endpoint.kind not in ELSEWHERE}
    return any(m.name in names and any(v.endpoint in silent for v in m.variants) for m in config.models)


def _sample_allowed(update: UpdateConfig, allowed: AllowedSet) -> str:
    """Where a request may go, as text, if it may be kept as a sample; "" where not."""
    wanted = update.samples.collect != "none" and update.train is not None
    if not wanted or update.train is None or not allowed.allows(update.train.location.place):
        return ""
    try:
        return allowed.encode()
    except ValueError:
        return ""
