"""The data plane deployment: a runtime in a thread of its own, and what control may ask of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from edgewire.v1 import edge_pb2
from gateway.core.place import Place
from gateway.core.release import Blob, Release
from gateway.pipeline.observer import Edges
from gateway.pipeline.served import Counts
from gateway.pipeline.siblings import Kind
from gateway.pool.loopback import bind_replica_to_loopback
from gateway.serve.asked_homes import AskedHomes
from gateway.serve.crossing import answered, value_of
from gateway.serve.own_loop import OwnLoop
from gateway.serve.passage import CALL_TIMEOUT_S, UPLOAD_TIMEOUT_S
from gateway.serve.runtime import Runtime
from gateway.serve.settings import ReplicaSettings
from gateway.store.blobs import BlobError, BlobStore
from gateway.telemetry.metrics import ToldGauge
from gateway.telemetry.settings import State
from oip.errors import OipError
from oip.reasons import Reason

T = TypeVar("T")
HUB_WAIT_S = 5.0
ADOPT_AFTER_S = (0.0, 5.0, 30.0)
"""Pauses before the other replicas' settings are asked for."""


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
        siblings = asked if settings.shared else None
        self._homes = None if settings.homes is None else AskedHomes(settings.homes)
        self._runtime = Runtime(settings, operator, asked, asked, self._homes, siblings)
        self._drain_s = settings.drain_s
        self._own = OwnLoop("the data plane")
        self._adopting: asyncio.Task[None] | None = None
        self._own.start(self._begin(hub, siblings))

    async def _begin(self, hub: DeploymentHandle | None, siblings: AskedControl | None) -> None:
        """With the hub there, the first look at the places sees the devices too. Without it, nobody else
        waits for it."""
        if hub is not None:
            with contextlib.suppress(TimeoutError, RayError, RayServeException):
                async with asyncio.timeout(HUB_WAIT_S):
                    await hub.describe.remote()
        await self._runtime.start()
        if siblings is not None:
            self._adopting = asyncio.create_task(self._adopt(siblings), name="adopt settings")

    async def _adopt(self, siblings: AskedControl) -> None:
        """Begin with the settings of the replicas that serve already. What is changed before they know of this
        one is asked for again."""
        for pause in ADOPT_AFTER_S:
            await asyncio.sleep(pause)
            with contextlib.suppress(OipError):
                await self._runtime.adopt(await siblings.settings())

    async def describe(self) -> dict[str, Any]:
        """Addresses, what is wrong with each endpoint ("" if nothing), process id; or `failure`: why
        nothing is served."""
        if self._own.failure:
            return {"failure": self._own.failure}
        states = self._runtime.endpoint_states()
        return {**self._runtime.addresses(), "endpoints": states, "pid": os.getpid()}

    async def drain(self) -> None:
        """Stop taking work, wait for what is running, close."""
        await self._own.run(self._drain())

    async def _drain(self) -> None:
        if self._adopting is not None:
            self._adopting.cancel()
        await self._runtime.drain(self._drain_s)
        if self._homes is not None:
            await self._homes.close()

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

    async def measuring(self) -> dict[str, Any]:
        return await answered(self._own.run(self._runtime.measuring()))

    async def metrics(self) -> dict[str, Any]:
        """This replica's name and metrics."""
        return await answered(self._own.run(self._named(self._runtime.metrics())))

    async def counts(self) -> dict[str, Any]:
        """This replica's name and what it has served."""
        return await answered(self._own.run(self._named(self._runtime.counts())))

    async def settings(self) -> dict[str, Any]:
        return await answered(self._own.run(self._runtime.settings()))

    async def change(self, kind: Kind, changes: Mapping[str, Any]) -> dict[str, Any]:
        return await answered(self._own.run(self._runtime.change(kind, changes)))

    async def look(self, endpoints: Collection[str]) -> dict[str, Any]:
        return await answered(self._own.run(self._runtime.look(endpoints)))

    async def _named(self, work: Awaitable[T]) -> tuple[str, T]:
        return self._runtime.name, await work

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
    """Control as a replica sees it: the desk that takes its observations, what releases stand, and the way to
    the other replicas. `blobs` are read where they lie."""

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

    async def counts(self) -> Counts:
        return await self._ask("counts")

    async def change(self, kind: Kind, changes: Mapping[str, Any]) -> None:
        await self._ask("change", kind, changes)

    async def look(self, endpoints: Collection[str]) -> None:
        await self._ask("look", endpoints)

    async def settings(self) -> State:
        return await self._ask("settings")

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
