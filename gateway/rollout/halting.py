"""What ends a rollout. A limit that is reached is over.

The error rate is the new version's own. Latency and confidence are held against the old version in the
same time; where that has too little to show, as when no device is left on it, against the old version in
the time before the rollout; and where that has too little too, they are not judged. A difference that
few answers show by chance ends nothing: of both figures the range is known in which the true one lies
(SURE), and the ranges must not meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from edgewire.signals import CONFIDENCE, latency_quantile
from gateway.core.config import HaltConfig
from gateway.core.evidence import Evidence

SURE = 1.96
"""Standard errors to either side of a figure: the true one lies beyond them once in 20 times."""
EXACT = 1e-9
"""Figures that differ by less than this share are the same: they are sums of binary fractions."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Evidence in numbers. `p95_s` and `confidence` (the mean, of `rated` answers) are None where nothing
    was counted. The true p95 lies between `p95_least_s` and `p95_most_s`, None: exactly there; the true mean
    within `confidence_off` of the confidence."""

    answered: int = 0
    failed: int = 0
    p95_s: float | None = None
    confidence: float | None = None
    rated: int = 0
    p95_least_s: float | None = None
    p95_most_s: float | None = None
    confidence_off: float = 0.0

    @property
    def p95_range_s(self) -> tuple[float, float]:
        """Of a p95 that is known."""
        assert self.p95_s is not None
        least, most = self.p95_least_s, self.p95_most_s
        return self.p95_s if least is None else least, self.p95_s if most is None else most

    @property
    def error_rate(self) -> float | None:
        """None without a request."""
        requests = self.answered + self.failed
        return self.failed / requests if requests else None


NOTHING = Figures()


def figures_of(evidence: Evidence, edges: Sequence[float]) -> Figures:
    """`edges` are those of the confidence's bins; counts in bins of another number say nothing."""
    counts = evidence.signals.get(CONFIDENCE, ())
    rated = sum(counts) if len(counts) == len(edges) + 1 else 0
    mean, off = _mean(counts, edges) if rated else (None, 0.0)
    timed = max(1, sum(evidence.latency.values()))
    # How far the rank of the true p95 may be from where it is expected, whatever the latencies' shape.
    ranks = SURE * math.sqrt(0.95 * 0.05 / timed)
    return Figures(
        evidence.answered,
        evidence.failed,
        latency_quantile(evidence.latency, 0.95),
        mean,
        rated,
        latency_quantile(evidence.latency, 0.95 - ranks),
        latency_quantile(evidence.latency, min(1.0, 0.95 + ranks)),
        off,
    )


def device_fault(failed: Mapping[str, str], attempted: int, halt: HaltConfig) -> str | None:
    """Why so many devices that failed end the rollout; None where they do not."""
    if not failed or not _reached(len(failed) / attempted, halt.error_rate):
        return None
    first = min(failed)
    return (
        f"{len(failed)} of {attempted} devices failed to take it, which reaches {halt.error_rate:.3g};"
        f" {first}: {failed[first]}"
    )


def evidence_fault(new: Figures, old: Figures, before: Figures, halt: HaltConfig, least: int) -> str | None:
    """Why the new version's answers end the rollout; None where they do not. `least` requests, and at
    least one, make a figure worth judging."""
    least = max(1, least)
    return (
        _errors_fault(new, halt.error_rate, least)
        or _latency_fault(new, old, before, halt.latency_p95_ratio, least)
        or _confidence_fault(new, old, before, halt.confidence_drop, least)
    )


def _errors_fault(new: Figures, limit: float, least: int) -> str | None:
    requests = new.answered + new.failed
    if not new.failed or requests < least or not _reached(new.failed / requests, limit):
        return None
    return f"{new.failed} of {requests} requests failed, which reaches {limit:.3g}"


def _latency_fault(new: Figures, old: Figures, before: Figures, limit: float, least: int) -> str | None:
    base = _baseline(old, before, lambda figures: figures.answered >= least and figures.p95_s is not None)
    if base is None or new.answered < least or new.p95_s is None:
        return None
    usual = base[0].p95_s or 0.0
    by_chance = new.p95_range_s[0] <= base[0].p95_range_s[1]
    if by_chance or not _reached(new.p95_s, usual * limit):
        return None
    return (
        f"p95 latency is {new.p95_s * 1000:.3g} ms against {usual * 1000:.3g} ms of the old version{base[1]},"
        f" which reaches {limit:.3g} times"
    )


def _confidence_fault(new: Figures, old: Figures, before: Figures, limit: float, least: int) -> str | None:
    base = _baseline(old, before, lambda figures: figures.rated >= least)
    if base is None or new.rated < least or new.confidence is None:
        return None
    usual = base[0].confidence or 0.0
    off = math.hypot(new.confidence_off, base[0].confidence_off)
    if usual - new.confidence <= off or not _reached(usual - new.confidence, limit, usual):
        return None
    return (
        f"mean confidence is {new.confidence:.3f} against {usual:.3f} of the old version{base[1]},"
        f" a drop that reaches {limit:.3g}"
    )


def _baseline(old: Figures, before: Figures, enough: Callable[[Figures], bool]) -> tuple[Figures, str] | None:
    """What to hold the new version against, and how to say which that is."""
    if enough(old):
        return old, ""
    return (before, " before the rollout") if enough(before) else None


def _reached(value: float, limit: float, scale: float | None = None) -> bool:
    """`scale`: of the terms that `value` is the difference of."""
    return value >= limit - EXACT * (limit if scale is None else max(limit, scale))


def _mean(counts: Sequence[int], edges: Sequence[float]) -> tuple[float, float]:
    """By the middles of the bins, and how far the true one may be from it; a confidence lies between 0 and 1."""
    bounds = [0.0, *(min(max(edge, 0.0), 1.0) for edge in edges), 1.0]
    middles = [(a + b) / 2 for a, b in pairwise(bounds)]
    total = sum(counts)
    mean = sum(count * middle for count, middle in zip(counts, middles, strict=True)) / total
    variance = (
        sum(count * (middle - mean) ** 2 for count, middle in zip(counts, middles, strict=True)) / total
    )
    return mean, SURE * math.sqrt(variance / total)
