"""Cheaper is better: the lowest cost per answer among the candidates over the own one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gateway.routing.scorers._interface import View, against_best


class CostScorer:
    """An unknown cost scores 1 while its candidate is probed, and 0 after that: traffic measures
    latency but not capacity, and a place nobody measured must not pass for free for ever."""

    kind: ClassVar[str] = "cost"

    def score(self, views: Sequence[View]) -> list[float]:
        return against_best([v.cost for v in views], views)
