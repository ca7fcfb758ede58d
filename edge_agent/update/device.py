"""The models of a device: carries out what `decide` says, and answers requests with what serves."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_agent.ports import Hub, Observer, Served
from edge_agent.runtime import RuntimeSettings, ServedModel
from edge_agent.runtime.launch import Artifact, TrialFailed
from edge_agent.update import decide
from edge_agent.update.decide import Phase, Plan, State, Target
from edge_agent.update.disk import Disk, is_full
from edge_agent.update.fetch import FetchBroken, fetch_blob
from edgewire.allowed import NOTHING
from edgewire.v1 import edge_pb2
from oip import codec
from oip.errors import OipError
from oip.names import shown, version_fault
from oip.reasons import Reason
from oip.scan import scan_request

_log = logging.getLogger("tidegate.agent")

PLATFORM = "tflite"
MAX_MODELS = 256
"""The most that a device is to run; of a longer list the first count."""
MAX_BATCH = 2**16
MAX_BATCH_DELAY_MS = 60_000.0
TRIALS = max(2, os.cpu_count() or 1)
"""Models that are loaded and tried at once: each takes a process and its memory."""
_STATES = {
    Phase.RESTORING: edge_pb2.ModelState.TRYING,
    Phase.FETCHING: edge_pb2.ModelState.FETCHING,
    Phase.TRYING: edge_pb2.ModelState.TRYING,
    Phase.SETTLED: edge_pb2.ModelState.ACTIVE,
    Phase.FAILED: edge_pb2.ModelState.FAILED,
}


@dataclass(eq=False, slots=True)
class _Serving:
    target: Target
    served: ServedModel
    metadata: bytes
    config: bytes


class DeviceModels:
    """`ports.Models` over worker processes. `folder` is the agent's own; it is made where it is missing.

    Everything runs on the loop that `start` runs on.
    """

    def __init__(
        self, folder: Path, settings: RuntimeSettings | None = None, observer: Observer | None = None
    ) -> None:
        self._observer = observer
        self._disk = Disk(folder)
        self._settings = settings or RuntimeSettings()
        self._state = State()
        self._hub: Hub | None = None
        # Two models may share a file, and the hub gives a device few downloads at once.
        self._download = asyncio.Lock()
        self._trials = asyncio.Semaphore(TRIALS)
        self._serving: dict[str, _Serving] = {}
        self._tried: dict[str, _Serving] = {}
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._leaving: list[_Serving] = []
        """What serves no longer and still has requests."""
        self._closed = False

    async def start(self) -> None:
        """Bring back what served last, as far as it still works."""
        self._state = await asyncio.to_thread(self._disk.load)
        self._happened(decide.Started())
        restoring = [
            self._jobs[name]
            for name, plan in self._state.plans.items()
            if plan.phase is Phase.RESTORING and name in self._jobs
        ]
        await asyncio.gather(*restoring, return_exceptions=True)

    async def close(self) -> None:
        self._closed = True
        jobs = [*self._jobs.values(), *self._ending]
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        entries = [*self._serving.values(), *self._tried.values(), *self._leaving]
        self._serving, self._tried = {}, {}
        await asyncio.gather(*(entry.served.close() for entry in entries))

    def desire(self, desired: edge_pb2.Desired, hub: Hub) -> None:
        """As `ports.Models.desire`."""
        if self._closed:
            return
        self._hub = hub
        if self._observer is not None:
            self._observer.desire(desired, hub.there)
        if len(desired.models) > MAX_MODELS:
            _log.warning(
                "the hub wants %d models of this device; the first %d are run",
                len(desired.models),
                MAX_MODELS,
            )
        self._happened(decide.Desired(tuple(_target(model) for model in desired.models[:MAX_MODELS])))

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
        return [self._described(name, plan) for name, plan in self._state.plans.items()]

    def trials(self) -> list[edge_pb2.Trial]:
        """As `ports.Models.trials`."""
        return []

    def _described(self, name: str, plan: Plan) -> edge_pb2.ModelState:
        entry = self._serving.get(name)
        found = edge_pb2.ModelState(
            model=name,
            version=plan.desired.version,
            digest=plan.desired.digest,
            state=_STATES[plan.phase],
            reason=plan.reason,
        )
        if entry is None:
            return found
        if entry.served.trouble:
            if plan.phase is Phase.SETTLED:
                found.state = edge_pb2.ModelState.FAILED
                found.reason = f"Model {shown(name)} does not answer: {entry.served.trouble}."
            return found
        loaded = entry.served.loaded
        found.active_digest, found.active_version = entry.target.digest, entry.target.version
        found.delegate, found.delegated_nodes, found.nodes = loaded.delegate, loaded.taken, loaded.nodes
        found.degraded = entry.served.degraded
        found.metadata, found.config = entry.metadata, entry.config
        return found

    def _serves(self, model: str, version: str) -> _Serving:
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

    def _happened(self, event: decide.Event) -> None:
        """Take a step, and see its commands done or begun."""
        if self._closed:
            return
        self._state, commands = decide.step(self._state, event)
        for command in commands:
            self._do(command)

    def _do(self, command: decide.Command) -> None:
        match command:
            case decide.Restore(target):
                self._begin(target.model, self._restore(target))
            case decide.Fetch(target):
                self._begin(target.model, self._bring(target))
            case decide.Try(target):
                self._begin(target.model, self._try(target))
            case decide.Wait(target, seconds):
                self._begin(target.model, self._wait(target, seconds))
            case decide.Commit(target):
                self._commit(target)
            case decide.Swap(target):
                self._swap(target)
            case decide.Discard(target):
                self._discard(target)
            case decide.Retire(model):
                if (entry := self._serving.pop(model, None)) is not None:
                    self._end(entry)
            case decide.Cancel(model):
                if (job := self._jobs.pop(model, None)) is not None:
                    job.cancel()
                    self._let_end(job)
                if (entry := self._tried.pop(model, None)) is not None:
                    self._end(entry)
            case decide.Save():
                try:
                    self._disk.save(self._state)
                except OSError:
                    _log.warning("what is desired of this device could not be written to its disk")
            case decide.Sweep():
                self._sweep()

    def _sweep(self) -> None:
        """Remove what is neither wanted nor in use: what ends its requests may yet load its file anew."""
        leaving = (entry.target for entry in self._leaving)
        used = frozenset(digest for t in leaving for digest in (t.digest, t.golden_digest) if digest)
        self._disk.sweep(decide.kept(self._state) | used)

    def _begin(self, model: str, work: Coroutine[Any, Any, None]) -> None:
        """A model's next job. What it replaces has come to its end, or it would have been cancelled."""
        task = asyncio.create_task(work, name=f"tidegate update {model}")
        self._jobs[model] = task
        task.add_done_callback(self._noted)

    def _noted(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            _log.error("an update ended by a fault of the agent's own", exc_info=fault)

    def _let_end(self, task: asyncio.Task[None]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _end(self, entry: _Serving) -> None:
        """Let its requests end in the background."""
        self._leaving.append(entry)
        self._let_end(asyncio.create_task(self._drain(entry), name=f"tidegate drain {entry.target.model}"))

    async def _drain(self, entry: _Serving) -> None:
        await entry.served.drain(self._settings.run_timeout_s)
        self._leaving.remove(entry)
        if not self._closed:
            self._sweep()

    async def _restore(self, target: Target) -> None:
        model = shown(target.model)
        try:
            whole = await asyncio.to_thread(self._holds, target)
        except (OSError, ValueError):
            whole = False
        if not whole:
            reason = f"The artifact of model {model} is gone from this device's disk or was changed there."
            self._happened(decide.RestoreFailed(target, reason, damaged=True))
            return
        try:
            self._tried[target.model] = await self._launch(target)
        except TrialFailed as fault:
            reason = f"Model {model} version {target.version} no longer works on this device: {fault}."
            self._happened(decide.RestoreFailed(target, reason, damaged=False))
        else:
            self._happened(decide.Restored(target))

    async def _bring(self, target: Target) -> None:
        try:
            if (fault := _impossible(target)) is not None:
                raise FetchBroken(fault, again=False)
            async with self._download:
                for digest, size in (
                    (target.digest, target.size),
                    (target.golden_digest, target.golden_size),
                ):
                    if digest:
                        await self._bring_one(digest, size)
        except _NoHub:
            self._happened(decide.FetchFailed(target, "It waits for the hub to fetch it from.", no_hub=True))
        except FetchBroken as fault:
            self._happened(decide.FetchFailed(target, str(fault), again=fault.again))
        else:
            self._happened(decide.Fetched(target))

    async def _bring_one(self, digest: str, size: int) -> None:
        if self._hub is not None:
            limit = self._settings.max_artifact_mb * 2**20
            await fetch_blob(self._disk, digest, size, limit, self._hub.fetch)
            return
        try:
            if await asyncio.to_thread(self._disk.holds, digest, size):
                return
        except (OSError, ValueError):
            pass
        raise _NoHub

    async def _try(self, target: Target) -> None:
        try:
            self._tried[target.model] = await self._launch(target)
        except TrialFailed as fault:
            reason = (
                f"Model {shown(target.model)} version {target.version} does not work on this device: {fault}."
            )
            self._happened(decide.TryFailed(target, reason))
        else:
            self._happened(decide.Tried(target))

    async def _wait(self, target: Target, seconds: float) -> None:
        await asyncio.sleep(seconds * random.uniform(0.8, 1.2))
        self._happened(decide.RetryDue(target))

    async def _launch(self, target: Target) -> _Serving:
        """Raises TrialFailed."""
        artifact = Artifact(
            target.model,
            target.version,
            self._disk.blob(target.digest),
            self._disk.blob(target.golden_digest) if target.golden_digest else None,
            target.batch_max_size,
            target.batch_delay_ms / 1000,
        )
        async with self._trials:
            served = await ServedModel.start(artifact, self._settings)
        signature = served.signature
        delay = round(target.batch_delay_ms * 1000) if signature.max_batch else None
        return _Serving(
            target,
            served,
            codec.metadata_of(target.model, target.version, PLATFORM, signature),
            codec.config_of(target.model, PLATFORM, signature, delay),
        )

    def _commit(self, target: Target) -> None:
        try:
            self._disk.save(decide.with_active(self._state, target))
        except OSError as fault:
            reason = (
                "The device's disk is full: make room for its state."
                if is_full(fault)
                else "The device's disk cannot be written."
            )
            self._happened(decide.CommitFailed(target, reason))
        else:
            self._happened(decide.Committed(target))

    def _swap(self, target: Target) -> None:
        before = self._serving.pop(target.model, None)
        self._serving[target.model] = self._tried.pop(target.model)
        if before is not None:
            self._end(before)

    def _discard(self, target: Target) -> None:
        if (entry := self._tried.get(target.model)) is not None and entry.target == target:
            del self._tried[target.model]
            self._end(entry)

    def _holds(self, target: Target) -> bool:
        return self._disk.holds(target.digest, target.size) and (
            not target.golden_digest or self._disk.holds(target.golden_digest, target.golden_size)
        )


def _impossible(target: Target) -> str | None:
    """Why no device could run a model as it is desired, in one sentence; None where one could."""
    if target.batch_max_size > MAX_BATCH:
        return f"Batches of {target.batch_max_size} are asked for, and this device makes at most {MAX_BATCH}."
    delay = target.batch_delay_ms
    if not (math.isfinite(delay) and 0 <= delay <= MAX_BATCH_DELAY_MS):
        return (
            f"A batch delay of {delay:g} ms is asked for, and this device waits 0 to {MAX_BATCH_DELAY_MS:g}."
        )
    return None


class _NoHub(Exception):
    """Nothing to fetch from yet."""


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
    )
