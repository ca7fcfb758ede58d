"""What the hub asks of the rest of the gateway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.core.release import Orders
from gateway.registry.devices import Enrolled


class Roll(Protocol):
    """What control keeps for the hub: who is enrolled, and what devices are to run."""

    async def enrol(self, token: str, device: str, credential_sha256: bytes) -> Enrolled:
        """Redeem a token for a device; the same call made again answers the same. Raises OipError."""
        ...

    async def enrolled(self) -> Sequence[Enrolled]:
        """Every device, revoked ones included. Raises OipError when it cannot be read now."""
        ...

    async def deliver(self, device: Enrolled, request: bytes) -> bytes:
        """Count the records of a serialized DeliverRequest, each once; the serialized DeliverReply, when what
        it says is on disk. Raises OipError."""
        ...

    async def orders(self) -> Orders:
        """What devices are to run, try and gather, complete. Raises OipError when it is not known now."""
        ...
