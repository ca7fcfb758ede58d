"""The drift monitor over any history of looks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.evidence import Histogram
from gateway.drift.monitor import (
    ENDS_BELOW,
    Began,
    Command,
    Drift,
    Ended,
    Learnt,
    Look,
    Phase,
    Settings,
    Update,
    of_document,
    step,
)

SETTINGS = Settings(threshold=0.5, min_samples=10, window_s=100, quiet_s=60)
REFERENCE = Histogram((0.5,), (10, 0))


class Above:
    """The share of the windows' values in the upper bin: a score that a test can choose."""

    kind: ClassVar[str] = "above"
    greatest: ClassVar[float] = 1.0

    def score(self, reference: Histogram, windows: Sequence[Histogram]) -> float:
        return sum(w.counts[1] for w in windows) / sum(w.total for w in windows)


def window(score: float, values: int = 100) -> Histogram:
    high = round(values * score)
    return Histogram((0.5,), (values - high, high))


def run(
    state: Drift, *looks: tuple[float, float], version: str = "1", reference: Histogram | None = REFERENCE
) -> tuple[Drift, list[Command]]:
    """(now, score) each."""
    told: list[Command] = []
    for now, score in looks:
        state, commands = step(
            state, Look(version, reference, [window(score)], False), now, SETTINGS, Above()
        )
        told += commands
    return state, told


def test_drift_begins_at_the_threshold_in_two_looks_in_a_row():
    state, told = run(Drift(), (1, 0.5), (2, 0.49), (3, 0.5))
    assert (state.phase, told) == (Phase.STEADY, [])
    state, told = run(state, (4, 0.5))
    assert (state.phase, state.drifting_since) == (Phase.DRIFTING, 4)
    assert told == [Began(0.5), Update(0.5)]


def test_drift_ends_below_four_fifths_of_the_threshold():
    state, _ = run(Drift(), (1, 1), (2, 1))
    state, told = run(state, (3, 0.4))
    assert (state.phase, told) == (Phase.DRIFTING, [Update(0.4)])
    state, told = run(state, (4, 0.39))
    assert (state.phase, state.drifting_since, told) == (Phase.STEADY, None, [Ended(0.39)])


def test_too_few_values_say_nothing():
    state, _ = run(Drift(), (1, 1))
    state, told = step(state, Look("1", REFERENCE, [window(0, 9)], False), 2, SETTINGS, Above())
    assert told == []
    assert state.over == 1
    state, told = step(state, Look("1", REFERENCE, [window(1, 4), window(1, 6)], False), 3, SETTINGS, Above())
    assert told == [Began(1.0), Update(1.0)]


def test_without_a_reference_the_first_full_window_becomes_it():
    state, told = run(Drift(), (10, 0.2), (109, 0.2), reference=None)
    assert (state.phase, told) == (Phase.LEARNING, [])
    state, told = run(state, (110, 0.2), reference=None)
    assert (state.phase, state.learnt, told) == (Phase.STEADY, True, [Learnt("1")])
    assert state.reference == window(0.2)
    state, told = run(state, (111, 1), (112, 1), reference=None)
    assert told == [Began(1.0), Update(1.0)]


def test_another_version_or_other_bins_begin_anew():
    state, _ = run(Drift(), (1, 1), (2, 1))
    assert state.phase is Phase.DRIFTING
    renewed, told = run(state, (3, 1), version="2")
    assert (renewed.phase, renewed.over, renewed.watched_since, told) == (Phase.STEADY, 1, 3, [])
    other = Histogram((0.7,), (10, 0))
    moved, told = step(state, Look("1", other, [window(1)], False), 3, SETTINGS, Above())
    assert (moved.reference, moved.score, told) == (other, None, [])
    emptied, told = run(state, (3, 1), reference=Histogram((0.5,), (0, 0)))
    assert emptied.reference == REFERENCE


def test_nothing_is_asked_for_during_an_update_nor_in_the_quiet_time_after_it():
    state, _ = run(Drift(), (1, 1), (2, 1))

    def look(now: float, updating: bool) -> list[Command]:
        nonlocal state
        state, told = step(state, Look("1", REFERENCE, [window(1)], updating), now, SETTINGS, Above())
        return told

    assert look(3, False) == [Update(1.0)]
    assert look(4, True) == []
    assert look(50, True) == []
    assert look(100, False) == []
    assert look(159, False) == []
    assert look(160, False) == [Update(1.0)]
    assert look(161, True) == []
    assert look(200, False) == []
    # The clock was set back by an hour: what was quiet until then is not quiet for an hour.
    assert look(200 - 3600, False) == [Update(1.0)]


events = st.tuples(
    st.sampled_from([0.0, 0.39, 0.4, 0.45, 0.5, 0.9]),
    st.sampled_from([0, 9, 10, 100]),
    st.booleans(),
    st.sampled_from(["1", "1", "1", "2"]),
    st.floats(0, 80),
)


@settings(deadline=None)
@given(st.lists(events, max_size=40), st.booleans())
def test_over_any_history(history: list[tuple[float, int, bool, str, float]], known: bool):
    """A state is what its document says; drift has two looks over the threshold behind it and is left
    only below four fifths or with the version; nothing is asked for while an update is under way or in the
    60 s after one."""
    reference = REFERENCE if known else None
    state, now, ended_at, was_updating = Drift(), 1000.0, -1e9, False
    scores: list[float] = []
    version_was = ""
    for score, values, updating, version, passed in history:
        now += passed
        if was_updating and not updating:
            ended_at = now
        was_updating = updating
        before = state
        look = Look(version, reference, [window(score, values)], updating)
        state, told = step(state, look, now, SETTINGS, Above())
        assert step(before, look, now, SETTINGS, Above()) == (state, told)
        assert of_document(json.loads(json.dumps(state.to_document()))) == state
        if version != version_was:
            scores, version_was = [], version
        if values >= SETTINGS.min_samples and state.reference is not None and Learnt(version) not in told:
            scores.append(window(score, values).counts[1] / values)
        assert any(isinstance(c, Began) for c in told) == (
            state.phase is Phase.DRIFTING
            and (before.phase is not Phase.DRIFTING or before.version != version)
        )
        if any(isinstance(c, Began) for c in told):
            assert len(scores) >= 2
            assert min(scores[-2:]) >= SETTINGS.threshold
        if before.phase is Phase.DRIFTING and state.phase is not Phase.DRIFTING:
            assert version != before.version or scores[-1] < ENDS_BELOW * SETTINGS.threshold
        asks = any(isinstance(c, Update) for c in told)
        assert asks == (state.phase is Phase.DRIFTING and not updating and now >= ended_at + SETTINGS.quiet_s)
        assert (state.phase is Phase.LEARNING) == (state.reference is None)


@pytest.mark.parametrize(
    "document", [None, [], {}, {"version": "1"}, {**Drift().to_document(), "phase": "asleep"}]
)
def test_what_is_no_state_is_refused(document: object):
    with pytest.raises(ValueError, match="no state of a drift monitor"):
        of_document(document)
