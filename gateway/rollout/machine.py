"""One step of a rollout: a state, an event and an instant -> the next state and what is to be done.

`now` is a wall time; how long things take is measured on the rollout's own clock, which goes on while
somebody looks. Commands are to be carried out after the state is written down. Those with an answer are
told again by `outstanding` until the answer is an event; doing them twice does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gateway.core.config import RolloutConfig
from gateway.rollout import fleet as devices
from gateway.rollout import halting
from gateway.rollout.messages import (
    Abort,
    Command,
    Event,
    Fleet,
    Followed,
    Move,
    NotNow,
    Ordered,
    Pause,
    Resume,
    Seen,
    Stood,
    Withdrawn,
)
from gateway.rollout.state import ENDED, RUNNING, Duty, Look, Phase, State
from gateway.rollout.turning import announce, answered, enter, finished, followers, outstanding, turn_back
from gateway.rollout.waves import order_of, size_of

Step = tuple[State, tuple[Command, ...]]


def begin(
    id: str,
    model: str,
    old: str,
    new: str,
    plan: RolloutConfig,
    fleet: Fleet,
    now: float,
    *,
    source: str = "",
    forced: bool = False,
) -> Step:
    """A new rollout to the devices of `fleet`. With no device that can take it, only
    the followers do."""
    sites = {device: sight.site for device, sight in fleet.items() if not sight.unfit}
    state = State(
        id, model, old, new, plan, now, Phase.ORDERING, Look(now), source, forced,
        wave=0 if sites else len(plan.waves),
        wave_began=now,
        duties=frozenset({Duty.ORDER}),
        waiting=order_of(id, sites),
    )  # fmt: skip
    state = devices.looked(state, Seen(fleet), now)
    text = f"{model}: version {old or 'none'} to {new}, for {devices.many(len(sites))}"
    state, commands = announce(state, f"{text}, though its gate did not pass it" if forced else text, now)
    return state, (*commands, *outstanding(state))


def step(state: State, event: Event, now: float) -> Step:
    """Raises NotNow for an operator's word that cannot be followed; everything else is taken as it comes,
    what is late or repeated included."""
    match event:
        case Seen():
            return _seen(state, event, now)
        case Pause() | Resume():
            return _held(state, isinstance(event, Pause), now)
        case Abort():
            return _aborted(state, now)
        case Ordered() | Followed() | Stood() | Withdrawn():
            return answered(state, event, now)


def moved(state: State) -> Mapping[str, str]:
    """What devices are told instead of the version that stands."""
    if state.phase in ENDED or (state.phase is Phase.RETURNING and Duty.ORDER not in state.duties):
        return {}
    return dict.fromkeys([*state.moving, *state.confirmed, *state.failed], state.new)


def has_followed(state: State) -> bool:
    """Whether the followers were asked for the new version, and not for the old one again."""
    return state.follow_began is not None and state.phase not in (*ENDED, Phase.RETURNING)


def _held(state: State, paused: bool, now: float) -> Step:
    if state.phase not in RUNNING:
        raise NotNow(f"the rollout {_is(state)}: it can be neither paused nor resumed")
    if state.paused == paused:
        return state, ()
    text = "paused: nobody is moved until it is resumed" if paused else "resumed"
    return announce(replace(state, paused=paused), text, now)


def _aborted(state: State, now: float) -> Step:
    if state.phase is Phase.RETURNING:
        return state, ()
    if state.phase not in RUNNING:
        raise NotNow(f"the rollout {_is(state)}: it can no longer be aborted")
    return turn_back(replace(state, aborted=True), "aborted by an operator", now)


def _is(state: State) -> str:
    return {
        Phase.STANDING: "is at its end",
        Phase.DONE: "is done",
        Phase.RETURNING: "is on its way back",
        Phase.ROLLED_BACK: "was rolled back",
    }[state.phase]


def _seen(state: State, event: Seen, now: float) -> Step:
    """At most one phase ends with one look: what was seen belongs to the phase it was seen in."""
    if state.phase in ENDED:
        return state, ()
    state, commands = _told_failures(state, devices.looked(state, event, now), now)
    if state.phase is Phase.RETURNING:
        next_state, more = finished(state, event.fleet, now)
    elif state.phase in RUNNING and (fault := _fault(state, event)):
        next_state, more = turn_back(state, f"halted: {fault}", now)
    elif state.paused:
        next_state, more = _lacking(state, "to be resumed"), ()
    elif state.phase is Phase.ORDERING and not state.duties:
        next_state, more = enter(state, state.wave, now)
    elif state.phase in (Phase.MOVING, Phase.SOAKING, Phase.FOLLOWING):
        next_state, more = _waving(state, event.fleet, now)
    else:
        next_state, more = _lacking(state, "the release to be signed and stored"), ()
    return next_state, (*commands, *more)


def _fault(state: State, event: Seen) -> str | None:
    if state.phase is Phase.ORDERING:
        return None
    halt = state.plan.halt
    return halting.device_fault(state.failed, state.taken, halt) or halting.evidence_fault(
        event.new, event.old, event.before, halt, state.plan.min_requests
    )


def _waving(state: State, fleet: Fleet, now: float) -> Step:
    """A wave of devices, and then the followers. Devices that come meanwhile are taken."""
    commands: tuple[Command, ...] = ()
    found = devices.takeable(state, fleet)
    if found:
        state = devices.take(state, found)
        commands = (Move(found, state.new),)
    state, more = _watching(state, fleet, now)
    return state, (*commands, *more)


def _watching(state: State, fleet: Fleet, now: float) -> Step:
    """A wave waits for the devices that were there in good time: where some come all the time, it would
    not end otherwise."""
    if state.phase is Phase.FOLLOWING:
        return _following(state, now)
    of_devices = state.wave < len(state.plan.waves)
    if of_devices and not state.confirmed and state.phase is Phase.SOAKING:
        state = replace(state, phase=Phase.MOVING, move_began=None, soak_began=None)
    if busy := devices.busy(state, fleet, _good_time(state)):
        return _lacking(state, f"{devices.many(busy)} to serve the new version"), ()
    if of_devices and not devices.watched(state, fleet):
        return _lacking(state, _nobody(state)), ()
    if state.phase is Phase.MOVING:
        text = f"{_name(state)}: version {state.new} serves on {devices.many(len(state.confirmed))}; now it is watched"
        soaking = replace(state, phase=Phase.SOAKING, soak_began=state.look.clock)
        return announce(_lacking(soaking, "its soak to end"), text, now)
    if lacks := _soak_lacks(state):
        return _lacking(state, lacks), ()
    return _passed(state, now)


def _good_time(state: State) -> float | None:
    """A device that comes later is not waited for."""
    if state.soak_began is not None:
        return state.soak_began + state.plan.soak_s
    return None if state.move_began is None else state.move_began + state.plan.device_timeout_s


def _soak_lacks(state: State) -> str:
    """Why a wave that runs the new version cannot end yet; "" where it can."""
    assert state.soak_began is not None
    left = state.soak_began + state.plan.soak_s - state.look.clock
    short = state.plan.min_requests - state.look.new.answered
    if left > 0:
        return f"its soak to end, in {left:.0f} s"
    if short > 0:
        return (
            f"answers of the new version: {state.look.new.answered} of {state.plan.min_requests} so far,"
            " and without evidence it neither goes on nor back"
        )
    return ""


def _passed(state: State, now: float) -> Step:
    """The wave is over; those that are reached already are skipped with their soak."""
    name, waves, able = _name(state), state.plan.waves, state.look.able
    if state.wave >= len(waves):
        return enter(state, len(waves) + 1, now)
    sizes, wave = (*state.sizes, state.taken), state.wave + 1
    while wave < len(waves) and size_of(waves[wave], able) <= state.taken:
        sizes, wave = (*sizes, 0), wave + 1
    state, commands = announce(replace(state, sizes=sizes), f"{name} has passed", now)
    state, more = enter(state, wave, now)
    return state, (*commands, *more)


def _following(state: State, now: float) -> Step:
    """The rollout does not turn back for followers alone: those that fail go on with the old version, and
    are told, unless nobody serves the new one."""
    state, commands = followers(state)
    outcomes = state.outcomes
    if outcomes is None:
        return _lacking(state, state.look.lacks or "its followers"), commands
    failed = sorted(endpoint for endpoint, why in outcomes.items() if why)
    if len(failed) == len(outcomes):
        if not state.confirmed:
            why = "; ".join(f"{endpoint}: {outcomes[endpoint]}" for endpoint in failed)
            return turn_back(state, f"halted: nothing takes it: {why or 'no place is left'}", now)
        return enter(state, len(state.plan.waves) + 1, now)
    state = replace(state, phase=Phase.SOAKING, soak_began=state.look.clock, wave_began=now)
    text = f"{len(outcomes) - len(failed)} of {len(outcomes)} followers serve version {state.new}"
    return announce(_lacking(state, "its soak to end"), text, now)


def _told_failures(before: State, state: State, now: float) -> Step:
    commands: tuple[Command, ...] = ()
    new = sorted(state.failed.keys() - before.failed.keys())
    for device in new[: devices.SHOWN]:
        state, more = announce(state, f"{device}: {state.failed[device]}", now)
        commands += more
    return state, commands


def _name(state: State) -> str:
    waves = state.plan.waves
    if state.wave >= len(waves):
        return "the followers' wave"
    return f"wave {state.wave + 1} of {len(waves)} ({waves[state.wave]})"


def _nobody(state: State) -> str:
    away = state.look.able - state.look.connected
    return f"a device to be there: {away} are away" if away else "a device that can take it"


def _lacking(state: State, what: str) -> State:
    return state if state.look.lacks == what else replace(state, look=replace(state.look, lacks=what))
