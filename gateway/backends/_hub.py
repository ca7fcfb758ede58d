"""The way from a data plane process to the hub that holds the devices' streams.

One link and one Watch serve all edge endpoints of a process: a thousand devices are then told once.
Inferences have a connection of their own, so that large ones hold up neither the Watch nor a health check.
The Watch is also how a dead hub is found at once: it ends with the connection. It is asked for again
every RETRY_S, so that a hub that returns is back without a hand; meanwhile every device counts as not
connected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from edgewire.v1 import inside_pb2, inside_pb2_grpc
from gateway.backends._fleet import Seen, seen

RETRY_S = 0.25
CLOSE_S = 1.0
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
)
logger = logging.getLogger(__name__)

Changed = Callable[[Collection[str]], None]
"""Takes the names of the devices that are new, other or gone."""


class HubLink:
    """Use `link_to`. Everything runs on one loop."""

    def __init__(self, target: str) -> None:
        self.fleet: dict[str, Seen] = {}
        self.up = False
        """Whether the hub tells of its devices now."""
        self._tried = asyncio.Event()
        self._listeners: list[Changed] = []
        self._channel = grpc.aio.insecure_channel(target, options=OPTIONS)
        self._bulk = grpc.aio.insecure_channel(target, options=OPTIONS)
        self.hub = inside_pb2_grpc.HubInsideStub(self._bulk)
        """For inferences."""
        self._told = inside_pb2_grpc.HubInsideStub(self._channel)
        # The stub makes its calls at run time, so a type checker cannot see them.
        self._health: Any = health_pb2_grpc.HealthStub(self._channel)
        self._watched: Any = None
        self._watcher = asyncio.create_task(self._watch(), name="watch the edge hub")

    def listen(self, listener: Changed) -> None:
        """Call `listener` at every change, and once now."""
        self._listeners.append(listener)
        listener(list(self.fleet))

    def leave(self, listener: Changed) -> None:
        self._listeners.remove(listener)

    async def connected(self, wait_s: float) -> bool:
        """Whether the hub is there; waits for a first try to reach it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._tried.wait()
        return self.up

    async def check(self, timeout_s: float) -> None:
        """Raises AioRpcError when the hub does not answer."""
        await self._health.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)

    async def close(self) -> None:
        self._watcher.cancel()
        await asyncio.gather(self._watcher, return_exceptions=True)
        if self._watched is not None:
            self._watched.cancel()
            await ended(self._watched)
        await self._bulk.close()
        await self._channel.close()

    async def _watch(self) -> None:
        while True:
            try:
                self._watched = self._told.Watch(inside_pb2.WatchRequest())
                async for message in self._watched:
                    self._heard(message)
            except grpc.aio.AioRpcError:
                pass
            self._lost()
            await asyncio.sleep(RETRY_S)

    def _heard(self, message: inside_pb2.Fleet) -> None:
        now = asyncio.get_running_loop().time()
        changed = set(message.removed)
        if message.complete:
            changed |= self.fleet.keys()
            self.fleet.clear()
        for name in message.removed:
            self.fleet.pop(name, None)
        for told in message.devices:
            self.fleet[told.name] = seen(told, now)
            changed.add(told.name)
        self.up = True
        self._tried.set()
        self._tell(changed)

    def _lost(self) -> None:
        was_up, self.up = self.up, False
        self._tried.set()
        if was_up:
            self.fleet = {
                name: Seen(one.told, replace(one.device, connected=False)) for name, one in self.fleet.items()
            }
            self._tell(self.fleet)

    def _tell(self, names: Collection[str]) -> None:
        for listener in list(self._listeners):
            try:
                listener(names)
            except Exception:  # one group's trouble is not the others', nor the end of the watch
                logger.exception("a device group could not be brought up to date")


async def ended(*calls: Any) -> None:
    """Wait, for CLOSE_S at most, until gRPC has said its last word of calls that were cancelled."""
    if calls:
        codes = [asyncio.ensure_future(call.code()) for call in calls]
        await asyncio.wait(codes, timeout=CLOSE_S)
        for code in codes:
            code.cancel()
        await asyncio.gather(*codes, return_exceptions=True)


_links: dict[tuple[asyncio.AbstractEventLoop, str], tuple[HubLink, int]] = {}


def link_to(target: str) -> HubLink:
    """The running loop's link to the hub at a gRPC target; give it back with `release`."""
    key = (asyncio.get_running_loop(), target)
    link, users = _links.get(key) or (HubLink(target), 0)
    _links[key] = (link, users + 1)
    return link


async def release(target: str) -> None:
    """The last user's release closes the link."""
    key = (asyncio.get_running_loop(), target)
    link, users = _links.pop(key)
    if users > 1:
        _links[key] = (link, users - 1)
    else:
        await link.close()
