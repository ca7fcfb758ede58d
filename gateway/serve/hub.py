"""The edge hub's deployment: its server in a thread of its own, and what control may ask of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from gateway.core.release import Orders
from gateway.edgehub.server import HubServer
from gateway.pool.loopback import bind_replica_to_loopback
from gateway.registry.devices import Enrolled
from gateway.serve.crossing import answered, value_of
from gateway.serve.own_loop import OwnLoop
from gateway.serve.settings import HubSettings
from gateway.store.blobs import BlobStore
from oip.errors import OipError
from oip.reasons import Reason

CONTROL_TIMEOUT_S = 10.0
GRACE_S = 2.0
"""For what still runs when the hub closes; the data plane has drained by then."""


class EdgeHub:
    """The one replica that holds the devices' streams."""

    def __init__(self, settings: HubSettings, control: DeploymentHandle) -> None:
        bind_replica_to_loopback()
        self._address = str(settings.listen)
        blobs = BlobStore(settings.config.artifacts, settings.state_dir)
        self._server = HubServer(
            settings.config, settings.listen, settings.inside, ControlsRoll(control), blobs
        )
        self._own = OwnLoop("the edge hub")
        self._own.start(self._server.start())

    async def describe(self) -> dict[str, Any]:
        """Address and process id; or `failure`: why no device can connect."""
        if self._own.failure:
            return {"failure": self._own.failure}
        return {"edge": self._address, "pid": os.getpid()}

    async def reread(self) -> dict[str, Any]:
        """Take in what the registry says now."""
        return await answered(self._own.run(self._server.roll_changed()))

    async def drain(self) -> None:
        """Part from the devices and close."""
        await self._own.run(self._server.close(GRACE_S))

    def check_health(self) -> None:
        """Asked by Serve; a replica that is of no use is replaced."""
        self._own.check()

    async def __del__(self) -> None:
        """Awaited by Serve when it stops the replica."""
        if self._own.alive:
            await self.drain()
            self._own.stop()


class ControlsRoll:
    """The registry and the orders as the hub reaches them: through control, which alone makes them."""

    def __init__(self, control: DeploymentHandle) -> None:
        self._control = control

    async def enrol(self, token: str, device: str, credential_sha256: bytes) -> Enrolled:
        return await self._ask("enrol", token, device, credential_sha256)

    async def enrolled(self) -> Sequence[Enrolled]:
        return await self._ask("enrolled")

    async def deliver(self, device: Enrolled, request: bytes) -> bytes:
        return await self._ask("deliver", device.name, device.site, request)

    async def orders(self) -> Orders:
        return await self._ask("orders")

    async def _ask(self, method: str, *args: Any) -> Any:
        try:
            async with asyncio.timeout(CONTROL_TIMEOUT_S):
                answer = await getattr(self._control, method).remote(*args)
        except (TimeoutError, RayError, RayServeException) as error:
            text = f"control is not available ({type(error).__name__}); try again"
            raise OipError(Reason.UNAVAILABLE, text) from error
        return value_of(answer)
