"""The Kolmogorov-Smirnov distance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gateway.core.evidence import Histogram
from gateway.drift._interface import shares_below, together


class Ks:
    """The largest distance between the cumulative distributions of reference and windows, 0 to 1.

    It is known at the bins' edges alone, so it can be less than the true one, and never more.
    """

    kind: ClassVar[str] = "ks"
    greatest: ClassVar[float] = 1.0

    def score(self, reference: Histogram, windows: Sequence[Histogram]) -> float:
        now = shares_below(together(reference, windows))
        return max(abs(a - b) for a, b in zip(shares_below(reference), now, strict=True))
