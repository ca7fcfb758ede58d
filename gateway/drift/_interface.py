"""What a drift detector is.

To add one: a file here with a class that has a `kind`, the name that `drift.detector` gives it, a `greatest`, no
constructor arguments and no state between scores. An import that takes long belongs in the constructor.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar, Protocol

from gateway.core.evidence import Histogram


class Detector(Protocol):
    kind: ClassVar[str]
    greatest: ClassVar[float]
    """No score is above it, so a threshold that is could never be reached."""

    def score(self, reference: Histogram, windows: Sequence[Histogram]) -> float:
        """How far the windows are from the reference: 0 for not at all, and never less, up to
        `greatest`. Pure.

        `windows` are of consecutive whiles, the oldest first, each of the reference's edges; at least
        one value is in them and in the reference. Raises ValueError where that is not so.
        """
        ...


def shares_below(histogram: Histogram) -> list[float]:
    """For each edge, the share of the values that lie below it."""
    total = histogram.total
    return [count / total for count in accumulate(histogram.counts[:-1])]


def together(reference: Histogram, windows: Sequence[Histogram]) -> Histogram:
    """The windows as one. Raises ValueError where they or the reference do not suit."""
    found = Histogram(reference.edges, (0,) * len(reference.counts))
    for window in windows:
        found = found.plus(window)
    if not found.total or not reference.total:
        raise ValueError("a drift score needs values in the reference and in the windows")
    return found
