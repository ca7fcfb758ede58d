"""What a device knows of its models: what is desired, what serves, what it goes back to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Target:
    """One model as it is to be run. Two that differ in anything are different targets. `name` and
    `golden_name` are those of the signed targets (edgewire.targets)."""

    model: str
    version: str
    digest: str
    size: int
    golden_digest: str = ""
    golden_size: int = 0
    batch_max_size: int = 0
    batch_delay_ms: float = 0.0
    name: str = ""
    golden_name: str = ""

    @property
    def files(self) -> tuple[tuple[str, int], ...]:
        """Digest and size of the artifact, and of its golden vectors where it has them."""
        golden = ((self.golden_digest, self.golden_size),) if self.golden_digest else ()
        return ((self.digest, self.size), *golden)


@dataclass(frozen=True, slots=True)
class Slot:
    """What was verified, tried and written down. `order` was signed with it; 0: not by the root of trust
    that the device has now."""

    target: Target
    order: int = 0


class Phase(StrEnum):
    RESTORING = "restoring"
    """What served last is loaded again."""
    VERIFYING = "verifying"
    """Whether what is desired is signed."""
    FETCHING = "fetching"
    TRYING = "trying"
    SETTLED = "settled"
    """What is desired serves."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Plan:
    """One model. `active` serves, or served last while it is restored; `previous` is what the device goes
    back to by itself. `reason` says why it failed or waits, in one sentence; `tries` counts what failed in
    a row and is tried again; `order` is what was signed with `desired`, once it is verified.

    `restores` and `attempts` count loads of `active` and of `desired` that were begun and not ended, so
    that a model that takes the agent with it is not loaded for ever. `quarantine` says why `desired` is
    not tried again until another digest was desired in between.
    """

    desired: Target
    active: Slot | None = None
    previous: Slot | None = None
    phase: Phase = Phase.VERIFYING
    reason: str = ""
    tries: int = 0
    waiting: bool = False
    """For a hub to ask."""
    order: int = 0
    proven: bool = False
    """`active` has been through its probation."""
    restores: int = 0
    attempts: int = 0
    quarantine: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """`root`: the digest of the root of trust that the device had last, "" before the first."""

    plans: Mapping[str, Plan] = field(default_factory=dict[str, Plan])
    root: str = ""


def with_plan(state: State, plan: Plan) -> State:
    return replace(state, plans={**state.plans, plan.desired.model: plan})


def with_active(state: State, target: Target) -> State:
    """The state that a Commit writes down: what served becomes `previous`."""
    plan = state.plans[target.model]
    before, previous, proven = plan.active, plan.previous, False
    if before is not None and before.target.digest == target.digest:
        proven = plan.proven
    elif previous is not None and previous.target.digest == target.digest:
        # It was ordered back to: what it leaves is nothing to return to.
        previous = None
    elif before is not None:
        previous = before
    return with_plan(
        state,
        replace(
            plan,
            active=Slot(target, plan.order),
            previous=previous,
            phase=Phase.SETTLED,
            reason="",
            tries=0,
            proven=proven,
            restores=0,
            attempts=0,
        ),
    )


def kept(state: State) -> frozenset[str]:
    """Digests that serve, are desired or are gone back to."""
    slots = [slot for plan in state.plans.values() for slot in (plan.active, plan.previous) if slot]
    targets = [*(plan.desired for plan in state.plans.values()), *(slot.target for slot in slots)]
    return frozenset(digest for target in targets for digest, _ in target.files if digest)
