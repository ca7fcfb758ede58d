"""A group of devices as one place to measure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from gateway.core.errors import AttemptError
from gateway.core.fleet import Group, ModelKey
from gateway.core.ports import Endpoint, Permit
from oip.reasons import STATUS, Reason


class Spread:
    """Sends each request to the device that has the fewest of them, among those that can answer `model`
    now: what the group takes together is its capacity. `group` tells the devices as they are."""

    def __init__(self, endpoint: Endpoint, name: str, model: ModelKey, group: Callable[[], Group]) -> None:
        self._endpoint = endpoint
        self._name = name
        self._model = model
        self._group = group
        self._inflight: Counter[str] = Counter()
        self._given: Counter[str] = Counter()

    async def infer(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float, permit: Permit
    ) -> bytes:
        """As an Endpoint's. Raises AttemptError, also when no device is ready."""
        group = self._group()
        ready = [name for names in group.ready.get(self._model, {}).values() for name in names]
        if not ready:
            raise AttemptError(
                Reason.UNAVAILABLE,
                f"{self._name}: no device has the model ready",
                grpc_status=STATUS[Reason.UNAVAILABLE].grpc,
                sent=False,
                retryable=True,
            )
        device = min(ready, key=lambda name: (self._inflight[name], self._given[name]))
        self._inflight[device] += 1
        self._given[device] += 1
        try:
            return await self._endpoint.infer(
                body, metadata, timeout_s, replace(permit, device=device, place=group.devices[device].place)
            )
        finally:
            self._inflight[device] -= 1

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
        return await self._endpoint.model_metadata(model, version, timeout_s)
