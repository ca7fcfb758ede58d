"""What happens to a rollout, and what it wants done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.rollout.halting import NOTHING, Figures


@dataclass(frozen=True, slots=True)
class Sight:
    """A device of the model as it was just seen.

    `serves` is the version that it says it serves, "" for none, None while it says nothing of the model.
    `has_new`: that is the new one, with the digest of the release. `fault` says why it cannot take the
    release, by its own word; `unfit` why it never could, by what is known of it. "" for neither.
    """

    site: str
    connected: bool
    serves: str | None = None
    has_new: bool = False
    fault: str = ""
    unfit: str = ""


Fleet = Mapping[str, Sight]
"""Every device of the model by name; one that is missing has left."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A look around. `new` and `old`: evidence of the versions since the wave began (`State.wave_began`);
    `before`: of the old one in the time before the rollout."""

    fleet: Fleet
    new: Figures = NOTHING
    old: Figures = NOTHING
    before: Figures = NOTHING


@dataclass(frozen=True, slots=True)
class Ordered:
    """Devices may move to `version` now."""

    version: str


@dataclass(frozen=True, slots=True)
class Followed:
    """The followers were asked for `version`; by endpoint "" or why it does not serve it."""

    version: str
    outcomes: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Stood:
    """The new version stands."""


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The new version is offered to nobody any more."""


@dataclass(frozen=True, slots=True)
class Pause:
    pass


@dataclass(frozen=True, slots=True)
class Resume:
    pass


@dataclass(frozen=True, slots=True)
class Abort:
    pass


Event = Seen | Ordered | Followed | Stood | Withdrawn | Pause | Resume | Abort


@dataclass(frozen=True, slots=True)
class Move:
    """Devices are told another version than before."""

    devices: tuple[str, ...]
    version: str


@dataclass(frozen=True, slots=True)
class MoveBack:
    """Devices are told the version that stands again."""

    devices: tuple[str, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Order:
    """Sign a release so that devices may move to it from any other; Ordered answers."""

    version: str


@dataclass(frozen=True, slots=True)
class Follow:
    """Bring the followers to a version; Followed answers."""

    version: str


@dataclass(frozen=True, slots=True)
class Stand:
    """Make the version the one that stands; Stood answers."""

    version: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Offer the version to nobody any more; Withdrawn answers."""

    version: str


@dataclass(frozen=True, slots=True)
class Announce:
    """For the log and for people, in one sentence."""

    text: str


Command = Move | MoveBack | Order | Follow | Stand | Withdraw | Announce


class NotNow(ValueError):
    """An operator's word that a rollout cannot follow in its state. One sentence says why."""
