"""Control's continual look at the devices: what the hub says of each, kept up to date."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import grpc
import grpc.aio

from edgewire.places import Place, Tier
from edgewire.v1 import edge_pb2, inside_pb2, inside_pb2_grpc
from gateway.core.fleet import DeviceReport, ModelReport, TrialReport
from oip.errors import OipError
from oip.reasons import Reason

AGAIN_S = 0.5
"""How soon the hub is asked again when it went away."""
FIRST_S = 10.0
"""How long the hub may take to tell of all devices."""
logger = logging.getLogger(__name__)


class FleetWatch:
    """`target` is the hub's inner listener, None where there is no hub: then there are no devices."""

    def __init__(self, target: str | None) -> None:
        self._target = target
        self._devices: dict[str, DeviceReport] = {}
        self._whole = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._target is not None and self._task is None:
            self._task = asyncio.create_task(self._keep(self._target), name="watch the fleet")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def devices(self) -> Sequence[DeviceReport]:
        """Every device that is enrolled and not revoked. Raises OipError UNAVAILABLE while the hub does not
        say: nothing is to be decided on what was once."""
        if self._target is None:
            return ()
        try:
            async with asyncio.timeout(FIRST_S if self._task is not None else 0):
                await self._whole.wait()
        except TimeoutError:
            raise OipError(Reason.UNAVAILABLE, "the edge hub is not available; try again") from None
        return tuple(self._devices.values())

    async def _keep(self, target: str) -> None:
        options = (("grpc.max_receive_message_length", -1),)
        while True:
            try:
                async with grpc.aio.insecure_channel(target, options=options) as channel:
                    watch = inside_pb2_grpc.HubInsideStub(channel).Watch(inside_pb2.WatchRequest())
                    async for message in watch:
                        self._take(message)
            except grpc.aio.AioRpcError as error:
                logger.debug("the hub is not there: %s", error.code().name)
            except Exception:
                # What was known is not to be taken for what is.
                logger.exception("what the hub says of the devices cannot be read")
            self._whole.clear()
            await asyncio.sleep(AGAIN_S)

    def _take(self, message: inside_pb2.Fleet) -> None:
        if message.complete:
            self._devices.clear()
        for device in message.devices:
            self._devices[device.name] = report_of(device)
        for name in message.removed:
            self._devices.pop(name, None)
        self._whole.set()


def report_of(device: inside_pb2.FleetDevice) -> DeviceReport:
    return DeviceReport(
        device.name,
        Place(Tier.DEVICE, site=device.site or None, device=device.name),
        dict(device.labels),
        device.connected,
        dict(device.facts),
        _models(device.models),
        {
            (trial.model, trial.version): TrialReport(
                trial.digest,
                _state(trial.state),
                trial.reason,
                trial.latency_p50_ms,
                trial.latency_p95_ms,
                trial.runs,
                trial.active_p50_ms,
                trial.active_p95_ms,
            )
            for trial in device.trials
        },
        device.spooled,
    )


def _models(models: Sequence[edge_pb2.ModelState]) -> Mapping[str, ModelReport]:
    return {
        m.model: ModelReport(
            m.version, m.digest, _state(m.state), m.reason, m.active_version, m.active_digest
        )
        for m in models
    }


def _state(state: edge_pb2.ModelState.State) -> str:
    return edge_pb2.ModelState.State.Name(state).lower()
