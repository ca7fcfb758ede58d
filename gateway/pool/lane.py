"""The shell around `oip.batching`: one session, one thread that runs it, and what waits for it.

While one batch runs the next one gathers, so under load batches fill without anybody waiting for
`delay_ms`. What a caller gave up or has no time left for is left out before its run begins; a run
that nobody waits for any more is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gateway.core.config import Batching
from gateway.pool.runtimes._interface import Session
from oip.batching import Batcher, batch_key, join, split
from oip.errors import OipError
from oip.infer import InferWork
from oip.reasons import Reason

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Ran:
    """One request's outputs, and how it went: seconds in the queue and in the model, and the rows and
    requests of the run that it was part of."""

    outputs: Mapping[str, Array]
    queued_s: float
    ran_s: float
    rows: int
    together: int


@dataclass(eq=False, slots=True)
class _Item:
    work: InferWork
    ends_at: float
    answer: asyncio.Future[Ran]
    came: float = field(default_factory=time.monotonic)


class Lane:
    """Runs one session. Lives on one loop; made there."""

    def __init__(self, session: Session, batching: Batching | None, name: str) -> None:
        self._session = session
        self._waiting: Batcher[_Item] = Batcher(
            batching.max_size if batching else 1, batching.delay_ms / 1000 if batching else 0.0
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"model-{name}")
        self._pump: asyncio.Task[None] | None = None
        self._came = asyncio.Event()
        self._running: list[_Item] = []

    @property
    def waiting(self) -> int:
        """Requests that wait for their run."""
        return len(self._waiting)

    async def run(self, work: InferWork, ends_at: float) -> Ran:
        """One request's answer. `ends_at` is monotonic; when it passes before the run begins the request
        is left out. Raises OipError: DEADLINE, or ENDPOINT_FAILED for a run that failed."""
        loop = asyncio.get_running_loop()
        if self._pump is None:
            self._pump = loop.create_task(self._work(), name="model runs")
        item = _Item(work, ends_at, loop.create_future())
        self._waiting.push(item, work.rows or 1, item.came, batch_key(work))
        self._came.set()
        try:
            async with asyncio.timeout(max(0.0, ends_at - time.monotonic())):
                return await item.answer
        except TimeoutError:
            raise _late() from None
        finally:
            self._waiting.discard(item)
            if item in self._running and all(other.answer.done() for other in self._running):
                self._running = []
                self._session.stop()

    async def close(self) -> None:
        """End what waits, with UNAVAILABLE, and let the run that is under way finish."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        while batch := self._waiting.take(float("inf")):
            _fail(batch, OipError(Reason.UNAVAILABLE, "The replica is being stopped; try again."))
        self._thread.shutdown(wait=False)

    async def _work(self) -> None:
        while True:
            now = time.monotonic()
            batch = self._waiting.take(now)
            if not batch:
                await self._next(now)
                continue
            late = [item for item in batch if item.ends_at <= now]
            _fail(late, _late())
            ready = [item for item in batch if item.ends_at > now and not item.answer.done()]
            if not ready:
                continue
            await self._run(ready, now)

    async def _run(self, ready: list[_Item], began: float) -> None:
        """One run, and after one that failed each of its requests alone: what one caller sent must not
        cost the others their answers, nor its failure be told to them."""
        try:
            error = await self._tried(ready, began)
            if error is None:
                return
            if len(ready) == 1:
                _fail(ready, error)
                return
            for item in ready:
                now = time.monotonic()
                if item.ends_at <= now:
                    _fail([item], _late())
                elif not item.answer.done():
                    await self._run([item], now)
        except asyncio.CancelledError:
            _fail(ready, OipError(Reason.UNAVAILABLE, "The replica is being stopped; try again."))
            raise

    async def _tried(self, ready: list[_Item], began: float) -> OipError | None:
        """Run and tell the answers. Returns what went wrong, and has told nobody then."""
        loop = asyncio.get_running_loop()
        run = loop.run_in_executor(self._thread, self._session.run, join([item.work for item in ready]))
        # Whoever is cancelled here leaves the run behind, and asyncio would log how it failed.
        run.add_done_callback(_seen)
        self._running = ready
        try:
            outputs = await asyncio.shield(run)
            self._running = []
            self._tell(ready, outputs, began)
        except OipError as error:
            return error
        except Exception as error:
            # The runtime's own words may quote the request.
            return OipError(Reason.ENDPOINT_FAILED, f"The model failed ({type(error).__name__}).")
        finally:
            self._running = []
        return None

    def _tell(self, ready: list[_Item], outputs: Mapping[str, Array], began: float) -> None:
        ran_s = time.monotonic() - began
        sizes = [item.work.rows or 1 for item in ready]
        shares = [dict(outputs)] if len(ready) == 1 else split(outputs, sizes)
        for item, share in zip(ready, shares, strict=True):
            if not item.answer.done():
                item.answer.set_result(Ran(share, began - item.came, ran_s, sum(sizes), len(ready)))

    async def _next(self, now: float) -> None:
        """Until something may be due."""
        self._came.clear()
        due = self._waiting.due(now)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if due is None else max(0.0, due - time.monotonic())):
                await self._came.wait()


def _fail(items: list[_Item], error: OipError) -> None:
    for item in items:
        if not item.answer.done():
            item.answer.set_exception(error)


def _seen(run: asyncio.Future[Any]) -> None:
    if not run.cancelled():
        run.exception()


def _late() -> OipError:
    return OipError(Reason.DEADLINE, "The deadline passed before the model ran.")
