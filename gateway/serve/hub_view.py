"""What control sees of the edge hub: the devices as they are now, as plain data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import grpc
import grpc.aio

from edgewire.v1 import edge_pb2, inside_pb2, inside_pb2_grpc
from oip.errors import OipError
from oip.reasons import Reason

TIMEOUT_S = 5.0
Live = Mapping[str, Mapping[str, Any]]
"""What the hub sees of each device, by name."""


class HubView:
    """`target` is the hub's inner listener; `reread` asks it to take in what the registry says now, and
    raises OipError where it cannot be asked."""

    def __init__(self, target: str, reread: Callable[[], Awaitable[None]]) -> None:
        self._target = target
        self.reread = reread

    async def live(self) -> Live:
        """Every device that the hub knows. Raises OipError UNAVAILABLE."""
        options = (("grpc.max_receive_message_length", -1),)
        try:
            async with grpc.aio.insecure_channel(self._target, options=options) as channel:
                watch = inside_pb2_grpc.HubInsideStub(channel).Watch(
                    inside_pb2.WatchRequest(), timeout=TIMEOUT_S
                )
                first = await watch.read()
                watch.cancel()
        except grpc.aio.AioRpcError as error:
            raise OipError(
                Reason.UNAVAILABLE, f"the edge hub is not available ({error.code().name}); try again"
            ) from None
        if not isinstance(first, inside_pb2.Fleet):
            raise OipError(Reason.UNAVAILABLE, "the edge hub is stopping; try again")
        return plain(first.devices)


def plain(fleet: Iterable[inside_pb2.FleetDevice]) -> dict[str, dict[str, Any]]:
    """What the hub sees of each device, by name."""
    return {device.name: _live(device) for device in fleet}


def _live(device: inside_pb2.FleetDevice) -> dict[str, Any]:
    told = device.telemetry
    readings = {
        field.name: round(value, 3) if isinstance(value, float) else value
        for field, value in told.ListFields()
        if field.name != "inflight"
    }
    heard = device.connected or bool(device.models) or device.silent_ms > 0
    return {
        "connected": device.connected,
        "silent_s": device.silent_ms / 1000 if heard else None,
        "inflight": device.inflight,
        "telemetry": readings,
        "facts": dict(device.facts),
        "models": [
            {
                "model": model.model,
                "version": model.version,
                "digest": model.digest,
                "state": edge_pb2.ModelState.State.Name(model.state).lower(),
                "reason": model.reason,
                "active_version": model.active_version,
                "active_digest": model.active_digest,
                "delegate": model.delegate,
                "delegated_nodes": model.delegated_nodes,
                "nodes": model.nodes,
                "degraded": model.degraded,
            }
            for model in device.models
        ],
    }
