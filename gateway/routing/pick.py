"""In which order the candidates are tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

EQUAL_WITHIN = 0.02
"""Totals this close to the best are equals: their weights decide, not the last digit."""
_ROUNDING = 1e-9


class Rng(Protocol):
    """The part of random.Random that is needed."""

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...


class Order(NamedTuple):
    """`indices` of the candidates, best first; the first was drawn among `equals` of them."""

    indices: tuple[int, ...]
    equals: int


def order(totals: Sequence[float], weights: Sequence[int], rng: Rng) -> Order:
    """Descending by total, except that the first is drawn by weight among the best and its equals.

    Weight 0 is never drawn while another equal has weight; it stays a fallback. Ties keep the
    order given. Nothing is drawn (rng is not asked) where there is no choice.
    """
    ranked = sorted(range(len(totals)), key=lambda i: -totals[i])
    if not ranked:
        return Order((), 0)
    floor = totals[ranked[0]] - EQUAL_WITHIN - _ROUNDING
    equals = [i for i in ranked if totals[i] >= floor]
    first = _draw(equals, weights, rng)
    if first != ranked[0]:
        ranked.remove(first)
        ranked.insert(0, first)
    return Order(tuple(ranked), len(equals))


def _draw(equals: Sequence[int], weights: Sequence[int], rng: Rng) -> int:
    weighted = [i for i in equals if weights[i] > 0]
    if len(weighted) < 2:
        return weighted[0] if weighted else equals[0]
    left = rng.random() * sum(weights[i] for i in weighted)
    for i in weighted:
        left -= weights[i]
        if left < 0:
            return i
    return weighted[-1]
