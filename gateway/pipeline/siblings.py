"""What a data plane replica needs of the others that serve at the same addresses, so that a caller does not
notice which of them it has got."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, Protocol

from gateway.pipeline.served import Counts

Kind = Literal["trace", "log"]


class Siblings(Protocol):
    """All replicas, this one among them. Calls raise OipError."""

    async def counts(self) -> Counts:
        """What all of them have served, those included that have ended."""
        ...

    async def change(self, kind: Kind, changes: Mapping[str, Any]) -> None:
        """Change the settings of each."""
        ...

    async def look(self, endpoints: Collection[str]) -> None:
        """Have each look at endpoints that are not as they were; returns when they have."""
        ...
