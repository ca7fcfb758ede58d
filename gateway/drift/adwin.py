"""Adaptive windowing (Bifet and Gavalda 2007), by river."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, ClassVar

from gateway.core.evidence import Histogram
from gateway.drift._interface import together

MOST_VALUES = 1000
"""Of the reference, and of all windows together: more of them take time and tell no more."""
_CHECK_EVERY = 8
"""ADWIN looks for a change after so many values."""


class Adwin:
    """How far the values moved where ADWIN finds a change: the distance of the mean of those after it from
    the reference's, 0 to 0.5; 0 without a change.

    A value counts as its rank in the reference, the share of it that lies below: the reference's own mean
    is then 0.5 whatever the signal's scale is, and a value far outside weighs no more than one just
    outside. ADWIN reads the reference's values first, then those of the windows in their order; within a
    window values have no order and are spread evenly.

    Importing river takes seconds: the first one is best made where nothing waits.
    """

    kind: ClassVar[str] = "adwin"
    greatest: ClassVar[float] = 0.5

    def __init__(self) -> None:
        from river.drift import ADWIN

        self._make: Any = ADWIN

    def score(self, reference: Histogram, windows: Sequence[Histogram]) -> float:
        total = together(reference, windows).total
        ranks = _ranks(reference)
        adwin = self._make(clock=_CHECK_EVERY)
        for rank in _spread(reference, ranks, MOST_VALUES / reference.total):
            adwin.update(rank)
        changed = False
        for window in windows:
            for rank in _spread(window, ranks, MOST_VALUES / total):
                adwin.update(rank)
                changed = changed or adwin.drift_detected
        return abs(float(adwin.estimation) - 0.5) if changed else 0.0


def _ranks(reference: Histogram) -> list[float]:
    """Of every bin, the share of the reference below its middle."""
    ends = list(accumulate(reference.counts))
    return [(end - count / 2) / ends[-1] for end, count in zip(ends, reference.counts, strict=True)]


def _spread(histogram: Histogram, ranks: Sequence[float], share: float) -> Iterator[float]:
    """The ranks of a histogram's values, `share` of them at most and all of them if that is over 1, each
    bin's evenly between the others'."""
    keep = min(1.0, share)
    at: list[tuple[float, float]] = []
    for rank, count in zip(ranks, histogram.counts, strict=True):
        kept = round(count * keep)
        at += [((k + 0.5) / kept, rank) for k in range(kept)]
    return (rank for _, rank in sorted(at))
