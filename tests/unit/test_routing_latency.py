from __future__ import annotations

import numpy as np
import pytest

from gateway.core.decision import LatencyFigure, Outcome, Source
from gateway.routing.latency import (
    MIN_LIVE,
    PROOF_S,
    SILENCE_S,
    STALE_AFTER_S,
    TRIAL_MS,
    WINDOW,
    LatencyWindow,
    from_profile,
    haste,
    is_stale,
)

AMPLE_MS = 60_000.0
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
    window.record(5.0, 100.0 + SILENCE_S)
    figure = window.figure(150.0)
    assert figure is not None
    assert figure.at == 100.0 + SILENCE_S


def test_samples_begin_anew_after_a_silence() -> None:
    window = LatencyWindow()
    for _ in range(WINDOW):
        window.record(500.0, 100.0)
    window.record(1.0, 100.0 + SILENCE_S + 1)
    assert window.figure(132.0) == LatencyFigure(1.0, 1.0, 1, 101.0 + SILENCE_S, Source.LIVE)


def test_one_slow_answer_among_the_first_is_not_their_p95() -> None:
    window = filled(MIN_LIVE - 1, value=4.0)
    window.record(500.0, 100.0)
    figure = window.figure(100.0)
    assert figure is not None
    assert figure.source is Source.LIVE
    assert figure.p95_ms < 50


def test_silent_figure_has_trials_until_one_brings_a_sample() -> None:
    window = filled(MIN_LIVE, at=100.0)
    window.begin(AMPLE_MS, 100.0 + SILENCE_S)
    assert window.trials(100.0 + SILENCE_S) == 0
    window.begin(AMPLE_MS, 101.0 + SILENCE_S)
    assert window.trials(101.0 + SILENCE_S) == 1
    window.record(5.0, 101.0 + SILENCE_S)
    assert window.trials(101.0 + SILENCE_S) == 0


def test_a_stale_figure_is_replaced_by_what_is_new() -> None:
    window = filled(50, value=500.0, at=STALE_AFTER_S)
    now = 2 * STALE_AFTER_S + 10
    window.record(1.0, now)
    assert window.figure(now) == LatencyFigure(1.0, 1.0, 1, now, Source.LIVE)


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
    window.observe(Outcome.DEADLINE, 1000.0, AMPLE_MS, 100.0)
    figure = window.figure(100.0)
    assert figure is not None
    assert figure.samples == MIN_LIVE + 1
    window.observe(Outcome.DEADLINE, 1000.0, AMPLE_MS, 100.0)
    figure = window.figure(100.0)
    assert figure is not None
    assert figure.p95_ms > 400


def test_an_attempt_cut_off_early_says_nothing_good() -> None:
    window = filled(MIN_LIVE, value=50.0)
    for outcome in (Outcome.DEADLINE, Outcome.CANCELLED):
        window.observe(outcome, 1.0, AMPLE_MS, 200.0)
    assert window.figure(200.0) == LatencyFigure(50.0, 50.0, MIN_LIVE, 100.0, Source.LIVE)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.UNAVAILABLE, Outcome.REJECTED])
def test_a_fast_failure_is_no_fast_answer(outcome: Outcome) -> None:
    window = LatencyWindow()
    window.observe(outcome, 0.1, AMPLE_MS, 1.0)
    assert window.figure(1.0) is None


def test_trials_count_while_there_is_no_fresh_figure() -> None:
    window = LatencyWindow()
    window.begin(AMPLE_MS, 1.0)
    window.begin(AMPLE_MS, 2.0)
    assert window.trials(2.0) == 2
    window.record(5.0, 3.0)
    assert window.trials(3.0) == 0
    window.begin(AMPLE_MS, 4.0)
    assert window.trials(4.0) == 0
    late = 3.0 + STALE_AFTER_S + 1
    window.begin(AMPLE_MS, late)
    assert window.trials(late) == 1


def test_fruitless_trials_are_forgotten() -> None:
    window = LatencyWindow()
    window.begin(AMPLE_MS, 1.0)
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


def test_answers_are_counted_apart_from_what_was_cut_off() -> None:
    window = filled(MIN_LIVE, value=5.0)
    for _ in range(3 * MIN_LIVE):
        window.observe(Outcome.DEADLINE, 1000.0, 1000.0, 100.0)
    ranked, answers = window.figure(100.0), window.answers(100.0)
    assert ranked is not None
    assert ranked.p50_ms == 1000.0
    assert answers == LatencyFigure(5.0, 5.0, MIN_LIVE, 100.0, Source.LIVE)


def test_few_answers_are_not_enough_to_refuse_by() -> None:
    window = LatencyWindow()
    for i in range(MIN_LIVE):
        assert window.answers(i) is None
        window.record(5.0, i)
    assert window.answers(MIN_LIVE) is not None
    assert window.answers(STALE_AFTER_S + 1) is None, "one of the ten is stale"
    assert filled(MIN_LIVE - 1).answers(100.0) is PROFILE


@pytest.mark.parametrize("outcome", [Outcome.DEADLINE, Outcome.CANCELLED])
def test_without_any_answer_a_cut_off_is_a_trial_and_no_figure(outcome: Outcome) -> None:
    window = LatencyWindow()
    for now in (1.0, 2.0):
        window.begin(AMPLE_MS, now)
        window.observe(outcome, 2 * TRIAL_MS, AMPLE_MS, now)
    assert window.figure(2.0) is None
    assert window.trials(2.0) == 2


def test_a_trial_cut_off_early_counts_in_part() -> None:
    window = LatencyWindow()
    window.begin(AMPLE_MS, 1.0)
    assert window.trials(1.0) == 1
    window.observe(Outcome.CANCELLED, TRIAL_MS / 4, AMPLE_MS, 1.0)
    assert window.trials(1.0) == 0.25
    window.begin(AMPLE_MS, 2.0)
    window.observe(Outcome.FAILED, 1.0, AMPLE_MS, 2.0)
    assert window.trials(2.0) == 1.25, "a failure is a whole trial, however quick"


def test_hurried_attempts_are_noted_by_octave() -> None:
    window = filled(MIN_LIVE, value=100.0)
    window.begin(100.0, 101.0)
    assert window.hurry.begun == {}
    window.begin(99.0, 102.0)
    window.begin(3.0, 103.0)
    assert window.hurry.begun == {haste(99.0): 102.0, haste(3.0): 103.0}
    assert haste(64.0) == haste(127.0) == haste(63.0) + 1
    stale = 101.0 + STALE_AFTER_S
    window.begin(70.0, stale)
    assert window.hurry.begun[haste(70.0)] == 102.0, "nobody is hurried by a stale figure"


def test_the_quickest_hurried_answer_holds_for_a_while() -> None:
    window = filled(MIN_LIVE, value=100.0)
    window.observe(Outcome.OK, 1.0, AMPLE_MS, 101.0)
    assert window.hurry.answered_at < 0, "with ample time nothing is proven for others"
    window.observe(Outcome.OK, 9.0, 50.0, 102.0)
    window.observe(Outcome.OK, 40.0, 50.0, 103.0)
    assert (window.hurry.answered_ms, window.hurry.answered_at) == (9.0, 102.0)
    window.observe(Outcome.OK, 18.0, 50.0, 104.0)
    assert (window.hurry.answered_ms, window.hurry.answered_at) == (9.0, 104.0)
    later = 105.0 + PROOF_S
    window.observe(Outcome.DEADLINE, 50.0, 50.0, later)
    assert window.hurry.answered_ms == 9.0
    window.observe(Outcome.OK, 40.0, 50.0, later)
    assert (window.hurry.answered_ms, window.hurry.answered_at) == (40.0, later)
