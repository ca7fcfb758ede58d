"""What ends a rollout: a limit that is reached is over, and too little evidence judges nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edgewire.signals import CONFIDENCE, default_edges, latency_bin
from gateway.core.config import HaltConfig
from gateway.core.evidence import Evidence
from gateway.rollout.halting import NOTHING, Figures, device_fault, evidence_fault, figures_of

HALT = HaltConfig(error_rate=0.2, latency_p95_ratio=2.0, confidence_drop=0.1)
GOOD = Figures(100, 0, 0.01, 0.9, 100)


def fault(new: Figures, old: Figures = GOOD, before: Figures = NOTHING, least: int = 20) -> str | None:
    return evidence_fault(new, old, before, HALT, least)


@pytest.mark.parametrize(
    ("failed", "attempted", "halts"),
    [(0, 0, False), (0, 10, False), (1, 6, False), (1, 5, True), (2, 10, True), (1, 1, True)],
)
def test_devices_that_fail_halt_exactly_at_the_threshold(failed: int, attempted: int, halts: bool):
    names = {f"cam-{n}": "crashed" for n in range(failed)}
    assert (device_fault(names, attempted, HALT) is not None) is halts


@pytest.mark.parametrize(
    ("answered", "failed", "halts"),
    [(80, 20, True), (81, 19, False), (16, 4, True), (15, 4, False), (0, 20, True), (100, 0, False)],
)
def test_requests_that_fail_halt_exactly_at_the_threshold(answered: int, failed: int, halts: bool):
    """15 and 4 are too few to judge by; 20 that all failed are not."""
    new = Figures(answered, failed)
    assert (fault(new) is not None) is halts


@pytest.mark.parametrize("limit", [0.1, 0.3, 0.7, 0.07])
def test_share_that_is_the_threshold_in_decimals_reaches_it(limit: float):
    """3 of 10 is 0.3, however binary fractions see it."""
    halt = HaltConfig(error_rate=limit)
    failed = round(limit * 1000)
    assert evidence_fault(Figures(1000 - failed, failed), NOTHING, NOTHING, halt, 20)
    assert not evidence_fault(Figures(1001 - failed, failed - 1), NOTHING, NOTHING, halt, 20)


def test_threshold_of_nothing_takes_a_failure_to_be_reached():
    halt = HaltConfig(error_rate=0.0)
    assert evidence_fault(GOOD, GOOD, NOTHING, halt, 20) is None
    assert evidence_fault(Figures(99, 1), GOOD, NOTHING, halt, 20)
    assert device_fault({}, 5, halt) is None


@pytest.mark.parametrize(("p95", "halts"), [(0.02, True), (0.0199, False), (0.03, True), (0.01, False)])
def test_latency_halts_exactly_at_its_ratio(p95: float, halts: bool):
    assert (fault(Figures(100, 0, p95, 0.9, 100)) is not None) is halts


def test_latency_bins_an_octave_apart_are_a_ratio_of_two():
    """12 bins are a doubling, though their ends are no exact powers."""
    for at in range(10, 250):
        old = figures_of(Evidence(100, 0, {at: 100}), ())
        assert fault(figures_of(Evidence(100, 0, {at + 12: 100}), ()), old)
        assert not fault(figures_of(Evidence(100, 0, {at + 11: 100}), ()), old)


@pytest.mark.parametrize(("confidence", "halts"), [(0.8, True), (0.81, False), (0.5, True), (0.99, False)])
def test_confidence_halts_exactly_at_its_drop(confidence: float, halts: bool):
    """0.9 - 0.8 is a little under 0.1 in binary fractions."""
    assert (fault(Figures(100, 0, 0.01, confidence, 100)) is not None) is halts


def test_without_a_device_on_the_old_version_the_time_before_is_the_measure():
    slow = Figures(100, 0, 0.05, 0.5, 100)
    assert fault(slow, NOTHING, NOTHING) is None
    told = fault(slow, NOTHING, GOOD)
    assert told is not None
    assert "before the rollout" in told
    assert fault(slow, slow, GOOD) is None


@pytest.mark.parametrize("count", [0, 19])
def test_too_little_of_either_version_judges_nothing(count: int):
    bad = Figures(count, 0, 1.0, 0.1, count)
    assert fault(bad) is None
    assert fault(Figures(100, 0, 1.0, 0.1, 100), Figures(count, 0, 0.01, 0.9, count)) is None


def test_answers_without_a_confidence_are_not_judged_by_it():
    assert fault(Figures(100, 0, 0.01, None, 0)) is None
    assert fault(GOOD, Figures(100, 0, 0.01, None, 0)) is None


def few(slow: int, of: int = 30) -> Figures:
    """6 ms, but `slow` of them 24 ms."""
    return figures_of(Evidence(of, 0, {latency_bin(0.006): of - slow, latency_bin(0.024): slow}), ())


def test_a_few_slow_answers_of_few_are_chance_and_the_same_share_of_many_is_not():
    """Of 30 answers 2 are over the p95: nothing says that the next ones are slow as well."""
    usual = few(0, 300)
    assert few(2).p95_s == pytest.approx(0.024, rel=0.06)
    assert fault(few(2), usual) is None
    assert fault(few(20, 300), usual) is None
    assert fault(few(27, 300), usual)
    assert fault(few(5), usual)
    # The old version's own p95 is as uncertain.
    assert fault(few(30), few(2)) is None


def rated(low: int, of: int, edges: Sequence[float]) -> Figures:
    """Confidence 0.975, but `low` of them 0.025."""
    counts = (low, *(0 for _ in edges[1:]), of - low)
    return figures_of(Evidence(of, 0, {}, {CONFIDENCE: counts}), edges)


def test_a_drop_of_confidence_that_few_answers_show_is_chance():
    edges = default_edges(CONFIDENCE)
    usual = rated(100, 1000, edges)
    assert usual.confidence == pytest.approx(0.88)
    assert fault(rated(5, 20, edges), usual) is None
    assert fault(rated(10, 20, edges), usual)
    assert fault(rated(250, 1000, edges), usual)


def test_figures_are_what_the_bins_say():
    edges = default_edges(CONFIDENCE)
    counts = [0] * 20
    counts[19], counts[9] = 30, 10
    seen = figures_of(
        Evidence(40, 2, {latency_bin(0.1): 38, latency_bin(0.4): 2}, {CONFIDENCE: tuple(counts)}), edges
    )
    assert (seen.answered, seen.failed, seen.rated) == (40, 2, 40)
    assert seen.confidence == pytest.approx((30 * 0.975 + 10 * 0.475) / 40)
    assert seen.p95_s == pytest.approx(0.1, rel=0.06)
    assert seen.p95_range_s == (pytest.approx(0.1, rel=0.06), pytest.approx(0.4, rel=0.06))
    assert seen.confidence_off == pytest.approx(1.96 * 0.2165 / 40**0.5, rel=0.001)


def test_bins_of_another_number_say_nothing_of_the_confidence():
    seen = figures_of(Evidence(40, 0, {}, {CONFIDENCE: (40,)}), default_edges(CONFIDENCE))
    assert (seen.confidence, seen.rated, seen.p95_s) == (None, 0, None)
