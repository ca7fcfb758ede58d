"""The work of updates that takes long, and what is heard of it while it runs."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from gateway.control.run_log import RunLogs
from gateway.control.update_ports import Heard
from gateway.core.training_run import RunEvent, RunKind
from gateway.rollout.loop_messages import Event, Retrying, WorkFailed
from gateway.rollout.loop_state import Phase
from oip.errors import OipError
from oip.reasons import Reason

logger = logging.getLogger(__name__)


class Runs:
    """At most one piece of work of an update's phase at a time, until what it came to is taken in by `happen`.
    What that raises as OipError is told to the log, and the work is asked for again."""

    def __init__(self, logs: RunLogs, happen: Callable[[str, Event], Awaitable[None]]) -> None:
        self._logs = logs
        self._happen = happen
        self._work: dict[tuple[str, Phase], asyncio.Task[Event | None]] = {}
        self._tasks: dict[tuple[str, Phase], asyncio.Task[None]] = {}
        self._closed = False
        self._retries: dict[str, list[asyncio.Task[None]]] = {}
        self._progress: dict[str, RunEvent] = {}

    def begin(self, id: str, phase: Phase, work: Callable[[], Coroutine[Any, Any, Event]]) -> None:
        """Unless there is some already."""
        if (id, phase) in self._tasks or self._closed:
            return
        outcome = asyncio.create_task(self._outcome(id, phase, work), name=f"update {id} {phase}: work")
        self._work[id, phase] = outcome
        self._tasks[id, phase] = asyncio.create_task(
            self._run(id, phase, outcome), name=f"update {id} {phase}"
        )

    def stop(self, id: str) -> None:
        for (other, _), work in self._work.items():
            if other == id:
                work.cancel()

    async def close(self) -> None:
        """What is being taken in is taken in whole; what runs is let go of."""
        self._closed = True
        for work in self._work.values():
            work.cancel()
        await asyncio.gather(*self._tasks.values(), *itertools.chain(*self._retries.values()))

    def progress(self, id: str) -> RunEvent | None:
        """The last that was heard, of work that runs."""
        return self._progress.get(id)

    def heard(self, id: str) -> Heard:
        """What takes in a run's events."""

        def heard(event: RunEvent) -> None:
            if event.kind is RunKind.LOG:
                self._logs.add(id, event.words)
                return
            self._progress[id] = event
            failed = "failed: " if event.kind is RunKind.RETRYING else ""
            words = event.words or event.kind.value
            self._logs.add(id, f"== attempt {event.attempt}: {failed}{words}\n")
            if event.kind is RunKind.RETRYING:
                task = asyncio.create_task(self._tell(id, Retrying(event.attempt, event.words)))
                self._retries.setdefault(id, []).append(task)

        return heard

    async def _run(self, id: str, phase: Phase, work: asyncio.Task[Event | None]) -> None:
        try:
            await asyncio.wait([work])
            event = None if work.cancelled() else work.result()
            await asyncio.gather(*self._retries.pop(id, ()))
            self._progress.pop(id, None)
            if event is not None:
                await self._tell(id, event)
        finally:
            del self._work[id, phase], self._tasks[id, phase]

    async def _outcome(
        self, id: str, phase: Phase, work: Callable[[], Coroutine[Any, Any, Event]]
    ) -> Event | None:
        """None where it may be tried again."""
        try:
            return await work()
        except OipError as error:
            logger.warning("update %s waits: %s", id, error.message)
            return None if error.reason is Reason.UNAVAILABLE else WorkFailed(phase, error.message)
        except Exception as error:
            logger.exception("the work of update %s failed", id)
            return WorkFailed(phase, f"It failed by a fault of the gateway's own ({type(error).__name__}).")

    async def _tell(self, id: str, event: Event) -> None:
        try:
            await self._happen(id, event)
        except OipError as error:
            logger.warning("update %s waits: %s", id, error.message)
