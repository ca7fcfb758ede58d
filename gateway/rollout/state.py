"""What the machine remembers of a rollout, and how it is written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, cast

from gateway.core.config import RolloutConfig
from gateway.rollout.halting import NOTHING, Figures

FORMAT = 1
EVENTS = 40
"""What happened last is remembered, so much of it."""


class Phase(StrEnum):
    ORDERING = "ordering"
    """The release is signed so that devices may move to it."""
    MOVING = "moving"
    """Devices of the wave take the release."""
    SOAKING = "soaking"
    """They are watched."""
    FOLLOWING = "following"
    """Endpoints besides devices take the release."""
    STANDING = "standing"
    """All have it; it is made the version that stands."""
    DONE = "done"
    RETURNING = "returning"
    """Everything goes back to the old version."""
    ROLLED_BACK = "rolled_back"


RUNNING = frozenset({Phase.ORDERING, Phase.MOVING, Phase.SOAKING, Phase.FOLLOWING})
"""What can be paused, aborted, and halts."""
ENDED = frozenset({Phase.DONE, Phase.ROLLED_BACK})


class Duty(StrEnum):
    """What has been begun outside and is not known to be done. It may be begun again."""

    ORDER = "order"
    FOLLOW = "follow"
    STAND = "stand"
    WITHDRAW = "withdraw"


class Stint(NamedTuple):
    """How long a device has been at work, connected: `spent` seconds, and since `since` on the rollout's
    own clock; None while it is away."""

    spent: float
    since: float | None


class Told(NamedTuple):
    """`at` is a wall time."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen last. It decides nothing by itself, so it need not be written down each time.

    `at` is the wall time, `clock` how many seconds the rollout has been watched: time in which nobody
    looked does not count. `able` devices can take the release, `connected` of them are there; `unfit` are
    those that cannot, of which `why_unfit` names a few. `lacks` says in a sentence what it waits for.
    """

    at: float
    clock: float = 0.0
    able: int = 0
    connected: int = 0
    unfit: int = 0
    why_unfit: Mapping[str, str] = field(default_factory=dict[str, str])
    new: Figures = NOTHING
    old: Figures = NOTHING
    before: Figures = NOTHING
    lacks: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """A rollout from version `old` ("": nothing stood) to `new` of a model. `source` says who began it.

    Every device is in one of these at most; one that is in none came later, or cannot take the release:
    `waiting`     not taken yet, in the order of choice
    `moving`      told the new version, and not known to serve it; while returning: not known to be back
    `confirmed`   says that it serves the new file
    `failed`      cannot take it, with why; while returning: did not come back, or could not take it
    `returned`    says that it serves the old version again

    `wave` counts from 0; one more than the last are the followers. `wave_began` is a wall time: evidence
    counts from there. `move_began` (the wave's first device was taken), `soak_began`, `alone_since` (all of
    its devices are away), `follow_began` and `follow_again` are on the rollout's own clock; None: not so. `outcomes`: what came of the last time that followers were asked. `sizes`: devices that had been
    taken at the end of each wave that has ended, 0 for one that was skipped.
    """

    id: str
    model: str
    old: str
    new: str
    plan: RolloutConfig
    began: float
    phase: Phase
    look: Look
    source: str = ""
    forced: bool = False
    wave: int = 0
    wave_began: float = 0.0
    move_began: float | None = None
    soak_began: float | None = None
    alone_since: float | None = None
    follow_began: float | None = None
    follow_again: float | None = None
    outcomes: Mapping[str, str] | None = None
    duties: frozenset[Duty] = frozenset()
    paused: bool = False
    aborted: bool = False
    cause: str = ""
    sizes: tuple[int, ...] = ()
    waiting: tuple[str, ...] = ()
    moving: Mapping[str, Stint] = field(default_factory=dict[str, Stint])
    confirmed: frozenset[str] = frozenset()
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    returned: frozenset[str] = frozenset()
    events: tuple[Told, ...] = ()

    @property
    def taken(self) -> int:
        """How many devices have been told the new version."""
        return len(self.moving) + len(self.confirmed) + len(self.failed)

    @property
    def open(self) -> bool:
        return self.phase not in ENDED


def to_document(state: State) -> dict[str, Any]:
    """JSON-ready; `from_document` gives the same state again."""
    return {
        "format": FORMAT,
        "id": state.id,
        "model": state.model,
        "old": state.old,
        "new": state.new,
        "plan": state.plan.model_dump(mode="json"),
        "began": state.began,
        "phase": state.phase.value,
        "look": asdict(state.look),
        "source": state.source,
        "forced": state.forced,
        "wave": state.wave,
        "wave_began": state.wave_began,
        "move_began": state.move_began,
        "soak_began": state.soak_began,
        "alone_since": state.alone_since,
        "follow_began": state.follow_began,
        "follow_again": state.follow_again,
        "outcomes": None if state.outcomes is None else dict(state.outcomes),
        "duties": sorted(state.duties),
        "paused": state.paused,
        "aborted": state.aborted,
        "cause": state.cause,
        "sizes": list(state.sizes),
        "waiting": list(state.waiting),
        "moving": {device: list(stint) for device, stint in state.moving.items()},
        "confirmed": sorted(state.confirmed),
        "failed": dict(state.failed),
        "returned": sorted(state.returned),
        "events": [list(event) for event in state.events],
    }


def from_document(document: object) -> State:
    """Raises ValueError for one that was written in another format."""
    told = cast("Mapping[str, Any]", document)
    if told.get("format") != FORMAT:
        raise ValueError(f"a rollout of format {told.get('format')!r} was written by another version")
    look = dict(told["look"])
    for name in ("new", "old", "before"):
        look[name] = Figures(**look[name])
    return State(
        id=told["id"],
        model=told["model"],
        old=told["old"],
        new=told["new"],
        plan=RolloutConfig.model_validate(told["plan"]),
        began=told["began"],
        phase=Phase(told["phase"]),
        look=Look(**look),
        source=told["source"],
        forced=told["forced"],
        wave=told["wave"],
        wave_began=told["wave_began"],
        move_began=told["move_began"],
        soak_began=told["soak_began"],
        alone_since=told["alone_since"],
        follow_began=told["follow_began"],
        follow_again=told["follow_again"],
        outcomes=told["outcomes"],
        duties=frozenset(Duty(duty) for duty in told["duties"]),
        paused=told["paused"],
        aborted=told["aborted"],
        cause=told["cause"],
        sizes=tuple(told["sizes"]),
        waiting=tuple(told["waiting"]),
        moving={device: Stint(*stint) for device, stint in told["moving"].items()},
        confirmed=frozenset(told["confirmed"]),
        failed=told["failed"],
        returned=frozenset(told["returned"]),
        events=tuple(Told(*event) for event in told["events"]),
    )
