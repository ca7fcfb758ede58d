"""The weighted mean of the scorers that a policy gives weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from gateway.core.config import Weights
from gateway.core.plugins import discover
from gateway.routing.scorers._interface import Scorer, View

SCORERS: dict[str, Scorer] = {
    kind: cast(Scorer, cls()) for kind, cls in discover("gateway.routing.scorers").items()
}


def shares(weights: Weights) -> tuple[tuple[str, float], ...]:
    """(scorer, share) for every scorer with weight; the shares add up to 1, or there are none."""
    given = {kind: float(getattr(weights, kind, 0.0)) for kind in SCORERS}
    total = sum(given.values())
    return tuple((kind, value / total) for kind, value in given.items() if value > 0)


def score(parts: Sequence[tuple[str, float]], views: Sequence[View]) -> list[dict[str, float]]:
    """For each view its score by scorer, and "total", their mean by share. All in [0,1]."""
    scores: list[dict[str, float]] = [{} for _ in views]
    totals = [0.0] * len(views)
    for kind, share in parts:
        for i, value in enumerate(SCORERS[kind].score(views)):
            scores[i][kind] = value
            totals[i] += share * value
    for by_kind, total in zip(scores, totals, strict=True):
        by_kind["total"] = min(total, 1.0)
    return scores
