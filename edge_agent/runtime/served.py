"""A model that answers: requests are checked, queued, run one batch after the other, worker after worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edge_agent.faults import unexpected
from edge_agent.ports import Seen
from edge_agent.runtime.frames import Array
from edge_agent.runtime.launch import Artifact, Launched, TrialFailed, launch, signature_of
from edge_agent.runtime.process import Loaded, RunRefused, WorkerEnded
from edge_agent.runtime.settings import RuntimeSettings
from oip.batching import Batcher, batch_key, join, split
from oip.errors import OipError
from oip.infer import InferWork, build_response, parse_request, select
from oip.names import shown
from oip.reasons import Reason

_log = logging.getLogger("tidegate.agent")

HEALTHY_S = 30.0
"""A worker that lived so long ended by a fault of its own, not in a loop."""
FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 60.0
CRASHES_OF_A_DELEGATE = 3
"""So many in a row, and the next delegate of the chain takes over."""
FALLS = 3
"""So many ends of its workers in a row, by the last delegate that is left, and the model has fallen."""
RENEW_AFTER = 20_000
"""tflite-runtime 2.14 loses some 740 bytes with each interpreter that it makes. After so many runs of a
model that needs a new one for each, about 15 MB, another worker takes over."""


@dataclass(eq=False, slots=True)
class _Job:
    work: InferWork
    seen: Seen | None
    answer: asyncio.Future[bytes] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class ServedModel:
    """One artifact, serving. Made by `start`; ends by `drain` or `close`.

    When its worker ends, what it was running and what waits fails with MODEL_UNAVAILABLE, and another
    is started, later and later while they keep ending. `on_fallen` is told, in a clause, how the last of
    FALLS in a row ended.
    """

    def __init__(self, artifact: Artifact, settings: RuntimeSettings, launched: Launched) -> None:
        self.artifact = artifact
        self.signature = signature_of(artifact, launched.worker)
        self._settings = settings
        self._batcher: Batcher[_Job] = Batcher(max(1, artifact.batch_max_size), artifact.batch_delay_s)
        self._batching = artifact.batch_max_size > 1
        self._jobs: set[_Job] = set()
        self._woken = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._falls = self._spared = 0
        self.on_fallen: Callable[[str], None] | None = None
        self._relief: asyncio.Task[Launched] | None = None
        self._take_on(launched)
        self.trouble = ""
        self._server = asyncio.create_task(self._serve(), name=f"tidegate model {artifact.model}")

    @classmethod
    async def start(cls, artifact: Artifact, settings: RuntimeSettings) -> ServedModel:
        """Load and try the artifact by the settings' delegates. Raises TrialFailed."""
        launched = await launch(artifact, settings, settings.delegates)
        try:
            return cls(artifact, settings, launched)
        except TrialFailed:
            await launched.worker.close()
            raise

    @property
    def ready(self) -> bool:
        return not self.trouble and not self._closing

    @property
    def loaded(self) -> Loaded:
        """What the worker, or the last one, said of the model."""
        return self._loaded

    @property
    def degraded(self) -> str:
        """Why a better delegate does not run it, in one sentence; "" when none was wanted in vain."""
        faults = "; ".join(part for part in (*self._skipped, self._loaded.degraded) if part)
        return (
            f"Model {shown(self.artifact.model)} runs on {self._loaded.delegate}: {faults}." if faults else ""
        )

    @property
    def inflight(self) -> int:
        return len(self._jobs)

    @property
    def worker_pid(self) -> int | None:
        """None while there is none."""
        return None if self.trouble else self._worker.pid

    async def infer(self, request: bytes, timeout_s: float, seen: Seen | None = None) -> bytes:
        """As `ports.Models.infer`, of this model. `seen` is called once there is an answer."""
        work = parse_request(request, self.signature)
        if not self.ready:
            raise self._unavailable(self.trouble or "it is stopping")
        if len(self._jobs) >= self._settings.max_queue:
            raise OipError(
                Reason.OVERLOADED,
                f"Model {shown(self.artifact.model)} has {len(self._jobs)} requests waiting on this device; "
                "try again later.",
            )
        job = _Job(work, seen)
        self._jobs.add(job)
        self._idle.clear()
        if self._batching:
            self._batcher.push(job, work.rows or 1, time.monotonic(), batch_key(work))
        else:
            self._batcher.push(job, 1, time.monotonic())
        self._woken.set()
        try:
            async with asyncio.timeout(timeout_s):
                return await job.answer
        except TimeoutError:
            raise OipError(
                Reason.DEADLINE,
                f"Model {shown(self.artifact.model)} did not answer on this device before the deadline.",
            ) from None
        finally:
            self._batcher.discard(job)
            self._jobs.discard(job)
            if not self._jobs:
                self._idle.set()

    async def drain(self, timeout_s: float) -> None:
        """Let the requests that it has end, but no longer than `timeout_s`, then close. Whoever cancels it
        closes."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            _log.warning("model %s: requests were still running as it stopped", self.artifact.model)
        await self.close()

    async def close(self) -> None:
        """Fail what waits, end the worker. Can be called again."""
        self._closing = True
        self._server.cancel()
        await asyncio.gather(self._server, return_exceptions=True)
        self._fail_all("it is stopping")
        if (relief := self._relief) is not None:
            relief.cancel()
            await asyncio.wait((relief,))
            if not relief.cancelled() and relief.exception() is None:
                await relief.result().worker.close()
        await self._worker.close()

    def _take_on(self, launched: Launched) -> None:
        assert launched.worker.loaded is not None
        self._worker = launched.worker
        self._worker.on_end = self._woken.set
        self._loaded: Loaded = launched.worker.loaded
        self._chain = launched.chain
        self._skipped: tuple[str, ...] = (*getattr(self, "_skipped", ()), *launched.skipped)
        self._began = time.monotonic()
        self._answered = False
        self._runs = 0

    async def _serve(self) -> None:
        while True:
            try:
                jobs = await self._next()
                if jobs:
                    await self._run(jobs)
                await self._renew(len(jobs))
            except WorkerEnded as fault:
                await self._restart(str(fault), hung=isinstance(fault, _Hung))
            except Exception as fault:
                # Without this loop nothing of the model is answered any more.
                unexpected(fault, f"serving model {self.artifact.model}")
                self._worker.kill()
                await self._restart("its worker was given up after a fault of the agent's own")

    async def _renew(self, runs: int) -> None:
        """Have a worker that has made many interpreters relieved by another, between two runs."""
        if not self._loaded.stateful:
            return
        self._runs += runs
        if self._relief is None:
            if self._runs >= RENEW_AFTER:
                self._relief = asyncio.create_task(launch(self.artifact, self._settings, self._chain))
                self._relief.add_done_callback(lambda _: self._woken.set())
        elif self._relief.done():
            relief, self._relief, self._runs = self._relief, None, 0
            try:
                launched = relief.result()
            except TrialFailed as fault:
                _log.warning("model %s: no worker to relieve its own: %s", self.artifact.model, fault)
                return
            relieved = self._worker
            self._take_on(launched)
            await relieved.close()

    async def _next(self) -> list[_Job]:
        """The next batch; none when something else is to be looked at. Raises WorkerEnded when the worker ends while nothing is to do."""
        while True:
            self._woken.clear()
            now = time.monotonic()
            if jobs := self._batcher.take(now):
                return [job for job in jobs if not job.answer.done()]
            if self._worker.ended.is_set():
                raise WorkerEnded(f"its worker {self._worker.how}")
            if self._relief is not None and self._relief.done():
                return []
            due = self._batcher.due(now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else due - now):
                    await self._woken.wait()

    async def _run(self, jobs: Sequence[_Job]) -> None:
        works = [job.work for job in jobs]
        try:
            async with asyncio.timeout(self._settings.run_timeout_s):
                outputs = await self._worker.run(join(works))
        except TimeoutError:
            self._worker.kill()
            await self._worker.ended.wait()
            raise _Hung(f"its worker did not finish within {self._settings.run_timeout_s:g} s") from None
        except RunRefused as fault:
            if len(jobs) > 1:
                # One request may spoil the batch of the others.
                for job in jobs:
                    await self._run([job])
                return
            _refuse(jobs[0], self._refused(jobs[0].work, fault))
            return
        try:
            shares = split(outputs, [work.rows or 1 for work in works]) if len(jobs) > 1 else [outputs]
        except OipError as fault:
            for job in jobs:
                _refuse(job, fault)
            return
        self._answered = True
        for job, share in zip(jobs, shares, strict=True):
            self._answer(job, share)

    def _answer(self, job: _Job, outputs: dict[str, Array]) -> None:
        if job.answer.done():
            return
        try:
            response = build_response(
                self.artifact.model,
                self.artifact.version,
                job.work.id,
                select(job.work, outputs),
                self.signature,
            )
        except OipError as fault:
            _refuse(job, fault)
        else:
            if job.seen is not None:
                job.seen(job.work.inputs, outputs)
            job.answer.set_result(response)

    def _refused(self, work: InferWork, fault: RunRefused) -> OipError:
        model = shown(self.artifact.model)
        if not fault.shape:
            return OipError(Reason.ENDPOINT_FAILED, f"Model {model} could not compute this request.")
        shapes = ", ".join(f"{shown(name)} {list(array.shape)}" for name, array in work.inputs.items())
        return OipError(Reason.MALFORMED, f"Model {model} cannot take inputs of these shapes: {shapes}.")

    async def _restart(self, how: str, *, hung: bool = False) -> None:
        """Until a worker answers again. One that `hung` without an answer did not live, however long."""
        if time.monotonic() - self._began > HEALTHY_S and (self._answered or not hung):
            self._falls = self._spared = 0
        while True:
            self._falls += 1
            delay = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(self._falls - 1, 20))
            delay *= random.uniform(0.5, 1.0)
            self.trouble = (
                f"{how}; it starts again in {delay:.1f} s"
                if self._falls == 1
                else f"{how}, and ended {self._falls} times in a row; it starts again in {delay:.1f} s"
            )
            _log.warning("model %s: %s", self.artifact.model, self.trouble)
            self._fail_all(self.trouble)
            if self._give_up_a_delegate():
                self._spared = self._falls
            elif self._falls - self._spared >= FALLS and self.on_fallen is not None:
                self.on_fallen(how)
            await self._worker.close()
            await asyncio.sleep(delay)
            try:
                launched = await launch(self.artifact, self._settings, self._chain)
            except TrialFailed as fault:
                how = str(fault)
                continue
            self._take_on(launched)
            self.trouble = ""
            return

    def _give_up_a_delegate(self) -> bool:
        """A driver that keeps ending its process is left for the next of the chain. Whether one was."""
        guilty = [spec for spec in self._chain if spec.name == self._loaded.delegate]
        if guilty and len(self._chain) > 1 and self._falls and self._falls % CRASHES_OF_A_DELEGATE == 0:
            self._chain = tuple(spec for spec in self._chain if spec != guilty[0])
            self._skipped = (
                *self._skipped,
                f"{guilty[0].name}: workers that ran it ended {CRASHES_OF_A_DELEGATE} times in a row",
            )
            return True
        return False

    def _fail_all(self, why: str) -> None:
        for job in list(self._jobs):
            _refuse(job, self._unavailable(why))

    def _unavailable(self, why: str) -> OipError:
        return OipError(
            Reason.MODEL_UNAVAILABLE,
            f"Model {shown(self.artifact.model)} is not available on this device: {why}.",
        )


class _Hung(WorkerEnded):
    """It was ended, because it did not finish."""


def _refuse(job: _Job, fault: OipError) -> None:
    if not job.answer.done():
        job.answer.set_exception(fault)
