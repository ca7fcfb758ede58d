"""The data plane deployment: a runtime in a thread of its own, and what control may ask of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from gateway.pool.loopback import bind_replica_to_loopback
from gateway.serve.crossing import answered
from gateway.serve.own_loop import OwnLoop
from gateway.serve.passage import CALL_TIMEOUT_S, UPLOAD_TIMEOUT_S
from gateway.serve.runtime import Runtime
from gateway.serve.settings import ReplicaSettings

HUB_WAIT_S = 5.0


class DataPlane:
    """One data plane replica. It speaks to the hub by gRPC; the handle only makes the hub part of the
    application."""

    def __init__(
        self, settings: ReplicaSettings, control: DeploymentHandle, hub: DeploymentHandle | None = None
    ) -> None:
        bind_replica_to_loopback()

        async def operator(method: str, target: str, body: bytes) -> Any:
            async with asyncio.timeout(UPLOAD_TIMEOUT_S if method == "PUT" else CALL_TIMEOUT_S):
                return await control.operator.remote(method, target, body)

        self._runtime = Runtime(settings, operator)
        self._drain_s = settings.drain_s
        self._own = OwnLoop("the data plane")
        self._own.start(self._begin(hub))

    async def _begin(self, hub: DeploymentHandle | None) -> None:
        """With the hub there, the first look at the places sees the devices too. Without it, nobody else
        waits for it."""
        if hub is not None:
            with contextlib.suppress(TimeoutError, RayError, RayServeException):
                async with asyncio.timeout(HUB_WAIT_S):
                    await hub.describe.remote()
        await self._runtime.start()

    async def describe(self) -> dict[str, Any]:
        """Addresses, what is wrong with each endpoint ("" if nothing), process id; or `failure`: why
        nothing is served."""
        if self._own.failure:
            return {"failure": self._own.failure}
        states = self._runtime.endpoint_states()
        return {**self._runtime.addresses(), "endpoints": states, "pid": os.getpid()}

    async def drain(self) -> None:
        """Stop taking work, wait for what is running, close."""
        await self._own.run(self._runtime.drain(self._drain_s))

    async def endpoints_view(self) -> dict[str, Any]:
        return await answered(self._own.run(self._runtime.endpoints_view()))

    async def models_view(self) -> dict[str, Any]:
        return await answered(self._own.run(self._runtime.models_view()))

    async def dry_run(self, query: dict[str, Any]) -> dict[str, Any]:
        return await answered(self._own.run(self._runtime.dry_run(query)))

    async def decision(self, decision_id: str) -> dict[str, Any]:
        return await answered(self._own.run(self._runtime.decision(decision_id)))

    async def measure(self, endpoint: str, model: str, version: str) -> dict[str, Any]:
        return await answered(self._own.run(self._runtime.measure(endpoint, model, version)))

    async def measurement(self, number: str) -> dict[str, Any]:
        return await answered(self._own.run(self._runtime.measurement(number)))

    def check_health(self) -> None:
        """Asked by Serve; a replica that is of no use is replaced."""
        self._own.check()

    async def __del__(self) -> None:
        """Awaited by Serve when it stops the replica."""
        if self._own.alive:
            await self.drain()
            self._own.stop()
