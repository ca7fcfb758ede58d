"""What to do about the models of a device. Pure: no I/O, no clock, no lots.

Invariants, whatever the order of events:
- what serves is only replaced by what was verified, tried and written down as active, or was so before and
  is restored;
- the order of what serves grows, but where the device goes back to `previous` by itself;
- at most one job (restoring, verifying, fetching, trying) runs for a model;
- a target that failed its trial is not fetched or tried again unless another was desired in between, and
  what the device went back from is not either, also after a restart;
- every digest that serves, is desired or is gone back to is kept, and no other.
"""

from __future__ import annotations

from dataclasses import replace

from edge_agent.update.events import (
    Cancel,
    Command,
    Commit,
    CommitFailed,
    Committed,
    Desired,
    Discard,
    Event,
    Fell,
    Fetch,
    Fetched,
    FetchFailed,
    Proven,
    Restore,
    Restored,
    RestoreFailed,
    Retire,
    RetryDue,
    Save,
    Started,
    Stopping,
    Swap,
    Sweep,
    Tried,
    Try,
    TryFailed,
    Verified,
    Verify,
    Wait,
)  # fmt: skip
from edge_agent.update.plan import Phase, Plan, Slot, State, Target, with_active, with_plan

FIRST_RETRY_S = 2.0
LONGEST_RETRY_S = 600.0
RESTORES = 2
"""So often what served last is loaded again before it is given up."""
LOADS = 3
"""So many loads that never came to their end, and the model is taken to be what ends the agent."""
_NEVER = f"This model was loaded {LOADS} times on this device and never came to answer."


Step = tuple[State, tuple[Command, ...]]
Next = tuple[Plan, tuple[Command, ...]]


def step(state: State, event: Event) -> Step:
    """What follows from an event. One that is about a job no longer wanted changes nothing."""
    match event:
        case Started():
            return _started(state)
        case Stopping():
            plans = {name: _stopped(plan) for name, plan in state.plans.items()}
            return replace(state, plans=plans), (Save(),) if plans != state.plans else ()
        case Desired(targets, root):
            return _desired(_trusting(state, root), targets)
        case _:
            plan = state.plans.get(event.target.model)
            if plan is None:
                return state, _unwanted(event)
            return _about(state, plan, event)


def retry_s(tries: int) -> float:
    """How long to wait after so many failures before this one, in seconds."""
    return min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(tries, 20))


def _started(state: State) -> Step:
    plans: dict[str, Plan] = {}
    commands: list[Command] = []
    for name, plan in state.plans.items():
        plans[name], more = _begun(replace(plan, reason="", waiting=False, tries=0))
        commands += more
    return replace(state, plans=plans), (Sweep(), Save(), *commands)


def _begun(plan: Plan) -> Next:
    if plan.active is None:
        return _onwards(plan)
    if plan.restores >= LOADS:
        return _fall_back(plan, _NEVER)
    return _restoring(plan)


def _restoring(plan: Plan) -> Next:
    assert plan.active is not None
    after = replace(plan, phase=Phase.RESTORING, restores=plan.restores + 1)
    return after, (Restore(plan.active.target),)


def _stopped(plan: Plan) -> Plan:
    if plan.phase is Phase.RESTORING:
        return replace(plan, restores=plan.restores - 1)
    if plan.phase is Phase.TRYING:
        return replace(plan, attempts=plan.attempts - 1)
    return plan


def _desired(state: State, targets: tuple[Target, ...]) -> Step:
    plans: dict[str, Plan] = {}
    commands: list[Command] = []
    for target in {target.model: target for target in targets}.values():
        plans[target.model], more = _wanted(state.plans.get(target.model), target)
        commands += more
    for gone in state.plans.keys() - plans.keys():
        commands += (Cancel(gone), Retire(gone))
    return replace(state, plans=plans), (*commands, Save(), Sweep())


def _trusting(state: State, root: str) -> State:
    """With what another root of trust signed as nothing that binds: a device that was enrolled anew, with
    another gateway or one that lost its keys, compares no orders and no names of the two."""
    if root in ("", state.root):
        return state
    if not state.root:
        return replace(state, root=root)
    plans = {
        name: replace(plan, active=_unsigned(plan.active), previous=_unsigned(plan.previous))
        for name, plan in state.plans.items()
    }
    return State(plans, root)


def _unsigned(slot: Slot | None) -> Slot | None:
    return None if slot is None else replace(slot, order=0)


def _wanted(plan: Plan | None, target: Target) -> Next:
    if plan is None:
        return _onwards(Plan(target))
    if plan.desired == target:
        if plan.waiting or (plan.phase is Phase.FAILED and plan.tries):
            # A hub that speaks is one to ask.
            after, commands = _onwards(replace(plan, waiting=False))
            return after, (Cancel(target.model), *commands)
        return plan, ()
    same = plan.desired.digest == target.digest
    wanted = replace(
        plan,
        desired=target,
        reason="",
        tries=0,
        waiting=False,
        order=0,
        attempts=0,
        quarantine=plan.quarantine if same else "",
    )
    if plan.phase is Phase.RESTORING:
        return wanted, ()
    after, commands = _onwards(wanted)
    return after, (Cancel(target.model), *commands)


def _onwards(plan: Plan) -> Next:
    """With what serves in its place, or nothing: on to what is desired."""
    if plan.quarantine:
        return replace(plan, phase=Phase.FAILED, reason=plan.quarantine), ()
    if plan.active is not None and plan.active.target == plan.desired:
        return replace(plan, phase=Phase.SETTLED, reason=""), ()
    return replace(plan, phase=Phase.VERIFYING), (Verify(plan.desired),)


def _fall_back(plan: Plan, reason: str) -> Next:
    """From `active`, which does not work, to `previous`, or to nothing."""
    assert plan.active is not None
    if plan.active.target.digest != plan.desired.digest:
        # It is not what is desired: only that nothing is left says more than what is known.
        nothing_left = plan.quarantine and plan.previous is None
        reason = _both(plan.quarantine, reason) if nothing_left else plan.quarantine
    after = replace(
        plan,
        active=plan.previous,
        previous=None,
        proven=False,
        restores=0,
        quarantine=reason,
    )
    after, commands = _onwards(after) if after.active is None else _restoring(after)
    return after, (Save(), *commands)


def _about(state: State, plan: Plan, event: Event) -> Step:
    """An event about a job of one model, or about what serves of it."""
    match event:
        case Restored(target) if _restores(plan, target):
            after, commands = _onwards(replace(plan, restores=0))
            return with_plan(state, after), (Swap(target), Save(), *commands)
        case RestoreFailed(target, reason, damaged) if _restores(plan, target):
            after, commands = _not_restored(plan, reason, damaged)
            return with_plan(state, after), commands
        case Verified(target, order) if _at(plan, target, Phase.VERIFYING):
            after = replace(plan, phase=Phase.FETCHING, order=order)
            return with_plan(state, after), (Fetch(target),)
        case Fetched(target) if _at(plan, target, Phase.FETCHING):
            after, commands = _fetched(plan)
            return with_plan(state, after), commands
        case FetchFailed(target, reason, again, no_hub) if _at(plan, target, Phase.VERIFYING, Phase.FETCHING):
            after, commands = _fetch_failed(plan, reason, again, no_hub)
            return with_plan(state, after), commands
        case Tried(target) if _at(plan, target, Phase.TRYING):
            return state, (Commit(target),)
        case TryFailed(target, reason) if _at(plan, target, Phase.TRYING):
            return with_plan(state, replace(plan, phase=Phase.FAILED, reason=reason, attempts=0)), (Save(),)
        case Committed(target) if _at(plan, target, Phase.TRYING):
            return with_active(state, target), (Swap(target), Sweep())
        case CommitFailed(target, reason) if _at(plan, target, Phase.TRYING):
            after, commands = _fetch_failed(replace(plan, attempts=0), reason, True, False)
            return with_plan(state, after), (Discard(target), *commands)
        case RetryDue(target) if _at(plan, target, Phase.FAILED) and plan.tries:
            after, commands = _onwards(plan)
            return with_plan(state, after), commands
        case Fell(target, reason) if _serves(plan, target) and plan.previous and not plan.proven:
            after, commands = _fall_back(plan, reason)
            return with_plan(state, after), (Cancel(target.model), *commands)
        case Proven(target) if _serves(plan, target) and not plan.proven:
            return with_plan(state, replace(plan, proven=True)), (Save(),)
        case _:
            return state, _unwanted(event)


def _at(plan: Plan, target: Target, *phases: Phase) -> bool:
    return plan.phase in phases and plan.desired == target


def _restores(plan: Plan, target: Target) -> bool:
    return plan.phase is Phase.RESTORING and plan.active is not None and plan.active.target == target


def _serves(plan: Plan, target: Target) -> bool:
    return plan.phase is not Phase.RESTORING and plan.active is not None and plan.active.target == target


def _not_restored(plan: Plan, reason: str, damaged: bool) -> Next:
    if not damaged and plan.restores < RESTORES:
        after, commands = _restoring(plan)
        return after, (Save(), *commands)
    if plan.previous is not None:
        return _fall_back(plan, reason) if not damaged else _restoring(_without_active(plan))
    lost = _without_active(plan)
    commands = (Retire(plan.desired.model),)
    if plan.quarantine:
        return replace(lost, phase=Phase.FAILED, reason=_both(plan.quarantine, reason)), commands
    assert plan.active is not None
    if plan.active.target == plan.desired and not damaged:
        # Not written down: another start may find it working.
        return replace(lost, phase=Phase.FAILED, reason=reason), commands
    after, more = _onwards(lost)
    return replace(after, reason=reason), (*commands, *more)


def _both(bad: str, before: str) -> str:
    return f"{bad} What served before does not work either: {before}"


def _without_active(plan: Plan) -> Plan:
    return replace(plan, active=plan.previous, previous=None, proven=False, restores=0)


def _fetched(plan: Plan) -> Next:
    if plan.attempts >= LOADS:
        return replace(plan, phase=Phase.FAILED, reason=_NEVER, attempts=0, quarantine=_NEVER), (Save(),)
    after = replace(plan, phase=Phase.TRYING, reason="", tries=0, attempts=plan.attempts + 1)
    return after, (Save(), Try(plan.desired))


def _fetch_failed(plan: Plan, reason: str, again: bool, no_hub: bool) -> Next:
    if no_hub:
        return replace(plan, waiting=True, reason=plan.reason or reason), ()
    if not again:
        return replace(plan, phase=Phase.FAILED, reason=reason, tries=0), ()
    after = replace(plan, phase=Phase.FAILED, reason=reason, tries=plan.tries + 1)
    return after, (Wait(plan.desired, retry_s(plan.tries)),)


def _unwanted(event: Event) -> tuple[Command, ...]:
    """A trial or a restore that nobody waits for any more leaves a worker behind."""
    match event:
        case Tried(target) | Restored(target) | CommitFailed(target, _):
            return (Discard(target),)
        case _:
            return ()
