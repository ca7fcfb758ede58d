"""One model's watch over a signal: what its drift scores come to over time.

    learning   there is no reference: the first full window becomes it
    steady     the last scores say nothing
    drifting   two looks in a row were at the threshold or over it, and none since was below four fifths

A look with too few values says nothing and changes nothing. While it drifts the monitor asks for an
update at every look, so that no ask is lost with a process; it does not ask while one is under way, nor in
the quiet time after one. Another version, or other bins, is another thing to watch: it begins anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, cast

from gateway.core.evidence import Histogram, summed
from gateway.drift._interface import Detector

ENDS_BELOW = 0.8
"""Of the threshold."""
LOOKS_TO_BEGIN = 2


class Phase(StrEnum):
    LEARNING = "learning"
    STEADY = "steady"
    DRIFTING = "drifting"


@dataclass(frozen=True, slots=True)
class Settings:
    """As configured (`drift` of an update). `quiet_s`: how long after an update nothing is asked for."""

    threshold: float
    min_samples: int
    window_s: float
    quiet_s: float


@dataclass(frozen=True, slots=True)
class Look:
    """What is seen at an instant: the version that stands and its artifact's reference (None: it has none),
    the signal's histograms of the last `window_s`, oldest first, and whether an update of the model is
    under way."""

    version: str
    reference: Histogram | None
    windows: Sequence[Histogram]
    updating: bool


@dataclass(frozen=True, slots=True)
class Drift:
    """A monitor's state. Instants are wall time, in seconds since the epoch.

    `version` "" before the first look. `watched_since`: of this version. `reference`: None while it is
    learnt. `score` and `samples` are of the last look with enough values; None before one. `over`: looks in
    a row at the threshold or over. `drifting_since`: None unless it drifts.
    """

    version: str = ""
    watched_since: float = 0.0
    phase: Phase = Phase.LEARNING
    reference: Histogram | None = None
    learnt: bool = False
    """Whether the reference is a window of requests rather than the artifact's."""
    score: float | None = None
    samples: int = 0
    over: int = 0
    drifting_since: float | None = None
    updating: bool = False
    quiet_until: float = 0.0

    def to_document(self) -> dict[str, object]:
        """Plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Learnt:
    """A window of requests became the reference."""

    version: str


@dataclass(frozen=True, slots=True)
class Began:
    score: float


@dataclass(frozen=True, slots=True)
class Ended:
    score: float


@dataclass(frozen=True, slots=True)
class Update:
    """The model is to be updated. It comes with every look until an update is under way."""

    score: float


Command = Learnt | Began | Ended | Update


def step(
    state: Drift, event: Look, now: float, settings: Settings, detector: Detector
) -> tuple[Drift, list[Command]]:
    """Take in a look. `now` is wall time."""
    commands: list[Command] = []
    state = _updates(_standing(state, event, now), event, now, settings)
    usable = [w for w in event.windows if state.reference is None or w.edges == state.reference.edges]
    window = summed(w for w in usable if w.edges == usable[-1].edges)
    if window is None or window.total < settings.min_samples:
        return state, _asks(state, now, settings)
    state = replace(state, samples=window.total)
    if state.reference is None:
        if now - state.watched_since < settings.window_s:
            return state, []
        state = replace(state, phase=Phase.STEADY, reference=window, learnt=True)
        return state, [Learnt(state.version)]
    score = detector.score(state.reference, usable)
    state = replace(state, score=score, over=state.over + 1 if score >= settings.threshold else 0)
    if state.phase is Phase.STEADY and state.over >= LOOKS_TO_BEGIN:
        state = replace(state, phase=Phase.DRIFTING, drifting_since=now)
        commands.append(Began(score))
    elif state.phase is Phase.DRIFTING and score < ENDS_BELOW * settings.threshold:
        state = replace(state, phase=Phase.STEADY, drifting_since=None)
        commands.append(Ended(score))
    return state, [*commands, *_asks(state, now, settings)]


def of_document(document: object) -> Drift:
    """What `to_document` gave. Raises ValueError for anything else."""
    try:
        found = cast("Mapping[str, Any]", document)
        reference = found["reference"]
        if reference is not None:
            reference = Histogram(tuple(map(float, reference["edges"])), tuple(map(int, reference["counts"])))
        return Drift(
            version=str(found["version"]),
            watched_since=float(found["watched_since"]),
            phase=Phase(found["phase"]),
            reference=reference,
            learnt=bool(found["learnt"]),
            score=_number(found["score"]),
            samples=int(found["samples"]),
            over=int(found["over"]),
            drifting_since=_number(found["drifting_since"]),
            updating=bool(found["updating"]),
            quiet_until=float(found["quiet_until"]),
        )
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"this is no state of a drift monitor: {error}") from None


def _number(value: object) -> float | None:
    return None if value is None else float(cast("float", value))


def _standing(state: Drift, event: Look, now: float) -> Drift:
    """Begin anew where another version stands, or its artifact's reference is another one than before."""
    reference = event.reference if event.reference is not None and event.reference.total else None
    if state.version == event.version and reference in (None, state.reference):
        return state
    return replace(
        Drift(updating=state.updating, quiet_until=state.quiet_until),
        version=event.version,
        watched_since=now,
        phase=Phase.LEARNING if reference is None else Phase.STEADY,
        reference=reference,
    )


def _updates(state: Drift, event: Look, now: float, settings: Settings) -> Drift:
    if state.updating and not event.updating:
        state = replace(state, quiet_until=now + settings.quiet_s)
    return replace(state, updating=event.updating)


def _asks(state: Drift, now: float, settings: Settings) -> list[Command]:
    # A clock that was set back makes no quiet time longer than it is.
    quiet = state.quiet_until - settings.quiet_s <= now < state.quiet_until
    if state.phase is not Phase.DRIFTING or state.updating or quiet:
        return []
    return [Update(math.nan if state.score is None else state.score)]
