"""The data plane deployment: a runtime in a thread of its own, and what control may ask of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from edgewire.v1 import edge_pb2
from gateway.core.place import Place
from gateway.core.release import Blob, Release
from gateway.pipeline.observer import Edges
from gateway.pool.loopback import bind_replica_to_loopback
from gateway.serve.crossing import answered, value_of
from gateway.serve.own_loop import OwnLoop
from gateway.serve.passage import CALL_TIMEOUT_S, UPLOAD_TIMEOUT_S
from gateway.serve.runtime import Runtime
from gateway.serve.settings import ReplicaSettings
from gateway.store.blobs import BlobError, BlobStore
from gateway.telemetry.metrics import ToldGauge
from oip.errors import OipError
from oip.reasons import Reason

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

        asked = AskedControl(control, settings)
        self._runtime = Runtime(settings, operator, asked, asked)
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

    async def follow(self, release: Release) -> dict[str, Any]:
        return await answered(self._own.run(self._runtime.follow(release)))

    async def teach(self, model: str, teacher: str, request: bytes, allowed: str) -> dict[str, Any]:
        return await answered(self._own.run(self._runtime.teach(model, teacher, request, allowed)))

    async def gauges(self, rows: Sequence[ToldGauge]) -> dict[str, Any]:
        return await answered(self._own.run(self._runtime.gauges(rows)))

    def check_health(self) -> None:
        """Asked by Serve; a replica that is of no use is replaced."""
        self._own.check()

    async def __del__(self) -> None:
        """Awaited by Serve when it stops the replica."""
        if self._own.alive:
            await self.drain()
            self._own.stop()


class AskedControl:
    """Control as a replica sees it: the desk that takes its observations, and what releases stand. `blobs`
    are read where they lie."""

    def __init__(self, control: DeploymentHandle, settings: ReplicaSettings) -> None:
        self._control = control
        self._replica = secrets.token_hex(4)
        self._blobs = BlobStore(settings.config.artifacts, settings.state_dir)

    async def edges(self, model: str, version: str) -> Edges | None:
        return await self._ask("edges", model, version)

    async def deliver(self, place: Place, request: edge_pb2.DeliverRequest) -> edge_pb2.DeliverReply:
        reply = await self._ask("observed", self._replica, place, request.SerializeToString())
        return edge_pb2.DeliverReply.FromString(reply)

    async def releases(self) -> Mapping[str, Release]:
        return await self._ask("standing_releases")

    async def content(self, blob: Blob) -> bytes:
        try:
            return await self._blobs.get(blob)
        except BlobError as error:
            raise OipError(Reason.UNAVAILABLE, str(error)) from None

    async def _ask(self, method: str, *args: Any) -> Any:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return value_of(await getattr(self._control, method).remote(*args))
        except (TimeoutError, RayError, RayServeException) as error:
            text = f"control is not available ({type(error).__name__}); try again"
            raise OipError(Reason.UNAVAILABLE, text) from error
