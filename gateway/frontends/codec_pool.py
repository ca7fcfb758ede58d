"""Large bodies are translated in processes beside the gateway's, so that the listeners' loop runs on.

Threads would not do: parsing or writing megabytes of JSON is one call that holds the interpreter's
lock for seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gateway.core.errors import Refusal
from gateway.frontends.codec_worker import Done, Failed, Refused
from oip.errors import OipError
from oip.reasons import Reason

logger = logging.getLogger(__name__)

WORKERS = 2
_PROGRAM = "from gateway.frontends.codec_worker import main; main()"


class WorkerLost(Exception):
    """The process ended before it answered."""


class CodecPool:
    """Up to `WORKERS` processes, each started when it is first needed; a job waits for a free one.

    A cancelled job's process is killed: nothing else would end its work. Belongs to one loop.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(WORKERS)
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="tidegate-codec")
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """The processes there are."""
        return [worker.pid for worker in (*self._idle, *self._busy)]

    async def run(self, job: str, *arguments: Any) -> Any:
        """What `oip.codec`'s function `job` returns for `arguments`. Raises OipError as it does,
        DRAINING once the pool is closed, and WorkerLost when two processes ended over it."""
        try:
            outcome = await self._once(job, arguments)
        except WorkerLost:
            outcome = await self._once(job, arguments)
        match outcome:
            case Done(result):
                return result
            case Refused(reason, message):
                raise OipError(reason, message)
            case Failed(kind, stack):
                logger.error("%s failed with %s\n%s", job, kind, stack)
                raise RuntimeError(f"{job} failed in its process")

    async def close(self) -> None:
        """End the processes, also those at work."""
        self._closed = True
        for worker in self._busy:
            worker.kill()
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.gather(*(asyncio.to_thread(worker.end) for worker in self._idle))
        self._idle.clear()

    async def _once(self, job: str, arguments: tuple[Any, ...]) -> Done | Refused | Failed:
        await self._free.acquire()
        if self._closed:
            self._free.release()
            raise Refusal(Reason.DRAINING, "this gateway is shutting down; try another replica")
        try:
            worker = self._next()
        except BaseException:
            self._free.release()
            raise
        self._busy.add(worker)
        call = asyncio.get_running_loop().run_in_executor(self._threads, worker.do, job, arguments)
        call.add_done_callback(self._returned(worker))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if worker in self._busy:
                worker.kill()
            raise

    def _next(self) -> _Worker:
        """A process that waits for work, else a new one."""
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            self._threads.submit(worker.end)
        return _Worker()

    def _returned(self, worker: _Worker) -> Callable[[asyncio.Future[Any]], None]:
        def returned(call: asyncio.Future[Any]) -> None:
            self._busy.discard(worker)
            if not call.cancelled() and call.exception() is None:
                self._idle.append(worker)
            self._free.release()

        return returned


class _Worker:
    """One process. `do` and `end` block, and run in threads."""

    def __init__(self) -> None:
        path = os.pathsep.join(part or os.getcwd() for part in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._killed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self._killed and self._process.poll() is None

    def do(self, job: str, arguments: tuple[Any, ...]) -> Done | Refused | Failed:
        """The process's answer. Raises WorkerLost, and then the process is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump((job, arguments), self._process.stdin, protocol=5)
            self._process.stdin.flush()
            return pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            self.end()
            raise WorkerLost(f"the process ended in {job}") from None
        except BaseException:
            self.end()
            raise

    def kill(self) -> None:
        """Let the process end at once; the thread that waits for its answer does the rest."""
        self._killed = True
        self._process.kill()

    def end(self) -> None:
        """End the process and let go of everything it had."""
        self._process.kill()
        try:
            self._process.communicate()
        except (OSError, ValueError):
            self._process.wait()
