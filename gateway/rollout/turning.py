"""How a rollout enters its phases, turns back and ends, and what is owed to it meanwhile."""

from __future__ import annotations

from dataclasses import replace

from gateway.rollout import fleet as devices
from gateway.rollout.messages import (
    Announce,
    Command,
    Fleet,
    Follow,
    Followed,
    MoveBack,
    Order,
    Ordered,
    Stand,
    Stood,
    Withdraw,
    Withdrawn,
)
from gateway.rollout.state import EVENTS, Duty, Phase, State, Told

FOLLOW_AGAIN_S = 10.0

Step = tuple[State, tuple[Command, ...]]


def outstanding(state: State) -> tuple[Command, ...]:
    """Commands whose answer has not come, in the order in which they are to be carried out."""
    back = state.phase is Phase.RETURNING
    # The way back is signed before the new version is withdrawn: devices on it must have somewhere to go.
    commands: dict[Duty, Command] = {
        Duty.ORDER: Order(state.old if back else state.new),
        Duty.WITHDRAW: Withdraw(state.new),
        Duty.FOLLOW: Follow(state.old if back else state.new),
        Duty.STAND: Stand(state.new),
    }
    return tuple(command for duty, command in commands.items() if duty in state.duties)


def enter(state: State, wave: int, now: float) -> Step:
    """Begin a wave of devices, then the followers, then the end."""
    waves = len(state.plan.waves)
    if wave < waves:
        text = f"wave {wave + 1} of {waves} ({state.plan.waves[wave]}) begins"
        state = replace(
            state, phase=Phase.MOVING, wave=wave, wave_began=now, move_began=None, soak_began=None
        )
        return announce(state, text, now)
    if wave == waves:
        duties = state.duties | {Duty.FOLLOW}
        state = replace(
            state, phase=Phase.FOLLOWING, wave=wave, duties=duties, follow_began=state.look.clock,
            soak_began=None,
        )  # fmt: skip
        return state, outstanding(state)
    state = replace(state, phase=Phase.STANDING, duties=state.duties | {Duty.STAND}, soak_began=None)
    return state, outstanding(state)


def turn_back(state: State, cause: str, now: float) -> Step:
    """Everything that was told the new version is told the old one, once that is signed anew."""
    duties = {Duty.WITHDRAW}
    if state.old:
        duties |= {Duty.ORDER}
        if state.follow_began is not None:
            duties |= {Duty.FOLLOW}
    told = [*state.moving, *state.confirmed, *state.failed]
    state = replace(
        state,
        phase=Phase.RETURNING,
        cause=cause,
        paused=False,
        duties=frozenset(duties),
        moving=dict.fromkeys(told, devices.FRESH),
        confirmed=frozenset(),
        failed={},
        move_began=None,
        soak_began=None,
        follow_began=state.look.clock,
        follow_again=None,
        outcomes=None,
    )
    state, commands = announce(state, cause, now)
    # Without an old version nothing has to be signed first.
    back = () if state.old else (MoveBack(tuple(told), ""),)
    return state, (*commands, *outstanding(state), *back)


def answered(state: State, event: Ordered | Followed | Stood | Withdrawn, now: float) -> Step:
    back = state.phase is Phase.RETURNING
    match event:
        case Ordered(version) if Duty.ORDER in state.duties and version == (state.old if back else state.new):
            state = _without(state, Duty.ORDER)
            return state, (MoveBack(tuple(state.moving), state.old),) if back else ()
        case Followed(version, outcomes) if Duty.FOLLOW in state.duties and version == (
            state.old if back else state.new
        ):
            return replace(_without(state, Duty.FOLLOW), outcomes=outcomes), ()
        case Stood() if Duty.STAND in state.duties:
            state = replace(_without(state, Duty.STAND), phase=Phase.DONE)
            return announce(_lacks_nothing(state), _at_the_end(state), now)
        case Withdrawn() if Duty.WITHDRAW in state.duties:
            return _without(state, Duty.WITHDRAW), ()
        case _:
            return state, ()


def followers(state: State) -> Step:
    """Followers that fail are asked again for as long as a device has. `outcomes` are there once that is
    over."""
    clock, outcomes = state.look.clock, state.outcomes
    if state.follow_again is not None and clock >= state.follow_again:
        state = replace(state, follow_again=None, duties=state.duties | {Duty.FOLLOW})
        return state, outstanding(state)
    failed = {endpoint: why for endpoint, why in (outcomes or {}).items() if why}
    assert state.follow_began is not None
    if not failed or clock - state.follow_began >= state.plan.device_timeout_s:
        return state, ()
    first = min(failed)
    look = replace(state.look, lacks=f"its followers: {first}: {failed[first]}")
    return replace(state, look=look, outcomes=None, follow_again=clock + FOLLOW_AGAIN_S), ()


def finished(state: State, fleet: Fleet, now: float) -> Step:
    """Whether everything that is there is back."""
    state, commands = followers(state)
    busy = devices.busy(state, fleet)
    if state.duties or busy or state.follow_again is not None:
        lacks = f"{busy} devices to be back" if busy else "the old version to be back everywhere"
        return replace(state, look=replace(state.look, lacks=lacks)), commands
    state = replace(state, phase=Phase.ROLLED_BACK)
    back = f"{len(state.returned)} devices serve version {state.old or 'none'} again"
    away = f", {len(state.moving)} are away and get it when they come" if state.moving else ""
    stuck = f", {len(state.failed)} did not come back" if state.failed else ""
    return announce(_lacks_nothing(state), f"rolled back: {back}{away}{stuck}", now)


def announce(state: State, text: str, now: float) -> Step:
    return replace(state, events=(*state.events, Told(now, text))[-EVENTS:]), (Announce(text),)


def _without(state: State, duty: Duty) -> State:
    return replace(state, duties=state.duties - {duty})


def _lacks_nothing(state: State) -> State:
    return replace(state, look=replace(state.look, lacks=""))


def _at_the_end(state: State) -> str:
    away = state.look.able - state.taken + len(state.moving)
    later = f", {away} get it when they come" if away > 0 else ""
    failed = f", {len(state.failed)} failed" if state.failed else ""
    return f"version {state.new} stands: {len(state.confirmed)} devices serve it{failed}{later}"
