"""What may happen to a device's models, and what is then to be done. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from edge_agent.update.plan import Target


@dataclass(frozen=True, slots=True)
class Started:
    """The agent runs; the state is what was written down."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """The agent ends as it should: whatever is being loaded is not to blame."""


@dataclass(frozen=True, slots=True)
class Desired:
    """The hub's word: everything that is to run, one target a model. `root` is the digest of the root of
    trust that the device was enrolled with, "" where it was given none."""

    targets: tuple[Target, ...]
    root: str = ""


@dataclass(frozen=True, slots=True)
class Restored:
    target: Target


@dataclass(frozen=True, slots=True)
class RestoreFailed:
    """`damaged`: its file is gone or is not what it was, so it is worth fetching again."""

    target: Target
    reason: str
    damaged: bool


@dataclass(frozen=True, slots=True)
class Verified:
    """It is signed, for this device and to serve."""

    target: Target
    order: int


@dataclass(frozen=True, slots=True)
class Fetched:
    target: Target


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """It was not verified or did not come. `again`: another time it may. `no_hub`: there is none to ask
    yet."""

    target: Target
    reason: str
    again: bool = True
    no_hub: bool = False


@dataclass(frozen=True, slots=True)
class Tried:
    target: Target


@dataclass(frozen=True, slots=True)
class TryFailed:
    target: Target
    reason: str


@dataclass(frozen=True, slots=True)
class Committed:
    """The disk says that the target is active."""

    target: Target


@dataclass(frozen=True, slots=True)
class CommitFailed:
    target: Target
    reason: str


@dataclass(frozen=True, slots=True)
class RetryDue:
    target: Target


@dataclass(frozen=True, slots=True)
class Fell:
    """What serves keeps ending its worker, by every delegate."""

    target: Target
    reason: str


@dataclass(frozen=True, slots=True)
class Proven:
    """What serves has served for its probation."""

    target: Target


Event = (
    Started | Stopping | Desired | Restored | RestoreFailed | Verified | Fetched | FetchFailed | Tried
    | TryFailed | Committed | CommitFailed | RetryDue | Fell | Proven
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Restore:
    target: Target


@dataclass(frozen=True, slots=True)
class Verify:
    target: Target


@dataclass(frozen=True, slots=True)
class Fetch:
    target: Target


@dataclass(frozen=True, slots=True)
class Try:
    target: Target


@dataclass(frozen=True, slots=True)
class Commit:
    """Write down `state` with the target active; answered at once by Committed or CommitFailed."""

    target: Target


@dataclass(frozen=True, slots=True)
class Swap:
    """Let what was tried answer new requests; what served before ends its own."""

    target: Target


@dataclass(frozen=True, slots=True)
class Discard:
    """What was tried is not wanted after all."""

    target: Target


@dataclass(frozen=True, slots=True)
class Retire:
    """Let the model end its requests and stop."""

    model: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the model's job, if one runs."""

    model: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Give RetryDue after so many seconds."""

    target: Target
    seconds: float


@dataclass(frozen=True, slots=True)
class Save:
    """Write the state down; when that fails, the next save makes up for it."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Remove every artifact but what is kept."""


Command = Restore | Verify | Fetch | Try | Commit | Swap | Discard | Retire | Cancel | Wait | Save | Sweep
