"""What a look at the devices changes: who has left, who serves the release, who has failed, and who is
there to be taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from gateway.rollout.messages import Fleet, Seen, Sight
from gateway.rollout.state import Duty, Phase, State, Stint
from gateway.rollout.waves import by_lot, size_of

WATCHED_S = 30.0
"""Between two looks more time than this was not watched, and does not count."""
ALONE_S = 60.0
"""A wave of which every device is away for so long gets one more."""
SHOWN = 20
"""So many of a list of devices are named."""
LONGEST_WHY = 200

FRESH = Stint(0.0, None)


def looked(state: State, event: Seen, now: float) -> State:
    """The state with what was seen, its clock set on."""
    elapsed = min(max(now - state.look.at, 0.0), WATCHED_S)
    fleet = event.fleet
    able = connected = 0
    unfit: list[str] = []
    for device, sight in fleet.items():
        if sight.unfit and not _is_taken(state, device):
            unfit.append(device)
            continue
        able += 1
        connected += sight.connected
    look = replace(state.look, at=now, clock=state.look.clock + elapsed, able=able, connected=connected)
    state = _without_leavers(state, fleet)
    if state.phase is Phase.RETURNING:
        # Nobody can take what is withdrawn: who could, and what was seen, stays as it was.
        look = replace(look, able=state.look.able, connected=state.look.connected)
        return _returning(replace(state, look=look), fleet)
    why = {device: fleet[device].unfit for device in islice(sorted(unfit), SHOWN)}
    look = replace(look, unfit=len(unfit), why_unfit=why, new=event.new, old=event.old, before=event.before)
    state = replace(state, look=look)
    state = _updating(state, fleet)
    alone = state.taken > 0 and not busy(state, fleet) and not watched(state, fleet)
    if alone == (state.alone_since is not None):
        return state
    return replace(state, alone_since=look.clock if alone else None)


def takeable(state: State, fleet: Fleet) -> tuple[str, ...]:
    """Devices to be taken now, in their order: connected ones, as many as the wave lacks, and one more
    where all of it are away for long. Those that came after the rollout began are in the last wave."""
    last = len(state.plan.waves) - 1
    wave = min(state.wave, last)
    wanted = size_of(state.plan.waves[wave], state.look.able) - state.taken
    if wanted <= 0 and is_alone(state):
        wanted = 1
    if wanted <= 0:
        return ()
    found = [device for device in state.waiting if _is_there(fleet[device])][:wanted]
    if wave == last and len(found) < wanted:
        known = {*state.waiting}
        later = (
            device
            for device, sight in fleet.items()
            if _is_there(sight) and device not in known and not _is_taken(state, device)
        )
        found += by_lot(state.id, later)[: wanted - len(found)]
    return tuple(found)


def take(state: State, devices: tuple[str, ...]) -> State:
    gone = frozenset(devices)
    return replace(
        state,
        alone_since=None,
        move_began=state.look.clock if state.move_began is None else state.move_began,
        waiting=tuple(device for device in state.waiting if device not in gone),
        moving={**state.moving, **dict.fromkeys(devices, Stint(0.0, state.look.clock))},
    )


def busy(state: State, fleet: Fleet, until: float | None = None) -> int:
    """Devices that are there, and were by `until` (None: whenever), and not at the end of their move."""
    return sum(
        1
        for device, stint in state.moving.items()
        if fleet[device].connected and (until is None or (stint.since or 0.0) <= until)
    )


def watched(state: State, fleet: Fleet) -> bool:
    """Whether some device that serves the release is there."""
    return any(fleet[device].connected for device in state.confirmed)


def many(count: int) -> str:
    """So many devices, in words."""
    return f"{count} device" if count == 1 else f"{count} devices"


def is_alone(state: State) -> bool:
    since = state.alone_since
    return since is not None and state.look.clock - since >= ALONE_S


def _is_there(sight: Sight) -> bool:
    return sight.connected and not sight.unfit


def _is_taken(state: State, device: str) -> bool:
    return (
        device in state.moving
        or device in state.confirmed
        or device in state.failed
        or device in state.returned
    )


def _without_leavers(state: State, fleet: Fleet) -> State:
    names = fleet.keys()
    if not all(device in names for device in state.waiting):
        state = replace(state, waiting=tuple(device for device in state.waiting if device in names))
    if not state.moving.keys() <= names:
        state = replace(state, moving={d: stint for d, stint in state.moving.items() if d in names})
    if not state.confirmed <= names:
        state = replace(state, confirmed=state.confirmed & names)
    if not state.failed.keys() <= names:
        state = replace(state, failed={d: why for d, why in state.failed.items() if d in names})
    if not state.returned <= names:
        state = replace(state, returned=state.returned & names)
    return state


def _updating(state: State, fleet: Fleet) -> State:
    """A device that is away, or says nothing of the model, stays what it was."""
    moving = _stints(state, fleet)
    failed = dict(state.failed)
    now_new: set[str] = set()
    for device in [*moving, *failed]:
        sight = fleet[device]
        if sight.connected and sight.has_new:
            now_new.add(device)
        elif sight.connected and sight.fault:
            failed[device] = sight.fault[:LONGEST_WHY]
        elif device in moving and _spent(moving[device], state) >= state.plan.device_timeout_s:
            failed[device] = f"did not come to an end within {state.plan.device_timeout_s:g} s"
    lost = {device for device in state.confirmed if _is_lost(fleet[device])}
    for device in lost:
        if fleet[device].fault:
            failed[device] = fleet[device].fault[:LONGEST_WHY]
        else:
            moving[device] = Stint(0.0, state.look.clock)
    failed = {device: why for device, why in failed.items() if device not in now_new}
    moving = {d: stint for d, stint in moving.items() if d not in now_new and d not in failed}
    return _with(state, moving, failed, (state.confirmed - lost) | now_new, state.returned)


def _returning(state: State, fleet: Fleet) -> State:
    """Time counts once the way back is signed: until then devices cannot take it."""
    if Duty.ORDER in state.duties:
        return state
    moving = _stints(state, fleet)
    failed = dict(state.failed)
    back: set[str] = set()
    for device in [*moving, *failed]:
        sight = fleet[device]
        if sight.connected and (sight.serves or "") == state.old:
            back.add(device)
        elif device in moving and _spent(moving[device], state) >= state.plan.device_timeout_s:
            failed[device] = f"did not come back within {state.plan.device_timeout_s:g} s"
    failed = {device: why for device, why in failed.items() if device not in back}
    moving = {d: stint for d, stint in moving.items() if d not in back and d not in failed}
    return _with(state, moving, failed, state.confirmed, state.returned | back)


def _is_lost(sight: Sight) -> bool:
    return sight.connected and sight.serves is not None and not sight.has_new


def _stints(state: State, fleet: Fleet) -> dict[str, Stint]:
    """A stint ends when its device is away, and goes on when it is back."""
    clock = state.look.clock
    return {device: _stint(stint, fleet[device].connected, clock) for device, stint in state.moving.items()}


def _stint(stint: Stint, connected: bool, clock: float) -> Stint:
    if connected == (stint.since is not None):
        return stint
    return (
        Stint(stint.spent, clock) if stint.since is None else Stint(stint.spent + clock - stint.since, None)
    )


def _spent(stint: Stint, state: State) -> float:
    return stint.spent + (0.0 if stint.since is None else state.look.clock - stint.since)


def _with(
    state: State,
    moving: Mapping[str, Stint],
    failed: Mapping[str, str],
    confirmed: frozenset[str],
    returned: frozenset[str],
) -> State:
    return replace(state, moving=moving, failed=failed, confirmed=confirmed, returned=returned)
