"""Faster is better: the best p50 among the candidates over the own one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gateway.routing.scorers._interface import View, against_best


class LatencyScorer:
    """A candidate being probed scores 1, so that it is tried; one that stays unmeasured scores 0."""

    kind: ClassVar[str] = "latency"

    def score(self, views: Sequence[View]) -> list[float]:
        return against_best([None if v.probing else v.latency_p50_ms for v in views], views)
