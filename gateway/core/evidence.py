"""What was seen of a version of a model in a while: the ground for drift and for rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

KEPT_S = 48 * 3600
"""How long evidence is kept."""


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


@dataclass(frozen=True, slots=True)
class Histogram:
    """Values of a signal counted in bins: one more than there are edges. Raises ValueError where that is
    not so. A release's reference is one of its signal's."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.edges or len(self.counts) != len(self.edges) + 1:
            raise ValueError(f"{len(self.edges)} edges make no {len(self.counts)} bins")

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def middles(self) -> tuple[float, ...]:
        """Of every bin; the two that are open are taken to be as wide as their neighbours."""
        widths = [b - a for a, b in pairwise(self.edges)] or [0.0]
        bounds = (self.edges[0] - widths[0], *self.edges, self.edges[-1] + widths[-1])
        return tuple((a + b) / 2 for a, b in pairwise(bounds))

    @property
    def mean(self) -> float | None:
        """Of the bins' middles; None where nothing was counted."""
        total = self.total
        return sum(m * c for m, c in zip(self.middles, self.counts, strict=True)) / total if total else None

    def plus(self, other: Histogram) -> Histogram:
        """Raises ValueError for bins of other edges: they cannot be added."""
        if self.edges != other.edges:
            raise ValueError("counts of other bins cannot be added")
        return Histogram(self.edges, tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)))


def summed(histograms: Iterable[Histogram]) -> Histogram | None:
    """All of them in one; None of none. Raises ValueError where their edges differ."""
    found: Histogram | None = None
    for one in histograms:
        found = one if found is None else found.plus(one)
    return found
