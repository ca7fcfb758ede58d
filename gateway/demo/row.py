"""One line of the demo's table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """`cost_per_1k` is in the configured currency; None where it is not known."""

    row: str
    scene: str
    expected: str
    got: str
    chosen: str
    p50_ms: float | None
    cost_per_1k: float | None
    why: str
    ok: bool

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


Tick = Callable[[int], None]
"""Told how many more calls are done."""
