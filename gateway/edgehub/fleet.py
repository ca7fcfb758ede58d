"""The state of every enrolled device, and what watchers are told of it.

A watcher gets all devices first, then those that changed. What matters to a decision at once (a device
came or went, its models, a drain) goes out after GATHER_S; what merely ages (a heartbeat that says nothing
new, a reading, the number of requests) may wait LAZY_S for company. So 1,000 devices cost a watcher two
messages a second while nothing happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from edgewire.v1 import edge_pb2, inside_pb2
from gateway.registry.devices import Enrolled

GATHER_S = 0.1
LAZY_S = 0.5


@dataclass(slots=True)
class Told:
    """What a device said last, which outlives its stream; `heard_at` None: it never was here. `said`: what it
    runs it has said on its newest stream."""

    connected: bool = False
    heard_at: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    telemetry: edge_pb2.Telemetry = field(default_factory=edge_pb2.Telemetry)
    models: tuple[edge_pb2.ModelState, ...] = ()
    inflight: int = 0
    trials: tuple[edge_pb2.Trial, ...] = ()
    spooled: int = 0
    said: bool = False


@dataclass(slots=True, eq=False)
class _Watcher:
    dirty: set[str] = field(default_factory=set[str])
    some: asyncio.Event = field(default_factory=asyncio.Event)
    urgent: asyncio.Event = field(default_factory=asyncio.Event)


class Fleet:
    """`enrolled` looks a device up that may be asked (None: it is not, or no longer, part of the fleet)."""

    def __init__(
        self,
        enrolled: Callable[[str], Enrolled | None],
        names: Callable[[], Iterable[str]],
        clock: Callable[[], float],
    ) -> None:
        self._enrolled = enrolled
        self._names = names
        self._clock = clock
        self._told: dict[str, Told] = {}
        self._watchers: set[_Watcher] = set()

    def told(self, name: str) -> Told:
        """What the device said last; to be changed by whoever then calls `changed`."""
        return self._told.setdefault(name, Told())

    def joined(self, name: str, facts: Mapping[str, str]) -> None:
        told = self.told(name)
        told.connected, told.facts, told.heard_at = True, facts, self._clock()
        # What it runs now it says with its first heartbeat; until then it is not asked.
        told.models, told.said = (), False
        self.changed(name, urgent=True)

    def left(self, name: str) -> None:
        told = self.told(name)
        told.connected, told.inflight = False, 0
        self.changed(name, urgent=True)

    def beat(self, name: str, heartbeat: edge_pb2.Heartbeat) -> None:
        told = self.told(name)
        models, trials = tuple(heartbeat.models), tuple(heartbeat.trials)
        urgent = models != told.models or trials != told.trials
        told.heard_at, told.telemetry, told.models = self._clock(), heartbeat.telemetry, models
        told.trials, told.spooled = trials, heartbeat.spooled
        told.said = True
        self.changed(name, urgent=urgent)

    def busy(self, name: str, inflight: int) -> None:
        self.told(name).inflight = inflight
        self.changed(name, urgent=False)

    def changed(self, name: str, *, urgent: bool) -> None:
        for watcher in self._watchers:
            watcher.dirty.add(name)
            watcher.some.set()
            if urgent:
                watcher.urgent.set()

    def forget(self, name: str) -> None:
        """A device that is not enrolled any more."""
        self._told.pop(name, None)
        self.changed(name, urgent=True)

    async def watch(self) -> AsyncIterator[inside_pb2.Fleet]:
        """All devices, then what changed; without end."""
        watcher = _Watcher()
        self._watchers.add(watcher)
        try:
            yield self._message(self._names(), complete=True)
            while True:
                await watcher.some.wait()
                try:
                    async with asyncio.timeout(LAZY_S - GATHER_S):
                        await watcher.urgent.wait()
                except TimeoutError:
                    pass
                await asyncio.sleep(GATHER_S)
                dirty, watcher.dirty = watcher.dirty, set()
                watcher.some.clear()
                watcher.urgent.clear()
                yield self._message(dirty, complete=False)
        finally:
            self._watchers.discard(watcher)

    def _message(self, names: Iterable[str], *, complete: bool) -> inside_pb2.Fleet:
        message, now = inside_pb2.Fleet(complete=complete), self._clock()
        for name in names:
            enrolled = self._enrolled(name)
            if enrolled is None:
                if not complete:
                    message.removed.append(name)
                continue
            told = self._told.get(name) or Told()
            message.devices.add(
                name=name,
                site=enrolled.site,
                labels=enrolled.labels,
                credential_sha256=enrolled.credential_sha256,
                connected=told.connected,
                drained=enrolled.drained,
                silent_ms=0 if told.heard_at is None else max(0, round((now - told.heard_at) * 1000)),
                telemetry=told.telemetry,
                models=told.models,
                inflight=told.inflight,
                facts=told.facts,
                trials=told.trials,
                spooled=told.spooled,
            )
        return message
