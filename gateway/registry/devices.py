"""A device as it is enrolled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Enrolled:
    """One enrolled device. `name` is unique among all gateways' devices that this registry knows.

    `site` and `labels` come from the token that it redeemed. `credential_sha256` (32 bytes) is the
    digest of the credential that it shows on each connection; the credential itself stays on the
    device. A `drained` device gets no new requests. A `revoked` one may not connect, and its name can be
    enrolled anew.
    """

    name: str
    site: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    credential_sha256: bytes = field(default=b"", repr=False)
    drained: bool = False
    revoked: bool = False
