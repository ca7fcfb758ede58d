"""What an update's machine is told, and what it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gateway.core.fleet import TrialReport
from gateway.rollout.gate import Rule
from gateway.rollout.loop_state import Phase


@dataclass(frozen=True, slots=True)
class Resumed:
    """Control has come back."""


@dataclass(frozen=True, slots=True)
class SamplesSeen:
    """How many samples there are now; `wanting` says what keeps the others from being labelled, in a clause,
    "" for nothing."""

    labelled: int
    kept: int
    wanting: str = ""


@dataclass(frozen=True, slots=True)
class Trained:
    """A run ended well, and what came of it is the release `version`."""

    version: str


@dataclass(frozen=True, slots=True)
class Retrying:
    """The attempt failed, and there is another."""

    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class Measured:
    """`rules`: those of the gate that can be told by then; one that refuses ends the update before a device
    is asked for a trial."""

    quality: Mapping[str, Any]
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """What an update cannot do without could not be done. `phase` is the one whose work it was."""

    phase: Phase
    why: str


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """A group's devices: how many there are that could take the release, those of them that are connected,
    by name, and what those that were asked for a trial say."""

    able: int
    connected: tuple[str, ...]
    reports: Mapping[str, TrialReport] = field(default_factory=dict[str, TrialReport])


@dataclass(frozen=True, slots=True)
class FleetSeen:
    """By group: every device group that is to run the release."""

    groups: Mapping[str, GroupSeen]


@dataclass(frozen=True, slots=True)
class Judged:
    rules: tuple[Rule, ...]


class Progress(StrEnum):
    OPEN = "open"
    DONE = "done"
    UNDONE = "undone"
    """It ended, and what it did was taken back: halted, or aborted."""
    NONE = "none"
    """There is no rollout of this update."""


@dataclass(frozen=True, slots=True)
class RolloutSeen:
    """`words`: what it waits for while it is open, why it was undone afterwards."""

    id: str
    progress: Progress
    words: str = ""


@dataclass(frozen=True, slots=True)
class DriftSeen:
    """The drift of the new version. `score`: None while there are too few values, of which `words` tells."""

    score: float | None
    drifting: bool
    words: str = ""


@dataclass(frozen=True, slots=True)
class Cancel:
    """By the operator."""


Event = (
    Resumed
    | SamplesSeen
    | Trained
    | Retrying
    | Measured
    | WorkFailed
    | FleetSeen
    | Judged
    | RolloutSeen
    | DriftSeen
    | Cancel
)


@dataclass(frozen=True, slots=True)
class Train:
    """Begin a run, and add what comes of it as a release; a release of this update that is there already is
    what came of it."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Measure:
    version: str


@dataclass(frozen=True, slots=True)
class Judge:
    """Ask the gate, and put its word on the release."""

    version: str


@dataclass(frozen=True, slots=True)
class Roll:
    """Start the rollout, where this update has none yet."""

    version: str


@dataclass(frozen=True, slots=True)
class Abort:
    """End this update's rollout, if there is one."""

    version: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End whatever work is under way for the update."""


Command = Train | Measure | Judge | Roll | Abort | Stop
