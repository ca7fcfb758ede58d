"""One update of a model, from what set it off to the model that is confirmed, as a machine without I/O.

    begin ─> gathering ─> training ─> measuring ─> trying ─> deciding ─> rolling ─> watching ─> recovered
                             │            │           │          │          │           └─────> not recovered
                             └────────────┴── failed ─┘       refused   rolled back
    a pushed release begins at measuring and ends after deciding: passed, or refused
    cancelled: from anywhere; a rollout that is under way is ended first

A command is carried out after the state that asks for it is stored, and may be carried out twice: after a
restart `Resumed` gives those of the phase again. So each of them does nothing where it is done already (a
release is known by its source, the update's id), or begins again what is lost with the process (a training
run, with the number it had).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.rollout.gate import Rule
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
from gateway.rollout.loop_state import Cause, Origin, Phase, Rules, Trial, Update

MAX_TRIALS = 3
"""Devices of a group that a release is offered to for a trial, one after another, before nobody is left
to tell how it does."""
MAX_WORDS = 500
"""Longest sentence that is kept of what others say."""


Step = tuple[Update, tuple[Command, ...]]


def begin(id: str, model: str, cause: Cause, now: float, version: str = "") -> Update:
    """A new update; its first commands come with `Resumed`. `version`: of a pushed release, which is only
    judged."""
    first = Phase.MEASURING if cause.origin is Origin.PUSH else Phase.GATHERING
    return Update(id, model, cause, first, ((first, now),), version=version)


def step(state: Update, event: Event, now: float, rules: Rules) -> Step:
    """Take in an event. One that the phase has no use for changes nothing; nothing changes an end."""
    if not state.open:
        return state, ()
    if isinstance(event, Resumed):
        return state, _commands(state)
    if isinstance(event, Cancel):
        return _cancelled(state, now)
    if isinstance(event, WorkFailed):
        if event.phase is not state.phase:
            return state, ()
        return _end(state, Phase.FAILED, event.why, now)
    return _PHASES[state.phase](state, event, now, rules)


def _commands(state: Update) -> tuple[Command, ...]:
    """What a phase wants done."""
    if state.phase is Phase.TRAINING:
        return (Train(state.attempt),)
    if state.phase is Phase.MEASURING:
        return (Measure(state.version),)
    if state.phase is Phase.DECIDING:
        return (Judge(state.version),)
    if state.phase is Phase.ROLLING:
        return (Abort(state.version) if state.cancelled else Roll(state.version),)
    return ()


def _to(state: Update, phase: Phase, now: float, **changes: Any) -> Step:
    state = replace(state, **{"waits": "", **changes}, phase=phase, times=(*state.times, (phase, now)))
    return state, _commands(state)


def _end(state: Update, phase: Phase, outcome: str, now: float, **changes: Any) -> Step:
    said = outcome.strip() or "It failed, and does not say why."
    return _to(state, phase, now, outcome=said[:MAX_WORDS], **changes)


def _cancelled(state: Update, now: float) -> Step:
    if state.phase is Phase.ROLLING:
        state = replace(state, cancelled=True, waits="its rollout is taken back")
        return state, _commands(state)
    why = "Cancelled by the operator."
    if state.phase is Phase.WATCHING:
        why = f"Version {state.version} is out; the operator ended the watch."
    return _end(state, Phase.CANCELLED, why, now)[0], (Stop(),)


def _gathering(state: Update, event: Event, now: float, rules: Rules) -> Step:
    if not isinstance(event, SamplesSeen):
        return state, ()
    if not rules.trains:
        return _end(state, Phase.FAILED, "There is no trainer: add train to the model's update.", now)
    counts = {"labelled": event.labelled, "kept": event.kept}
    if event.labelled >= rules.samples:
        return _to(state, Phase.TRAINING, now, attempt=1, **counts)
    waits = f"{event.labelled} of {rules.samples} labelled samples are there, of {event.kept} that are kept"
    if event.wanting:
        waits += f"; {event.wanting}"
    return replace(state, **counts, waits=waits[:MAX_WORDS]), ()


def _training(state: Update, event: Event, now: float, rules: Rules) -> Step:
    if isinstance(event, Trained):
        return _to(state, Phase.MEASURING, now, version=event.version)
    if isinstance(event, Retrying) and event.attempt == state.attempt:
        failures = (*state.failures, event.why[:MAX_WORDS])
        return replace(state, attempt=state.attempt + 1, failures=failures), ()
    return state, ()


def _measuring(state: Update, event: Event, now: float, rules: Rules) -> Step:
    if not isinstance(event, Measured):
        return state, ()
    if any(rule.passed is False for rule in event.rules):
        return _refused(state, event.rules, now, quality=event.quality)
    return _to(state, Phase.TRYING, now, quality=event.quality)


def _trying(state: Update, event: Event, now: float, rules: Rules) -> Step:
    if not isinstance(event, FleetSeen):
        return state, ()
    trials = {(t.group, t.device): t for t in state.trials}
    waits: list[str] = []
    for group, seen in event.groups.items():
        for key, trial in trials.items():
            if key[0] == group and not trial.outcome:
                trials[key] = _tried(trial, seen, now, rules.trial_s)
        mine = [t for t in trials.values() if t.group == group]
        if not seen.able or any(t.outcome in ("passed", "failed") for t in mine):
            continue
        under_way = next((t for t in mine if not t.outcome), None)
        if under_way is not None:
            waits.append(f"{under_way.device} of {group} tries it")
            continue
        late = sum(t.outcome == "late" for t in mine)
        if late >= MAX_TRIALS:
            why = f"{late} devices of {group} came to no end of their trial within {rules.trial_s:g} s each."
            return _end(state, Phase.FAILED, why, now, trials=tuple(trials.values()))
        # One that went away may be tried again; one that was late is not.
        spent = {t.device for t in mine if t.outcome == "late"}
        device = next((name for name in seen.connected if name not in spent), None)
        if device is None:
            waits.append(f"no device of {group} that could try it is connected")
            continue
        trials[(group, device)] = Trial(group, device, now)
        waits.append(f"{device} of {group} tries it")
    if waits:
        return replace(state, trials=tuple(trials.values()), waits="; ".join(waits)[:MAX_WORDS]), ()
    known = tuple(t for t in trials.values() if t.outcome)
    return _to(state, Phase.DECIDING, now, trials=known)


def _tried(trial: Trial, seen: GroupSeen, now: float, trial_s: float) -> Trial:
    """A trial under way, as the device reports it."""
    report = seen.reports.get(trial.device)
    if report is not None and report.state in ("active", "failed"):
        outcome = "passed" if report.state == "active" else "failed"
        return replace(trial, outcome=outcome, reason=report.reason[:MAX_WORDS], report=report)
    if now - trial.began >= trial_s:
        return replace(trial, outcome="late")
    return trial if trial.device in seen.connected else replace(trial, outcome="gone")


def _deciding(state: Update, event: Event, now: float, rules: Rules) -> Step:
    if not isinstance(event, Judged):
        return state, ()
    if not event.rules or any(rule.passed is False for rule in event.rules):
        return _refused(state, event.rules, now)
    if state.cause.origin is Origin.PUSH:
        return _end(state, Phase.PASSED, "It may be rolled out.", now, rules=event.rules)
    return _to(state, Phase.ROLLING, now, rules=event.rules)


def _refused(state: Update, rules: tuple[Rule, ...], now: float, **changes: Any) -> Step:
    against = " ".join(rule.sentence for rule in rules if rule.passed is False)
    return _end(state, Phase.REFUSED, against or "The gate has no rules.", now, rules=rules, **changes)


def _rolling(state: Update, event: Event, now: float, rules: Rules) -> Step:
    if not isinstance(event, RolloutSeen):
        return state, ()
    id = event.id or state.rollout
    if event.progress is Progress.OPEN or (event.progress is Progress.NONE and not state.cancelled):
        return replace(
            state, rollout=id, waits=state.waits if state.cancelled else event.words[:MAX_WORDS]
        ), ()
    if event.progress is Progress.DONE:
        # A cancellation that came too late to take anything back.
        return _to(state, Phase.WATCHING, now, rollout=id, cancelled=False)
    if state.cancelled:
        return _end(state, Phase.CANCELLED, "Cancelled by the operator.", now, rollout=id)
    return _end(state, Phase.ROLLED_BACK, event.words or "Its rollout was taken back.", now, rollout=id)


def _watching(state: Update, event: Event, now: float, rules: Rules) -> Step:
    if not isinstance(event, DriftSeen):
        return state, ()
    if event.score is None:
        began = state.at(Phase.WATCHING) or now
        if now - began < rules.watch_s:
            return replace(state, waits=event.words[:MAX_WORDS]), ()
        why = f"Too little was asked of version {state.version} within {rules.watch_s:g} s to tell."
        return _end(state, Phase.NOT_RECOVERED, why, now)
    if event.drifting:
        why = f"Version {state.version} is out, and the drift goes on with a score of {event.score:.2f}."
        return _end(state, Phase.NOT_RECOVERED, why, now, score_after=event.score)
    outcome = f"Version {state.version} is out, with a drift score of {event.score:.2f}."
    return _end(state, Phase.RECOVERED, outcome, now, score_after=event.score)


_PHASES = {
    Phase.GATHERING: _gathering,
    Phase.TRAINING: _training,
    Phase.MEASURING: _measuring,
    Phase.TRYING: _trying,
    Phase.DECIDING: _deciding,
    Phase.ROLLING: _rolling,
    Phase.WATCHING: _watching,
}
