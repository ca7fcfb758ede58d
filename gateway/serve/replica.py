"""The data plane deployment: a runtime in a thread of its own, and what control may ask of it."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ray.serve.handle import DeploymentHandle

from gateway.serve.loopback import bind_replica_to_loopback
from gateway.serve.passage import CALL_TIMEOUT_S
from gateway.serve.runtime import Runtime
from gateway.serve.settings import ReplicaSettings
from oip.errors import OipError

T = TypeVar("T")
TELL_S = 5.0
"""How long a replica that did not start waits to be asked why."""
logger = logging.getLogger(__name__)


class DataPlane:
    """One data plane replica.

    A failure to start (an address in use, say) is kept and told by `describe` for a while instead
    of raised: Serve would only try again and again, and the one who typed the address would wait.
    After that the replica is unhealthy, so that one which came back to a taken address is replaced
    until the address is free.
    """

    def __init__(self, settings: ReplicaSettings, control: DeploymentHandle) -> None:
        bind_replica_to_loopback()

        async def operator(method: str, target: str, body: bytes) -> Any:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await control.operator.remote(method, target, body)

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tidegate-listeners", daemon=True)
        self._thread.start()
        self._runtime = Runtime(settings, operator)
        self._drain_s = settings.drain_s
        self._failure = ""
        self._tell_until = time.monotonic() + TELL_S
        try:
            asyncio.run_coroutine_threadsafe(self._runtime.start(), self._loop).result()
        except (OSError, ValueError, OipError) as error:
            self._failure = str(error)
            logger.error("the data plane did not start: %s", error)
        except Exception as error:
            logger.exception("the data plane did not start")
            self._failure = (
                f"the data plane did not start ({type(error).__name__}); Ray's replica log says where"
            )

    async def describe(self) -> dict[str, Any]:
        """Addresses, what is wrong with each endpoint ("" if nothing), process id; or `failure`: why
        nothing is served."""
        if self._failure:
            return {"failure": self._failure}
        states = self._runtime.endpoint_states()
        return {**self._runtime.addresses(), "endpoints": states, "pid": os.getpid()}

    async def drain(self) -> None:
        """Stop taking work, wait for what is running, close."""
        await self._there(self._runtime.drain(self._drain_s))

    async def endpoints_view(self) -> dict[str, Any]:
        return await self._answer(self._runtime.endpoints_view)

    async def models_view(self) -> dict[str, Any]:
        return await self._answer(self._runtime.models_view)

    async def dry_run(self, query: dict[str, Any]) -> dict[str, Any]:
        return await self._answer(lambda: self._runtime.dry_run(query))

    async def decision(self, decision_id: str) -> dict[str, Any]:
        return await self._answer(lambda: self._runtime.decision(decision_id))

    def check_health(self) -> None:
        """Asked by Serve; a replica whose listeners' thread has ended is replaced."""
        if not self._thread.is_alive():
            raise RuntimeError("the listeners' thread has ended")
        if self._failure and time.monotonic() > self._tell_until:
            raise RuntimeError(self._failure)

    async def __del__(self) -> None:
        """Awaited by Serve when it stops the replica."""
        if self._thread.is_alive():
            await self.drain()
            self._loop.call_soon_threadsafe(self._loop.stop)

    async def _answer(self, ask: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
        """The value, or the error in a form that crosses processes."""

        async def run() -> Any:
            return await ask()

        try:
            return {"value": await self._there(run())}
        except OipError as error:
            return {"error": {"reason": error.reason.value, "message": error.message}}

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
