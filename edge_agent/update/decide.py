"""What to do about the models of a device. Pure: no I/O, no clock, no lots.

Invariants, whatever the order of events:
- what serves is only replaced by what was tried and written down as active;
- at most one job (restoring, fetching, trying) runs for a model;
- a target that failed its trial is not fetched or tried again unless another was desired in between;
- every digest that serves or is desired is kept, and no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

FIRST_RETRY_S = 2.0
LONGEST_RETRY_S = 600.0


@dataclass(frozen=True, slots=True)
class Target:
    """One model as it is to be run. Two that differ in anything are different targets."""

    model: str
    version: str
    digest: str
    size: int
    golden_digest: str = ""
    golden_size: int = 0
    batch_max_size: int = 0
    batch_delay_ms: float = 0.0


class Phase(StrEnum):
    RESTORING = "restoring"
    """What served last is loaded again."""
    FETCHING = "fetching"
    TRYING = "trying"
    SETTLED = "settled"
    """What is desired serves."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Plan:
    """One model. `active` serves, or served last while it is restored. `reason` says why it failed or
    waits, in one sentence; `tries` counts fetches that failed in a row."""

    desired: Target
    active: Target | None = None
    phase: Phase = Phase.FETCHING
    reason: str = ""
    tries: int = 0
    waiting: bool = False
    """For a hub to fetch from."""


@dataclass(frozen=True, slots=True)
class State:
    plans: Mapping[str, Plan] = field(default_factory=dict[str, Plan])


@dataclass(frozen=True, slots=True)
class Started:
    """The agent runs; the state is what was written down."""


@dataclass(frozen=True, slots=True)
class Desired:
    """The hub's word: everything that is to run, one target a model."""

    targets: tuple[Target, ...]


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
class Fetched:
    target: Target


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """`again`: another time it may work. `no_hub`: there is none to fetch from yet."""

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


Event = (
    Started | Desired | Restored | RestoreFailed | Fetched | FetchFailed | Tried | TryFailed
    | Committed | CommitFailed | RetryDue
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Restore:
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
    """Remove every artifact but these digests."""

    keep: frozenset[str]


Command = Restore | Fetch | Try | Commit | Swap | Discard | Retire | Cancel | Wait | Save | Sweep
Step = tuple[State, tuple[Command, ...]]


def step(state: State, event: Event) -> Step:
    """What follows from an event. One that is about a job no longer wanted changes nothing."""
    match event:
        case Started():
            return _started(state)
        case Desired(targets):
            return _desired(state, targets)
        case _:
            plan = state.plans.get(event.target.model)
            if plan is None:
                return state, _unwanted(event)
            return _about(state, plan, event)


def with_active(state: State, target: Target) -> State:
    """The state that a Commit writes down."""
    plan = state.plans[target.model]
    return _with(state, replace(plan, active=target, phase=Phase.SETTLED, reason="", tries=0))


def kept(state: State) -> frozenset[str]:
    """Digests that serve or are desired."""
    targets = [t for plan in state.plans.values() for t in (plan.desired, plan.active) if t is not None]
    return frozenset(digest for t in targets for digest in (t.digest, t.golden_digest) if digest)


def _started(state: State) -> Step:
    plans: dict[str, Plan] = {}
    commands: list[Command] = []
    for name, plan in state.plans.items():
        if plan.active is not None:
            plans[name] = replace(plan, phase=Phase.RESTORING, reason="")
            commands.append(Restore(plan.active))
        else:
            plans[name] = replace(plan, phase=Phase.FETCHING, reason="")
            commands.append(Fetch(plan.desired))
    after = State(plans)
    return after, (Sweep(kept(after)), *commands)


def _desired(state: State, targets: tuple[Target, ...]) -> Step:
    plans: dict[str, Plan] = {}
    commands: list[Command] = []
    for target in {target.model: target for target in targets}.values():
        plans[target.model], more = _wanted(state.plans.get(target.model), target)
        commands += more
    for gone in state.plans.keys() - plans.keys():
        commands += (Cancel(gone), Retire(gone))
    after = State(plans)
    return after, (*commands, Save(), Sweep(kept(after)))


def _wanted(plan: Plan | None, target: Target) -> tuple[Plan, list[Command]]:
    if plan is None:
        return Plan(target), [Fetch(target)]
    if plan.phase is Phase.RESTORING:
        return replace(plan, desired=target), []
    if plan.desired == target:
        if plan.waiting or (plan.phase is Phase.FAILED and plan.tries):
            # A hub that speaks is one to fetch from.
            return replace(plan, phase=Phase.FETCHING, waiting=False), [Cancel(target.model), Fetch(target)]
        return plan, []
    if plan.active == target:
        return Plan(target, target, Phase.SETTLED), [Cancel(target.model)]
    return Plan(target, plan.active), [Cancel(target.model), Fetch(target)]


def _about(state: State, plan: Plan, event: Event) -> Step:
    """An event about a job of one model."""
    match event:
        case Restored(target) if plan.phase is Phase.RESTORING and target == plan.active:
            after, commands = _onwards(plan)
            return _with(state, after), (Swap(target), *commands)
        case RestoreFailed(target, reason, damaged) if (
            plan.phase is Phase.RESTORING and target == plan.active
        ):
            lost = replace(plan, active=None)
            if plan.desired == target and not damaged:
                failed = replace(lost, phase=Phase.FAILED, reason=reason)
                return _with(state, failed), ()
            after, commands = _onwards(lost)
            return _with(state, replace(after, reason=reason)), commands
        case Fetched(target) if _at(plan, target, Phase.FETCHING):
            after = replace(plan, phase=Phase.TRYING, reason="", tries=0)
            return _with(state, after), (Try(target),)
        case FetchFailed(target, reason, again, no_hub) if _at(plan, target, Phase.FETCHING):
            return _fetch_failed(state, plan, target, reason, again, no_hub)
        case Tried(target) if _at(plan, target, Phase.TRYING):
            return state, (Commit(target),)
        case TryFailed(target, reason) if _at(plan, target, Phase.TRYING):
            return _with(state, replace(plan, phase=Phase.FAILED, reason=reason)), ()
        case Committed(target) if _at(plan, target, Phase.TRYING):
            after = with_active(state, target)
            return after, (Swap(target), Sweep(kept(after)))
        case CommitFailed(target, reason) if _at(plan, target, Phase.TRYING):
            after, commands = _fetch_failed(state, plan, target, reason, True, False)
            return after, (Discard(target), *commands)
        case RetryDue(target) if _at(plan, target, Phase.FAILED) and plan.tries:
            return _with(state, replace(plan, phase=Phase.FETCHING)), (Fetch(target),)
        case _:
            return state, _unwanted(event)


def _at(plan: Plan, target: Target, phase: Phase) -> bool:
    return plan.phase is phase and plan.desired == target


def _onwards(plan: Plan) -> tuple[Plan, tuple[Command, ...]]:
    """Once what served last is back, or lost: on to what is desired."""
    if plan.desired == plan.active:
        return replace(plan, phase=Phase.SETTLED, reason=""), ()
    return replace(plan, phase=Phase.FETCHING), (Fetch(plan.desired),)


def _fetch_failed(state: State, plan: Plan, target: Target, reason: str, again: bool, no_hub: bool) -> Step:
    if no_hub:
        return _with(state, replace(plan, waiting=True, reason=plan.reason or reason)), ()
    if not again:
        return _with(state, replace(plan, phase=Phase.FAILED, reason=reason, tries=0)), ()
    after = replace(plan, phase=Phase.FAILED, reason=reason, tries=plan.tries + 1)
    seconds = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(plan.tries, 20))
    return _with(state, after), (Wait(target, seconds),)


def _unwanted(event: Event) -> tuple[Command, ...]:
    """A trial or a restore that nobody waits for any more leaves a worker behind."""
    match event:
        case Tried(target) | Restored(target) | CommitFailed(target, _):
            return (Discard(target),)
        case _:
            return ()


def _with(state: State, plan: Plan) -> State:
    return State({**state.plans, plan.desired.model: plan})
