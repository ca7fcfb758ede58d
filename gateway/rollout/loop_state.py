"""What an update's machine remembers, and how it is written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gateway.core.fleet import TrialReport
from gateway.rollout.gate import Rule


class Phase(StrEnum):
    GATHERING = "gathering"
    """Waits for labelled samples."""
    TRAINING = "training"
    MEASURING = "measuring"
    """Measures the release on held-out data."""
    TRYING = "trying"
    """Has one real device of each group try it."""
    DECIDING = "deciding"
    """Asks the gate."""
    ROLLING = "rolling"
    WATCHING = "watching"
    """Everything has the release; does the drift end?"""
    RECOVERED = "recovered"
    NOT_RECOVERED = "not recovered"
    PASSED = "passed"
    """The end of a pushed release that may be rolled out."""
    REFUSED = "refused"
    ROLLED_BACK = "rolled back"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDS = frozenset(
    {
        Phase.RECOVERED,
        Phase.NOT_RECOVERED,
        Phase.PASSED,
        Phase.REFUSED,
        Phase.ROLLED_BACK,
        Phase.FAILED,
        Phase.CANCELLED,
    }
)


class Origin(StrEnum):
    DRIFT = "drift"
    OPERATOR = "operator"
    PUSH = "push"


@dataclass(frozen=True, slots=True)
class Cause:
    """What set an update off. Of drift: the signal and its score, the sites that drift, and when the score
    was first at its threshold (wall time, 0: not known)."""

    origin: Origin
    signal: str = ""
    score: float = 0.0
    threshold: float = 0.0
    sites: tuple[str, ...] = ()
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Rules:
    """As configured now. `samples`: labelled ones that a run waits for. `trains`: whether there is a trainer
    at all. `trial_s`: how long a device has for a trial; `watch_s`: how long is waited for enough values of
    the new version."""

    samples: int
    trial_s: float
    watch_s: float
    trains: bool = True


@dataclass(frozen=True, slots=True)
class Trial:
    """A device's trial. `outcome`: "" while it is under way, else passed, failed, late or gone; `reason` is a
    sentence of the device's."""

    group: str
    device: str
    began: float
    outcome: str = ""
    reason: str = ""
    report: TrialReport | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """All there is to know of an update. Instants are wall time, in seconds since the epoch.

    `times`: each phase it has been in with the instant it came there. `attempt`: the training run's number
    from 1. `quality` is what was measured, the gate's own affair. `failures`: why earlier attempts failed.
    `waits`: what it waits for, in a clause; `outcome`: how it ended, in a sentence.
    """

    id: str
    model: str
    cause: Cause
    phase: Phase
    times: tuple[tuple[Phase, float], ...]
    attempt: int = 0
    failures: tuple[str, ...] = ()
    labelled: int = 0
    kept: int = 0
    version: str = ""
    quality: Mapping[str, Any] = field(default_factory=dict[str, Any])
    trials: tuple[Trial, ...] = ()
    rules: tuple[Rule, ...] = ()
    rollout: str = ""
    score_after: float | None = None
    waits: str = ""
    outcome: str = ""
    cancelled: bool = False
    """It is to end as soon as its rollout has ended."""

    @property
    def open(self) -> bool:
        return self.phase not in ENDS

    def at(self, phase: Phase) -> float | None:
        """When it last came to a phase; None where it never did."""
        return next((at for known, at in reversed(self.times) if known is phase), None)

    @property
    def loop_s(self) -> float | None:
        """From the first score over its threshold to the recovered model; None before, and without drift."""
        recovered = self.at(Phase.RECOVERED)
        return None if recovered is None or not self.cause.since else recovered - self.cause.since

    @property
    def trying(self) -> tuple[Trial, ...]:
        """Trials under way."""
        return tuple(t for t in self.trials if not t.outcome) if self.phase is Phase.TRYING else ()


def from_document(document: object) -> Update:
    """What `to_document` gave. Raises ValueError for anything else."""
    try:
        return _ADAPTER.validate_python(document)
    except ValidationError as error:
        raise ValueError(f"this is no state of an update: {error.error_count()} errors") from None


def to_document(state: Update) -> dict[str, Any]:
    """Plain data, for JSON."""
    return _ADAPTER.dump_python(state, mode="json")


_ADAPTER: TypeAdapter[Update] = TypeAdapter(Update)
