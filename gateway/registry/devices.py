"""An enrolled device, as the registry knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Enrolled:
    """One device that may join.

    `credential_sha256` is the digest (32 bytes) of what it shows. A drained device gets no new requests,
    a revoked one is not let in.
    """

    name: str
    site: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    credential_sha256: bytes = field(default=b"", repr=False)
    drained: bool = False
    revoked: bool = False
