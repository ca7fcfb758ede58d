"""Population stability index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from gateway.core.evidence import Histogram
from gateway.drift._interface import together


class Psi:
    """Sum over the bins of (q - p) ln(q / p), p being the reference's share of a bin and q the windows'.

    From 0, without a greatest. By custom less than 0.1 is none to speak of and more than 0.2 a change. A
    bin that is empty in both does not count; every other one gets half a count more on both sides, so that
    an empty one stands for "less than one" and not for "never": its share has a logarithm, and weighs the
    less the more was counted.
    """

    kind: ClassVar[str] = "psi"
    greatest: ClassVar[float] = math.inf

    def score(self, reference: Histogram, windows: Sequence[Histogram]) -> float:
        now = together(reference, windows)
        bins = [(a + 0.5, b + 0.5) for a, b in zip(reference.counts, now.counts, strict=True) if a or b]
        expected, seen = (sum(side) for side in zip(*bins, strict=True))
        return sum((b / seen - a / expected) * math.log((b * expected) / (a * seen)) for a, b in bins)
