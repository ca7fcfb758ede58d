from __future__ import annotations

import numpy as np
import pytest

from gateway.core.decision import LatencyFigure, Outcome, Source
from gateway.routing.latency import MIN_LIVE, STALE_AFTER_S, WINDOW, LatencyWindow, from_profile, is_stale

PROFILE = LatencyFigure(20.0, 30.0, 200, 0.0, Source.PROFILE)


def filled(count: int, value: float = 5.0, at: float = 100.0) -> LatencyWindow:
    window = LatencyWindow(PROFILE)
    for _ in range(count):
        window.record(value, at)
    return window


def test_nothing_measured_is_no_figure() -> None:
    assert LatencyWindow().figure(0.0) is None


def test_profile_until_enough_live_samples() -> None:
    assert filled(MIN_LIVE - 1).figure(100.0) is PROFILE
    live = filled(MIN_LIVE).figure(100.0)
    assert live == LatencyFigure(5.0, 5.0, MIN_LIVE, 100.0, Source.LIVE)


def test_without_a_profile_few_samples_are_better_than_none() -> None:
    window = LatencyWindow()
    window.record(7.0, 3.0)
    assert window.figure(3.0) == LatencyFigure(7.0, 7.0, 1, 3.0, Source.LIVE)


def test_a_stale_profile_gives_way_to_newer_samples() -> None:
    now = STALE_AFTER_S + 1
    assert filled(1, at=now).figure(now) == LatencyFigure(5.0, 5.0, 1, now, Source.LIVE)


def test_a_figure_grows_stale_but_stays() -> None:
    window = filled(MIN_LIVE, at=100.0)
    figure = window.figure(100.0 + STALE_AFTER_S + 1)
    assert figure is not None
    assert figure.source is Source.LIVE
    assert figure.at == 100.0
    assert is_stale(figure, 100.0 + STALE_AFTER_S + 1)
    assert not is_stale(figure, 100.0 + STALE_AFTER_S)


def test_the_newest_sample_sets_the_age() -> None:
    window = filled(MIN_LIVE, at=100.0)
    window.record(5.0, 140.0)
    figure = window.figure(150.0)
    assert figure is not None
    assert figure.at == 140.0


def test_old_samples_go_once_there_are_enough_fresh_ones() -> None:
    window = filled(50, value=500.0, at=0.0)
    now = STALE_AFTER_S + 10
    for _ in range(MIN_LIVE):
        window.record(1.0, now)
    figure = window.figure(now)
    assert figure is not None
    assert (figure.p95_ms, figure.samples) == (1.0, MIN_LIVE)


def test_only_the_last_samples_count() -> None:
    window = LatencyWindow()
    values = [float(v % 37) for v in range(3 * WINDOW)]
    for value in values:
        window.record(value, 1.0)
    figure = window.figure(1.0)
    assert figure is not None
    assert figure.samples == WINDOW
    assert figure.p95_ms == pytest.approx(np.quantile(values[-WINDOW:], 0.95))


def test_an_attempt_cut_off_counts_as_at_least_its_time() -> None:
    window = filled(MIN_LIVE, value=5.0)
    window.observe(Outcome.DEADLINE, 1000.0, 100.0)
    figure = window.figure(100.0)
    assert figure is not None
    assert figure.samples == MIN_LIVE + 1
    assert figure.p95_ms > 400


def test_an_attempt_cut_off_early_says_nothing_good() -> None:
    window = filled(MIN_LIVE, value=50.0)
    for outcome in (Outcome.DEADLINE, Outcome.CANCELLED):
        window.observe(outcome, 1.0, 200.0)
    assert window.figure(200.0) == LatencyFigure(50.0, 50.0, MIN_LIVE, 100.0, Source.LIVE)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.UNAVAILABLE, Outcome.REJECTED])
def test_a_fast_failure_is_no_fast_answer(outcome: Outcome) -> None:
    window = LatencyWindow()
    window.observe(outcome, 0.1, 1.0)
    assert window.figure(1.0) is None


def test_trials_count_while_there_is_no_fresh_figure() -> None:
    window = LatencyWindow()
    window.begin(1.0)
    window.begin(2.0)
    assert window.trials(2.0) == 2
    window.record(5.0, 3.0)
    assert window.trials(3.0) == 0
    window.begin(4.0)
    assert window.trials(4.0) == 0
    late = 3.0 + STALE_AFTER_S + 1
    window.begin(late)
    assert window.trials(late) == 1


def test_fruitless_trials_are_forgotten() -> None:
    window = LatencyWindow()
    window.begin(1.0)
    assert window.trials(1.0 + STALE_AFTER_S) == 1
    assert window.trials(1.0 + STALE_AFTER_S + 1) == 0


def test_a_new_profile_replaces_the_old() -> None:
    window = filled(0)
    newer = LatencyFigure(1.0, 2.0, 10, 50.0, Source.PROFILE)
    window.set_profile(newer)
    assert window.figure(60.0) is newer


def test_a_stored_profile_keeps_its_age() -> None:
    figure = from_profile(p50_ms=1, p95_ms=2, samples=3, age_s=700, now=1000.0)
    assert figure == LatencyFigure(1, 2, 3, 300.0, Source.PROFILE)
    assert from_profile(p50_ms=1, p95_ms=2, samples=3, age_s=-5, now=1000.0).at == 1000.0
