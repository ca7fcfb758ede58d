"""The work of updates that takes long, and what is heard of it while it runs."""

from __future__ import annotations

import asyncio
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
    """At most one piece of work of an update at a time. `happen` takes in what it comes to; what it raises
    as OipError is told to the log, and the work is asked for again."""

    def __init__(self, logs: RunLogs, happen: Callable[[str, Event], Awaitable[None]]) -> None:
        self._logs = logs
        self._happen = happen
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._retries: set[asyncio.Task[None]] = set()
        self._progress: dict[str, RunEvent] = {}

    def begin(self, id: str, phase: Phase, work: Callable[[], Coroutine[Any, Any, Event]]) -> None:
        """Unless there is some already."""
        if id not in self._tasks:
            self._tasks[id] = asyncio.create_task(self._run(id, phase, work), name=f"update {id}")

    def stop(self, id: str) -> None:
        self._progress.pop(id, None)
        if id in self._tasks:
            self._tasks[id].cancel()

    async def close(self) -> None:
        tasks = [*self._tasks.values(), *self._retries]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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
            self._logs.add(
                id, f"== attempt {event.attempt}: {event.kind.value} {event.words}".rstrip() + "\n"
            )
            if event.kind is RunKind.RETRYING:
                task = asyncio.create_task(self._tell(id, Retrying(event.attempt, event.words)))
                self._retries.add(task)
                task.add_done_callback(self._retries.discard)

        return heard

    async def _run(self, id: str, phase: Phase, work: Callable[[], Coroutine[Any, Any, Event]]) -> None:
        event: Event | None = None
        try:
            event = await work()
        except OipError as error:
            logger.warning("update %s waits: %s", id, error.message)
            if error.reason is not Reason.UNAVAILABLE:
                event = WorkFailed(phase, error.message)
        except Exception as error:
            logger.exception("the work of update %s failed", id)
            event = WorkFailed(phase, f"It failed by a fault of the gateway's own ({type(error).__name__}).")
        finally:
            del self._tasks[id]
            self._progress.pop(id, None)
        if event is not None:
            await self._tell(id, event)

    async def _tell(self, id: str, event: Event) -> None:
        try:
            await self._happen(id, event)
        except OipError as error:
            logger.warning("update %s waits: %s", id, error.message)
