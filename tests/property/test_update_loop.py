"""The loop of an update: any order of events, restarts between any two, every end reached."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.fleet import TrialReport
from gateway.rollout.gate import Rule
from gateway.rollout.loop import MAX_TRIALS, MAX_WORDS, begin, step
from gateway.rollout.loop_messages import (
    Abort,
    Cancel,
    Command,
    DriftSeen,
    Event,
    FleetSeen,
    GroupSeen,
    Judge,
    Judged,
    Measure,
    Measured,
    Progress,
    Resumed,
    Retrying,
    Roll,
    RolloutSeen,
    SamplesSeen,
    Stop,
    Train,
    Trained,
    WorkFailed,
)
from gateway.rollout.loop_state import ENDS, Cause, Origin, Phase, Rules, Update, from_document, to_document

RULES = Rules(samples=10, trial_s=5.0, watch_s=20.0)
GOOD, BAD = Rule("min", True, "It is."), Rule("min", False, "Accuracy is too low.")
NOTHING = Rule("golden", None, "No device is to run it.")
WORKS = TrialReport("sha256:1", "active", p50_ms=1.0, runs=5)
BROKEN = TrialReport("sha256:1", "failed", "golden vectors differ")
DRIFTED = Cause(Origin.DRIFT, "output.confidence", 0.4, 0.2, ("plant-7",), since=90.0)

names = st.sampled_from(["cam-1", "cam-2", "cam-3"])
groups = st.builds(
    GroupSeen,
    st.integers(0, 3),
    st.lists(names, unique=True).map(tuple),
    st.dictionaries(names, st.sampled_from([WORKS, BROKEN, TrialReport("sha256:1", "trying")])),
)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(SamplesSeen, st.integers(0, 20), st.integers(0, 30), st.sampled_from(["", "x" * 900])),
    st.builds(Trained, st.sampled_from(["2", "3"])),
    st.builds(Retrying, st.integers(1, 3), st.just("it ran out of memory")),
    st.builds(Measured, st.just({"right": 3}), st.sampled_from([(), (GOOD,), (GOOD, BAD)])),
    st.builds(WorkFailed, st.sampled_from(list(Phase)), st.text(max_size=10)),
    st.builds(FleetSeen, st.dictionaries(st.sampled_from(["cams", "doors"]), groups)),
    st.builds(Judged, st.lists(st.sampled_from([GOOD, BAD, NOTHING]), max_size=3).map(tuple)),
    st.builds(RolloutSeen, st.sampled_from(["", "r1"]), st.sampled_from(list(Progress)), st.just("words")),
    st.builds(DriftSeen, st.one_of(st.none(), st.floats(0, 2)), st.booleans(), st.just("few values")),
    st.just(Resumed()),
    st.just(Cancel()),
)
causes = st.sampled_from([DRIFTED, Cause(Origin.OPERATOR), Cause(Origin.PUSH)])


def started(cause: Cause) -> Update:
    return begin("u1", "digits", cause, 100.0, version="2" if cause.origin is Origin.PUSH else "")


@given(
    causes, st.lists(st.tuples(st.one_of(events, events, st.just(Resumed())), st.floats(0, 9)), max_size=40)
)
@settings(max_examples=300, deadline=None)
def test_whatever_comes_in_whatever_order(cause: Cause, told: list[tuple[Event, float]]) -> None:
    state, now, cancelled = started(cause), 100.0, False
    for event, later in told:
        now += later
        before = state
        written = from_document(json.loads(json.dumps(to_document(state))))
        assert written == state
        state, commands = step(state, event, now, RULES)
        assert step(written, event, now, RULES) == (state, commands)
        check(before, event, state, commands, now)
        cancelled = cancelled or (isinstance(event, Cancel) and before.open)
        if cancelled and state.open:
            assert state.phase in (Phase.ROLLING, Phase.WATCHING)


def check(before: Update, event: Event, state: Update, commands: tuple[Command, ...], now: float) -> None:
    if not before.open:
        assert (state, commands) == (before, ())
        return
    if isinstance(event, Resumed):
        assert state == before
    # Every phase is written down with its instant, once, and in order.
    assert state.times[: len(before.times)] == before.times
    assert state.times[-1][0] is state.phase
    if state.phase is not before.phase:
        assert state.times[len(before.times) :] == ((state.phase, now),)
    assert len(state.waits) <= MAX_WORDS
    assert len(state.outcome) <= MAX_WORDS
    assert bool(state.outcome) == (not state.open)
    if state.phase in (Phase.MEASURING, Phase.TRYING, Phase.DECIDING, Phase.ROLLING, Phase.WATCHING):
        assert state.version
    for command in commands:
        assert {
            Train: state.phase is Phase.TRAINING,
            Measure: state.phase is Phase.MEASURING,
            Judge: state.phase is Phase.DECIDING,
            Roll: state.phase is Phase.ROLLING and not state.cancelled,
            Abort: state.phase is Phase.ROLLING and state.cancelled,
            Stop: state.phase is Phase.CANCELLED,
        }[type(command)]
    # Nothing is rolled out that the gate has not passed, and a push never is by itself.
    if state.phase is Phase.ROLLING and before.phase is not Phase.ROLLING:
        assert isinstance(event, Judged)
        assert event.rules
        assert all(rule.passed is not False for rule in event.rules)
        assert state.cause.origin is not Origin.PUSH
    if state.phase is Phase.RECOVERED:
        assert isinstance(event, DriftSeen)
        assert event.score is not None
        assert not event.drifting
    if state.phase is Phase.WATCHING and before.phase is not Phase.WATCHING:
        assert isinstance(event, RolloutSeen)
        assert event.progress is Progress.DONE
    # At most one device of a group tries it at a time, and a late one is not asked again.
    trying = [trial.group for trial in state.trials if not trial.outcome]
    assert len(trying) == len(set(trying))
    for trial in before.trials:
        if trial.outcome == "late":
            assert trial in state.trials


SCRIPT: list[Event] = [
    SamplesSeen(4, 12, "8 have no label"),
    SamplesSeen(10, 14),
    Trained("2"),
    Measured({"right": 9}, (GOOD,)),
    FleetSeen({"cams": GroupSeen(2, ("cam-1",))}),
    FleetSeen({"cams": GroupSeen(2, ("cam-1",), {"cam-1": WORKS})}),
    Judged((GOOD, NOTHING)),
    RolloutSeen("r1", Progress.OPEN, "wave 1 of 2 soaks"),
    RolloutSeen("r1", Progress.DONE),
    DriftSeen(None, False, "12 of 500 values so far"),
    DriftSeen(0.05, False),
]


def played(script: list[Event], cause: Cause = DRIFTED) -> tuple[Update, list[Command]]:
    state, asked = started(cause), []
    for tick, event in enumerate(script):
        state, commands = step(state, event, 101.0 + tick, RULES)
        asked += commands
    return state, asked


def test_the_whole_way() -> None:
    state, asked = played(SCRIPT)
    assert state.phase is Phase.RECOVERED
    assert asked == [Train(1), Measure("2"), Judge("2"), Roll("2")]
    assert [phase.value for phase, _ in state.times] == [
        "gathering", "training", "measuring", "trying", "deciding", "rolling", "watching", "recovered",
    ]  # fmt: skip
    assert state.loop_s == 111.0 - 90.0
    assert (state.rollout, state.score_after) == ("r1", 0.05)
    assert [(t.device, t.outcome, t.began) for t in state.trials] == [("cam-1", "passed", 105.0)]
    assert state.outcome == "Version 2 is out, with a drift score of 0.05."


def test_each_wait_is_told() -> None:
    waits = {played(SCRIPT[:n])[0].phase: played(SCRIPT[:n])[0].waits for n in (1, 5, 8, 10)}
    assert waits == {
        Phase.GATHERING: "4 of 10 labelled samples are there, of 12 that are kept; 8 have no label",
        Phase.TRYING: "cam-1 of cams tries it",
        Phase.ROLLING: "wave 1 of 2 soaks",
        Phase.WATCHING: "12 of 500 values so far",
    }


@pytest.mark.parametrize(
    ("upto", "then", "phase", "outcome"),
    [
        (1, [Cancel()], Phase.CANCELLED, "Cancelled by the operator."),
        (2, [WorkFailed(Phase.TRAINING, "It raised.")], Phase.FAILED, "It raised."),
        (3, [WorkFailed(Phase.MEASURING, "No file.")], Phase.FAILED, "No file."),
        (3, [Measured({}, (GOOD, BAD))], Phase.REFUSED, "Accuracy is too low."),
        (6, [Judged((GOOD, BAD, replace(BAD, sentence="So slow.")))], Phase.REFUSED, "Accuracy is too low. So slow."),
        (6, [Judged(())], Phase.REFUSED, "The gate has no rules."),
        (8, [RolloutSeen("r1", Progress.UNDONE, "Wave 1 fails too often.")], Phase.ROLLED_BACK,
         "Wave 1 fails too often."),
        (8, [Cancel(), RolloutSeen("r1", Progress.UNDONE, "aborted")], Phase.CANCELLED, "Cancelled by the operator."),
        (8, [Cancel(), RolloutSeen("", Progress.NONE)], Phase.CANCELLED, "Cancelled by the operator."),
        # It was out before the word came.
        (8, [Cancel(), RolloutSeen("r1", Progress.DONE), DriftSeen(0.1, False)], Phase.RECOVERED,
         "Version 2 is out, with a drift score of 0.10."),
        (9, [Cancel()], Phase.CANCELLED, "Version 2 is out; the operator ended the watch."),
        (9, [DriftSeen(0.31, True)], Phase.NOT_RECOVERED,
         "Version 2 is out, and the drift goes on with a score of 0.31."),
    ],
)  # fmt: skip
def test_every_other_end(upto: int, then: list[Event], phase: Phase, outcome: str) -> None:
    state, _ = played([*SCRIPT[:upto], *then])
    assert (state.phase, state.outcome) == (phase, outcome)


def test_a_cancellation_that_came_too_late_is_forgotten() -> None:
    state, asked = played([*SCRIPT[:8], Cancel(), RolloutSeen("r1", Progress.DONE)])
    assert asked[-1] == Abort("2")
    assert (state.phase, state.cancelled) == (Phase.WATCHING, False)


def test_a_watch_without_values_ends() -> None:
    state, _ = played(SCRIPT[:9])
    waiting, _ = step(state, DriftSeen(None, False, "3 of 500 values so far"), 128.9, RULES)
    assert waiting.phase is Phase.WATCHING
    ended, _ = step(state, DriftSeen(None, False, "3 of 500 values so far"), 129.0, RULES)
    assert (ended.phase, ended.outcome) == (
        Phase.NOT_RECOVERED,
        "Too little was asked of version 2 within 20 s to tell.",
    )


def test_without_a_trainer_there_is_nothing_to_wait_for() -> None:
    state, _ = step(started(DRIFTED), SamplesSeen(50, 50), 101.0, replace(RULES, trains=False))
    assert (state.phase, state.outcome) == (
        Phase.FAILED,
        "There is no trainer: add train to the model's update.",
    )


@pytest.mark.parametrize(("rules", "phase"), [((GOOD,), Phase.PASSED), ((BAD,), Phase.REFUSED)])
def test_a_push_is_judged_and_no_more(rules: tuple[Rule, ...], phase: Phase) -> None:
    script: list[Event] = [Resumed(), Measured({}, (GOOD,)), FleetSeen({}), Judged(rules)]
    state, asked = played(script, Cause(Origin.PUSH))
    assert state.phase is phase
    assert asked == [Measure("2"), Judge("2")]


def test_attempts_are_counted_and_a_word_of_an_earlier_one_is_not() -> None:
    state, _ = played(
        [*SCRIPT[:2], Retrying(1, "It raised."), Retrying(1, "It raised."), Retrying(2, "Lost.")]
    )
    assert (state.attempt, state.failures) == (3, ("It raised.", "Lost."))
    assert step(state, Resumed(), 0.0, RULES)[1] == (Train(3),)


def test_a_late_device_makes_place_for_another_and_a_lost_one_may_come_back() -> None:
    def seen(*connected: str, able: int = 4) -> FleetSeen:
        return FleetSeen({"cams": GroupSeen(able, connected)})

    state, _ = played(SCRIPT[:4])

    def at(now: float, event: FleetSeen) -> list[tuple[str, str]]:
        nonlocal state
        state, _ = step(state, event, now, RULES)
        return [(trial.device, trial.outcome) for trial in state.trials]

    assert at(200, seen()) == []
    assert state.waits == "no device of cams that could try it is connected"
    assert at(201, seen("cam-1", "cam-2")) == [("cam-1", "")]
    assert at(203, seen("cam-2")) == [("cam-1", "gone"), ("cam-2", "")]
    assert at(205, seen("cam-1", "cam-2")) == [("cam-1", "gone"), ("cam-2", "")]
    assert at(208, seen("cam-1", "cam-2")) == [("cam-1", ""), ("cam-2", "late")]
    assert at(213, seen("cam-1", "cam-2")) == [("cam-1", "late"), ("cam-2", "late")]
    assert at(214, seen("cam-1", "cam-2", "cam-3"))[-1] == ("cam-3", "")
    assert at(219, seen("cam-4"))[-1] == ("cam-3", "late")
    assert MAX_TRIALS == 3
    assert (state.phase, state.outcome) == (
        Phase.FAILED,
        "3 devices of cams came to no end of their trial within 5 s each.",
    )


def test_a_failed_trial_goes_to_the_gate_and_every_group_is_asked() -> None:
    state, _ = played(SCRIPT[:4])
    doors, cams = GroupSeen(1, ("door-1",)), GroupSeen(1, ("cam-1",))
    state, _ = step(state, FleetSeen({"cams": cams, "doors": doors, "old": GroupSeen(0, ("x",))}), 200, RULES)
    assert [trial.device for trial in state.trying] == ["cam-1", "door-1"]
    broken = replace(cams, reports={"cam-1": BROKEN})
    state, _ = step(state, FleetSeen({"cams": broken, "doors": doors}), 201, RULES)
    assert state.waits == "door-1 of doors tries it"
    works = replace(doors, reports={"door-1": WORKS})
    state, asked = step(state, FleetSeen({"cams": broken, "doors": works}), 202, RULES)
    assert asked == (Judge("2"),)
    assert [(t.device, t.outcome, t.reason) for t in state.trials] == [
        ("cam-1", "failed", "golden vectors differ"),
        ("door-1", "passed", ""),
    ]
    assert state.trying == ()


@given(st.lists(st.tuples(events, st.floats(0, 9)), max_size=30))
@settings(max_examples=150, deadline=None)
def test_a_world_that_answers_always_brings_it_to_an_end(told: list[tuple[Event, float]]) -> None:
    state, now = started(DRIFTED), 100.0
    for event, later in told:
        now += later
        state, _ = step(state, event, now, RULES)
    for _ in range(40):
        now += RULES.watch_s
        state, _ = step(state, answer(state), now, RULES)
    assert state.phase in ENDS


def answer(state: Update) -> Event:
    """What a world in which all is well says in each phase."""
    if state.phase is Phase.TRYING:
        reports = {trial.device: WORKS for trial in state.trying}
        return FleetSeen({group: GroupSeen(1, ("cam-9",), reports) for group in ("cams", "doors")})
    return {
        Phase.GATHERING: SamplesSeen(10, 10),
        Phase.TRAINING: Trained("2"),
        Phase.MEASURING: Measured({}, (GOOD,)),
        Phase.DECIDING: Judged((GOOD,)),
        Phase.ROLLING: RolloutSeen("r1", Progress.UNDONE if state.cancelled else Progress.DONE),
        Phase.WATCHING: DriftSeen(0.1, False),
    }.get(state.phase, Resumed())


@pytest.mark.parametrize("document", [None, {}, {"id": 1}, {"phase": "nowhere"}, []])
def test_what_is_no_state_is_refused(document: object) -> None:
    with pytest.raises(ValueError, match="this is no state of an update"):
        from_document(document)
