"""What a scorer is.

A scorer sees the eligible candidates of one request side by side and gives each a number in [0,1],
1 the best. To add one: a file here with a class that has a `kind`, no constructor arguments and no
state, and its weight in `gateway.core.config.Weights` under the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol


class View(NamedTuple):
    """What a scorer sees of one candidate.

    `latency_p50_ms` is positive or zero, `cost` (per answer, configured currency) likewise,
    `quality` is in [0,1]; None: not measured, or not declared. `probing`: its latency is missing or
    stale and the candidate is to be tried, so that it gets measured.
    """

    latency_p50_ms: float | None
    cost: float | None
    quality: float | None
    probing: bool


class Scorer(Protocol):
    kind: ClassVar[str]

    def score(self, views: Sequence[View]) -> list[float]:
        """One score in [0,1] for each view, in their order. Pure."""
        ...


def against_best(values: Sequence[float | None], views: Sequence[View]) -> list[float]:
    """best / own for each view's value: 1 for the best and for 0; where it is not known, 1 while the
    candidate is probed and 0 otherwise.

    A place that is free (or takes no time) makes every other one's score 0.
    """
    known = [value for value in values if value is not None]
    best = min(known) if known else 0.0
    return [
        (1.0 if view.probing else 0.0) if value is None else best / value if value > 0 else 1.0
        for value, view in zip(values, views, strict=True)
    ]
