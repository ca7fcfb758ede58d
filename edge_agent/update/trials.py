"""Trials: models that are tried and timed beside what serves, and never serve themselves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_agent.faults import unexpected
from edge_agent.runtime import RuntimeSettings
from edge_agent.runtime.launch import TrialFailed
from edge_agent.runtime.measure import Speed, measure
from edge_agent.update.bringing import Bringing
from edge_agent.update.decide import retry_s
from edge_agent.update.disk import Disk
from edge_agent.update.fetch import NotBrought
from edge_agent.update.plan import Slot, Target
from edge_agent.update.serving import artifact_of
from edgewire.v1 import edge_pb2
from oip.names import shown

_States = edge_pb2.ModelState.State


@dataclass(eq=False, slots=True)
class _Trial:
    target: Target
    said: edge_pb2.Trial = field(default_factory=edge_pb2.Trial)
    job: asyncio.Task[None] | None = None

    @property
    def ended(self) -> bool:
        return self.job is None or self.job.done()

    def is_at(self, state: edge_pb2.ModelState.State, reason: str = "") -> None:
        """What it is at, in place of all that was said before."""
        self.said = edge_pb2.Trial(
            model=self.target.model,
            version=self.target.version,
            digest=self.target.digest,
            state=state,
            reason=reason,
        )


class Trials:
    """The trials that the hub lists. `active` gives what serves of a model; `forgotten` is called when
    files are no longer needed. One is timed at a time, so that none is slowed by another."""

    def __init__(
        self,
        bringing: Bringing,
        disk: Disk,
        settings: RuntimeSettings,
        active: Callable[[str], Slot | None],
        forgotten: Callable[[], None],
    ) -> None:
        self._bringing = bringing
        self._disk = disk
        self._settings = settings
        self._active = active
        self._forgotten = forgotten
        self._turn = asyncio.Lock()
        self._trials: dict[Target, _Trial] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def desire(self, targets: Sequence[Target]) -> None:
        """Try these and no others. One that was listed before goes on as it is; one that failed by what
        may have changed since is tried again."""
        before, self._trials = self._trials, {}
        for target in targets:
            known = before.pop(target, None) or self._trials.get(target)
            if known is not None and known.said.state == _States.FAILED and not known.ended:
                # It waits for another time, and a hub that speaks is one to ask.
                self._end(known)
                known = None
            self._trials[target] = known or self._begun(target)
        for trial in before.values():
            self._end(trial)

    def said(self) -> list[edge_pb2.Trial]:
        return [trial.said for trial in self._trials.values()]

    def kept(self) -> frozenset[str]:
        """Digests of their files."""
        return frozenset(digest for target in self._trials for digest, _ in target.files)

    async def close(self) -> None:
        self.desire(())
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _begun(self, target: Target) -> _Trial:
        trial = _Trial(target)
        trial.is_at(_States.FETCHING)
        trial.job = asyncio.create_task(self._run(trial), name=f"tidegate trial {target.model}")
        return trial

    def _end(self, trial: _Trial) -> None:
        if trial.job is not None and not trial.ended:
            trial.job.cancel()
            self._ending.add(trial.job)
            trial.job.add_done_callback(self._ended)

    def _ended(self, job: asyncio.Task[Any]) -> None:
        self._ending.discard(job)
        self._forgotten()

    async def _run(self, trial: _Trial) -> None:
        try:
            if await self._brought(trial):
                async with self._turn:
                    await self._timed(trial)
        except Exception as fault:
            trial.is_at(_States.FAILED, f"{unexpected(fault, 'a trial').message.capitalize()}.")

    async def _brought(self, trial: _Trial) -> bool:
        tries = 0
        while True:
            try:
                active = self._active(trial.target.model)
                await self._bringing.verify(trial.target, active, trial=True)
                await self._bringing.fetch_to_try(trial.target)
                return True
            except NotBrought as fault:
                trial.is_at(_States.FAILED, str(fault))
                if not fault.again:
                    return False
            await asyncio.sleep(retry_s(tries) * random.uniform(0.8, 1.2))
            tries += 1

    async def _timed(self, trial: _Trial) -> None:
        target = trial.target
        trial.is_at(_States.TRYING)
        try:
            speed = await measure(artifact_of(target, self._disk), self._settings)
        except TrialFailed as fault:
            model = f"Model {shown(target.model)} version {target.version}"
            trial.is_at(_States.FAILED, f"{model} does not work on this device: {fault}.")
            return
        active = await self._speed_of(self._active(target.model))
        trial.is_at(_States.ACTIVE)
        trial.said.latency_p50_ms, trial.said.latency_p95_ms, trial.said.runs = speed
        trial.said.active_p50_ms, trial.said.active_p95_ms, _ = active

    async def _speed_of(self, active: Slot | None) -> Speed:
        """Of what serves, in a worker beside its own; zeros where nothing does."""
        if active is None:
            return Speed(0.0, 0.0, 0)
        try:
            return await measure(artifact_of(active.target, self._disk), self._settings)
        except TrialFailed:
            return Speed(0.0, 0.0, 0)
