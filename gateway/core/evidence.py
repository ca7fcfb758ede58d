"""What was seen of a version of a model in a while: the ground for drift and for rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Evidence:
    """Counts add up. `failed` counts failures that speak against the model or its place, not callers'
    mistakes. `latency`: answers by bin, `signals`: values by bin (edgewire.signals)."""

    answered: int = 0
    failed: int = 0
    latency: Mapping[int, int] = field(default_factory=dict[int, int])
    signals: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    @property
    def requests(self) -> int:
        return self.answered + self.failed

    @property
    def error_rate(self) -> float | None:
        """None without a request."""
        return self.failed / self.requests if self.requests else None

    def plus(self, other: Evidence) -> Evidence:
        """Signals counted in bins of another number are left out: they cannot be added."""
        latency = dict(self.latency)
        for at, count in other.latency.items():
            latency[at] = latency.get(at, 0) + count
        signals = dict(self.signals)
        for name, counts in other.signals.items():
            mine = signals.get(name)
            if mine is None:
                signals[name] = counts
            elif len(mine) == len(counts):
                signals[name] = tuple(a + b for a, b in zip(mine, counts, strict=True))
        return Evidence(self.answered + other.answered, self.failed + other.failed, latency, signals)
