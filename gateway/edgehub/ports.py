"""What the hub asks of the rest of the gateway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from gateway.registry.devices import Enrolled


class Roll(Protocol):
    """The registry of devices, which control keeps."""

    async def enrol(self, token: str, device: str, credential_sha256: bytes) -> Enrolled:
        """Redeem a token for a device; the same call made again answers the same. Raises OipError."""
        ...

    async def enrolled(self) -> Sequence[Enrolled]:
        """Every device, revoked ones included. Raises OipError when it cannot be read now."""
        ...


class ArtifactFile(Protocol):
    """A model file and its golden vectors, with their digests ("sha256:" and 64 hex digits) and sizes
    in bytes. `golden` None: there are none, and its digest and size mean nothing."""

    @property
    def path(self) -> Path: ...

    @property
    def digest(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def golden(self) -> Path | None: ...

    @property
    def golden_digest(self) -> str: ...

    @property
    def golden_size(self) -> int: ...


Artifacts = Callable[[str], ArtifactFile]
"""A variant's `artifact` -> the file. Raises OipError or ValueError with one sentence when it cannot be
read. Takes as long as reading the file does."""
