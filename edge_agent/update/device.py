"""The models of a device: carries out what `decide` says, and answers requests with what serves."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from edge_agent.faults import unexpected
from edge_agent.ports import Hub, Observer, Served
from edge_agent.runtime import RuntimeSettings
from edge_agent.runtime.launch import TrialFailed
from edge_agent.update import decide, events
from edge_agent.update.bringing import Bringing, NoHub
from edge_agent.update.disk import Disk, is_full
from edge_agent.update.fetch import NotBrought
from edge_agent.update.plan import Phase, Slot, State, Target, kept, with_active
from edge_agent.update.serving import Serving, serving, state_of
from edge_agent.update.trials import Trials
from edgewire.allowed import NOTHING
from edgewire.v1 import edge_pb2
from oip.errors import OipError
from oip.names import shown, version_fault
from oip.reasons import Reason
from oip.scan import scan_request

_log = logging.getLogger("tidegate.agent")

MAX_MODELS = 256
"""The most that a device is to run, and to try; of a longer list the first count."""
LOADING = max(2, os.cpu_count() or 1)
"""Models that are loaded and tried at once: each takes a process and its memory."""
TRUST = "trust"
"""The folder of the signed metadata."""
_INSIDE = "The agent failed inside; its log says where."


class DeviceModels:
    """`ports.Models` over worker processes. `folder` is the agent's own; it is made where it is missing.

    Everything runs on the loop that `start` runs on.
    """

    def __init__(
        self, folder: Path, settings: RuntimeSettings | None = None, observer: Observer | None = None
    ) -> None:
        self._observer = observer
        self._settings = settings or RuntimeSettings()
        self._disk = Disk(folder)
        self._bringing = Bringing(self._disk, folder / TRUST, self._settings.max_artifact_mb * 2**20)
        self._trials = Trials(self._bringing, self._disk, self._settings, self._active, self._sweep)
        self._state = State()
        self._loading = asyncio.Semaphore(LOADING)
        self._serving: dict[str, Serving] = {}
        self._tried: dict[str, Serving] = {}
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._leaving: list[Serving] = []
        """What serves no longer and still has requests."""
        self._closed = False

    async def start(self) -> None:
        """Bring back what served last, as far as it still works."""
        self._state = await asyncio.to_thread(self._disk.load)
        self._happened(events.Started())
        while restoring := [
            job
            for name, plan in self._state.plans.items()
            if plan.phase is Phase.RESTORING and (job := self._jobs.get(name)) and not job.done()
        ]:
            await asyncio.wait(restoring)

    async def close(self) -> None:
        self._happened(events.Stopping())
        self._closed = True
        entries = [*self._serving.values(), *self._tried.values(), *self._leaving]
        probations = [entry.probation for entry in entries if entry.probation is not None]
        jobs = [*self._jobs.values(), *self._ending, *probations]
        for job in jobs:
            job.cancel()
        await self._trials.close()
        await self._bringing.close()
        await asyncio.gather(*jobs, return_exceptions=True)
        self._serving, self._tried = {}, {}
        await asyncio.gather(*(entry.served.close() for entry in entries))

    def desire(self, desired: edge_pb2.Desired, hub: Hub) -> None:
        """As `ports.Models.desire`."""
        if self._closed:
            return
        if self._observer is not None:
            self._observer.desire(desired, hub.there)
        self._bringing.hub = hub
        self._trials.desire(_targets(desired.trials, "to be tried on"))
        root = hashlib.sha256(hub.root).hexdigest() if hub.root else ""
        self._happened(events.Desired(_targets(desired.models, "of"), root))

    async def infer(self, request: bytes, timeout_s: float, asked: str | None = NOTHING) -> bytes:
        """As `ports.Models.infer`."""
        view = scan_request(request)
        entry = self._serves(view.model_name, view.model_version)
        if self._observer is None:
            return await entry.served.infer(request, timeout_s)
        served = Served(entry.target.model, entry.target.version, entry.target.digest)
        return await self._observer.observe(
            served, request, asked, timeout_s, lambda seen: entry.served.infer(request, timeout_s, seen)
        )

    def metadata(self, model: str, version: str) -> bytes:
        return self._serves(model, version).metadata

    def config(self, model: str, version: str) -> bytes:
        return self._serves(model, version).config

    def ready(self, model: str, version: str) -> bool:
        try:
            return self._serves(model, version).served.ready
        except OipError as fault:
            if fault.reason is Reason.MODEL_UNAVAILABLE:
                return False
            raise

    @property
    def inflight(self) -> int:
        return sum(entry.served.inflight for entry in (*self._serving.values(), *self._leaving))

    def states(self) -> list[edge_pb2.ModelState]:
        """As `ports.Models.states`."""
        return [state_of(name, plan, self._serving.get(name)) for name, plan in self._state.plans.items()]

    def trials(self) -> list[edge_pb2.Trial]:
        """As `ports.Models.trials`."""
        return self._trials.said()

    def _serves(self, model: str, version: str) -> Serving:
        entry = self._serving.get(model)
        if entry is None:
            plan = self._state.plans.get(model)
            if plan is None:
                raise OipError(
                    Reason.UNKNOWN_MODEL, f"Request for unknown model: {shown(model)} is not found"
                )
            why = plan.reason or f"it is {plan.phase}."
            raise OipError(
                Reason.MODEL_UNAVAILABLE, f"Model {shown(model)} is not available on this device: {why}"
            )
        if (fault := version_fault(version)) is not None:
            raise OipError(Reason.MALFORMED, fault)
        if version and version != entry.target.version:
            raise OipError(
                Reason.UNKNOWN_VERSION,
                f"Request for unknown model: {shown(model)} version {shown(version)[1:-1]} is not found",
            )
        return entry

    def _active(self, model: str) -> Slot | None:
        plan = self._state.plans.get(model)
        return None if plan is None else plan.active

    def _happened(self, event: events.Event) -> None:
        """Take a step, and see its commands done or begun."""
        if self._closed:
            return
        self._state, commands = decide.step(self._state, event)
        for command in commands:
            self._do(command)

    def _do(self, command: events.Command) -> None:
        match command:
            case events.Restore(target):
                self._begin(
                    partial(self._restore, target), events.RestoreFailed(target, _INSIDE, damaged=False)
                )
            case events.Verify(target):
                self._begin(partial(self._verify, target), events.FetchFailed(target, _INSIDE))
            case events.Fetch(target):
                self._begin(partial(self._fetch, target), events.FetchFailed(target, _INSIDE))
            case events.Try(target):
                self._begin(partial(self._try, target), events.TryFailed(target, _INSIDE))
            case events.Wait(target, seconds):
                self._begin(partial(self._wait, target, seconds), events.RetryDue(target))
            case events.Commit(target):
                self._commit(target)
            case events.Swap(target):
                self._swap(target)
            case events.Discard(target):
                self._discard(target)
            case events.Retire(model):
                if (entry := self._serving.pop(model, None)) is not None:
                    self._end(entry)
            case events.Cancel(model):
                if (job := self._jobs.pop(model, None)) is not None:
                    job.cancel()
                    self._let_end(job)
                if (entry := self._tried.pop(model, None)) is not None:
                    self._end(entry)
            case events.Save():
                try:
                    self._disk.save(self._state)
                except OSError:
                    _log.warning("what is desired of this device could not be written to its disk")
            case events.Sweep():
                self._sweep()

    def _sweep(self) -> None:
        """Remove what is neither wanted nor in use: what ends its requests may yet load its file anew."""
        if self._closed:
            return
        leaving = frozenset(digest for entry in self._leaving for digest, _ in entry.target.files)
        self._disk.sweep(kept(self._state) | self._trials.kept() | leaving)

    def _begin(
        self,
        work: Callable[[], Coroutine[Any, Any, events.Event]],
        broken: events.RestoreFailed | events.FetchFailed | events.TryFailed | events.RetryDue,
    ) -> None:
        """A model's next job, and what happens when it ends; `broken` when it ends by a fault of the
        agent's own. What it replaces has come to its end, or it would have been cancelled."""

        async def job() -> None:
            try:
                event = await work()
            except Exception as fault:
                unexpected(fault, "an update")
                event = broken
            self._happened(event)

        model = broken.target.model
        self._jobs[model] = asyncio.create_task(job(), name=f"tidegate update {model}")

    def _let_end(self, task: asyncio.Task[None]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _end(self, entry: Serving) -> None:
        """Let its requests end in the background."""
        if entry.probation is not None:
            entry.probation.cancel()
        self._leaving.append(entry)
        self._let_end(asyncio.create_task(self._drain(entry), name=f"tidegate drain {entry.target.model}"))

    async def _drain(self, entry: Serving) -> None:
        await entry.served.drain(self._settings.run_timeout_s)
        self._leaving.remove(entry)
        self._sweep()

    async def _restore(self, target: Target) -> events.Event:
        model = shown(target.model)
        try:
            whole = await asyncio.to_thread(self._holds, target)
        except (OSError, ValueError):
            whole = False
        if not whole:
            reason = f"The artifact of model {model} is gone from this device's disk or was changed there."
            return events.RestoreFailed(target, reason, damaged=True)
        try:
            self._tried[target.model] = await self._launch(target)
        except TrialFailed as fault:
            reason = f"Model {model} version {target.version} no longer works on this device: {fault}."
            return events.RestoreFailed(target, reason, damaged=False)
        return events.Restored(target)

    async def _verify(self, target: Target) -> events.Event:
        plan = self._state.plans[target.model]
        try:
            order = await self._bringing.verify(target, plan.active, plan.previous)
        except NotBrought as fault:
            return _not_brought(target, fault)
        return events.Verified(target, order)

    async def _fetch(self, target: Target) -> events.Event:
        try:
            await self._bringing.fetch(target)
        except NotBrought as fault:
            return _not_brought(target, fault)
        return events.Fetched(target)

    async def _try(self, target: Target) -> events.Event:
        try:
            self._tried[target.model] = await self._launch(target)
        except TrialFailed as fault:
            reason = (
                f"Model {shown(target.model)} version {target.version} does not work on this device: {fault}."
            )
            return events.TryFailed(target, reason)
        return events.Tried(target)

    async def _wait(self, target: Target, seconds: float) -> events.Event:
        await asyncio.sleep(seconds * random.uniform(0.8, 1.2))
        return events.RetryDue(target)

    async def _launch(self, target: Target) -> Serving:
        """Raises TrialFailed."""
        async with self._loading:
            return await serving(target, self._disk, self._settings)

    def _commit(self, target: Target) -> None:
        try:
            self._disk.save(with_active(self._state, target))
        except OSError as fault:
            reason = (
                "The device's disk is full: make room for its state."
                if is_full(fault)
                else "The device's disk cannot be written."
            )
            self._happened(events.CommitFailed(target, reason))
        else:
            self._happened(events.Committed(target))

    def _swap(self, target: Target) -> None:
        before = self._serving.pop(target.model, None)
        entry = self._serving[target.model] = self._tried.pop(target.model)
        if before is not None:
            self._end(before)
        entry.served.on_fallen = lambda how: self._fell(target, how)
        if not self._state.plans[target.model].proven:
            entry.probation = asyncio.create_task(self._prove(entry), name=f"tidegate proof {target.model}")

    def _fell(self, target: Target, how: str) -> None:
        reason = f"Model {shown(target.model)} version {target.version} does not keep running here: {how}."
        self._happened(events.Fell(target, reason))

    async def _prove(self, entry: Serving) -> None:
        while True:
            await asyncio.sleep(self._settings.probation_s)
            if entry.served.ready:
                self._happened(events.Proven(entry.target))
                return

    def _discard(self, target: Target) -> None:
        if (entry := self._tried.get(target.model)) is not None and entry.target == target:
            del self._tried[target.model]
            self._end(entry)

    def _holds(self, target: Target) -> bool:
        return all(self._disk.holds(digest, size) for digest, size in target.files)


def _not_brought(target: Target, fault: NotBrought) -> events.Event:
    return events.FetchFailed(target, str(fault), again=fault.again, no_hub=isinstance(fault, NoHub))


def _targets(desired: Iterable[edge_pb2.DesiredModel], what: str) -> tuple[Target, ...]:
    found = [_target(model) for model in desired]
    if len(found) > MAX_MODELS:
        _log.warning(
            "the hub wants %d models %s this device; the first %d count", len(found), what, MAX_MODELS
        )
    return tuple(found[:MAX_MODELS])


def _target(desired: edge_pb2.DesiredModel) -> Target:
    return Target(
        desired.model,
        desired.version,
        desired.digest,
        desired.size,
        desired.golden_digest,
        desired.golden_size,
        desired.batch_max_size,
        desired.batch_delay_ms,
        desired.target,
        desired.golden_target,
    )
