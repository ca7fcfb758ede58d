"""One random world played through: decided, sent along its plan, and on through the gateways behind.

Every decision and every attempt is held against the oracle. A gateway that gets a request from another
one knows of it only what the permit says, as text.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from edgewire.allowed import decode
from gateway.core.config import Config
from gateway.core.decision import Candidate, Decision, EndpointState, Snapshot
from gateway.core.errors import AttemptError
from gateway.core.place import Origin
from gateway.core.ports import Permit
from gateway.core.request import Caller, Options, Request
from gateway.decide import Attempts, decide, gateway_refusal, may_attempt
from gateway.resilience.budget import RetryBudget
from gateway.resilience.retry import Halt
from gateway.routing.predict import key_of
from oip.reasons import Reason
from tests.property.decide_oracle import (
    Places,
    allowed_devices,
    can_answer,
    class_names,
    declared,
    origin_tuple,
    places_in,
    places_of,
    where,
)
from tests.property.decide_worlds import (
    GATEWAYS,
    LOCATIONS,
    World,
    narrowed,
    random_config,
    random_groups,
    random_options,
    random_world,
)

NOW = 1000.0
GATEWAYS_IN_A_CHAIN = 3


@dataclass
class Seen:
    """What became of some worlds: too little of one kind and they prove nothing of it."""

    plans: int = 0
    to_devices: int = 0
    second_devices: int = 0
    passed_on: int = 0
    third_gateways: int = 0
    from_the_third: int = 0


def check(rng: random.Random, seen: Seen) -> None:
    """Decide once, dispatch through every fallback, and hold both against the oracle."""
    world = random_world(rng)
    limit = (
        None if world.request.options.allowed is None else places_in(world.request.options.allowed.encode())
    )
    _check_gateway(rng, world, limit, 1, seen)


def _check_gateway(rng: random.Random, world: World, limit: Places | None, number: int, seen: Seen) -> None:
    """One gateway of a chain, the `number`th. `limit` is all that the ones before leave, None at the first."""
    request, config = world.request, world.config
    decision = decide(world.snapshot, request, NOW, rng)
    early = gateway_refusal(config, request.options, request.model)
    if request.options.privacy == "no-such-class":
        assert decision.refused is Reason.BAD_OPTION
        assert not decision.plan
        assert early is not None
        return

    allowed = places_of(
        config,
        class_names(config, request.model, request.options.privacy),
        origin_tuple(config, request.options),
    )
    if limit is not None:
        allowed &= limit
    if config.gateway.name in request.options.hops:
        assert decision.refused is Reason.LOOP, "the request runs in a circle"
        assert not decision.plan
        assert early is not None
        return
    if where(config.gateway.location.place) not in allowed:
        assert decision.refused is Reason.PRIVACY, "the gateway itself is in a forbidden place"
        assert not decision.plan
        assert early is not None
        assert early.reason is Reason.PRIVACY
        return
    assert early is None, "the gateway refuses in a place that is allowed"
    _check_candidates(world, decision, allowed)
    _check_dispatch(rng, world, decision, allowed, number, seen)
    if number == 1:
        _check_narrowing(rng, world, decision)
    seen.plans += bool(decision.plan)


def _check_candidates(world: World, decision: Decision, allowed: Places) -> None:
    """No candidate is planned in a forbidden place, and none is called forbidden that is not."""
    places = declared(world.config)
    for candidate in decision.candidates:
        name = candidate.variant.endpoint
        rules = {note.rule for note in candidate.reasons}
        assert ("hops" in rules) == (name in world.request.options.hops), "the word about hops is wrong"
        if name in places:
            forbidden = places[name] not in allowed
        else:
            group = world.snapshot.groups.get(name)
            devices = [] if group is None else list(group.devices.values())
            open_to = [] if group is None else allowed_devices(group, allowed)
            forbidden = bool(devices) and not open_to
            assert decision.model_config is not None
            key = key_of(decision.model_config, candidate.variant)
            ready = any(can_answer(device, key.model, key.version) for device in open_to)
            down = not world.snapshot.endpoints[name].up
            wanted = world.request.version
            other = bool(wanted) and key.version not in ("", wanted)
            if not forbidden:
                assert ("health" in rules) == (down or not ready), "the word about devices is wrong"
                lacks = not any(can_answer(device, key.model, wanted) for device in open_to)
                lacks = bool(wanted) and not key.version and ready and lacks
                assert ("version" in rules) == (other or lacks), "the word about versions is wrong"
        assert ("privacy" in rules) == forbidden, "the word about privacy is wrong"
        if candidate in decision.plan:
            assert not forbidden, "a forbidden place is in the plan"
            assert may_attempt(world.snapshot, decision, candidate), "a planned place is refused"


def _check_dispatch(
    rng: random.Random, world: World, decision: Decision, allowed: Places, number: int, seen: Seen
) -> None:
    """Every attempt fails; at a random moment the configuration becomes another one, and devices move,
    leave, come and are drained at any time."""
    snapshot = world.snapshot
    left = allowed
    reload_at = rng.randint(1, 4)
    budget = RetryBudget()
    failure = None
    sent: list[tuple[str, str]] = []
    passed_on = False
    with Attempts(snapshot, decision, world.request, budget, rng) as plan:
        for count in range(1, 8):
            if count == reload_at:
                moved = random_config(rng, world.config.gateway if number > 1 else None)
                if all(name in moved.privacy.classes for name in decision.privacy):
                    up = {e.name: EndpointState(True) for e in moved.endpoints}
                    snapshot = Snapshot(moved, "2", up, {}, random_groups(rng, moved))
                    names = set(decision.privacy) | class_names(moved, decision.model, None)
                    left = allowed & places_of(
                        moved, names, origin_tuple(world.config, world.request.options)
                    )
            elif snapshot.groups and rng.random() < 0.3:
                snapshot = replace(snapshot, groups=random_groups(rng, snapshot.config))
            found = plan.next(snapshot, None, failure)
            if isinstance(found, Halt):
                break
            candidate, permit = found
            failure = _failure(sent=rng.random() < 0.5)
            _check_attempt(world, snapshot, decision, candidate, permit, left)
            name = candidate.variant.endpoint
            seen.from_the_third += number == GATEWAYS_IN_A_CHAIN
            sent.append((candidate.device and "a device", candidate.device or name))
            if candidate.device:
                seen.to_devices += 1
                seen.second_devices += len([one for one, _ in sent if one]) == 2
            if name in GATEWAYS and number < GATEWAYS_IN_A_CHAIN and not passed_on:
                passed_on = True
                seen.passed_on += 1
                seen.third_gateways += number == 2
                _pass_on(rng, name, snapshot.config, decision, permit, left, number + 1, seen)
    assert len(sent) == len(set(sent)), "a place is tried twice"
    assert {candidate.variant.endpoint for candidate in decision.plan} >= {
        place for kind, place in sent if not kind
    }
    for end in (budget.end_request, budget.end_retry):
        with pytest.raises(ValueError, match="never began"):
            end()


def _check_attempt(
    world: World, snapshot: Snapshot, decision: Decision, candidate: Candidate, permit: Permit, left: Places
) -> None:
    name = candidate.variant.endpoint
    assert name not in world.request.options.hops, "an attempt goes back to a gateway that was passed"
    assert places_in(permit.allowed.encode()) == left, "the permit names other places than are left"
    assert where(permit.place) == where(candidate.place)
    assert permit.hops == (*world.request.options.hops, snapshot.config.gateway.name)
    if not candidate.device:
        assert declared(snapshot.config).get(name) in left, "an attempt goes to a forbidden place"
        # A connection may still lead to where the endpoint was.
        assert where(candidate.place) in left, "an attempt goes to a forbidden place as it was decided"
        return
    device = snapshot.groups[name].devices[candidate.device]
    assert permit.device == device.name
    assert where(device.place) == where(candidate.place), "the device is not where the attempt says"
    assert where(device.place) in left, "an attempt goes to a device in a forbidden place"
    assert decision.model_config is not None
    key = key_of(decision.model_config, candidate.variant)
    version = key.version or world.request.version
    assert can_answer(device, key.model, version), "an attempt goes to a device that cannot answer"


def _pass_on(
    rng: random.Random,
    name: str,
    config: Config,
    decision: Decision,
    permit: Permit,
    left: Places,
    number: int,
    seen: Seen,
) -> None:
    """The gateway behind an endpoint, of any configuration. Mostly it is where the endpoint was declared."""
    at = next(e.place for e in config.endpoints if e.name == name)
    index = next((i for i, place in enumerate(LOCATIONS) if place.place == at), 0)
    gateway = GATEWAYS[name][index] if rng.random() < 0.8 else rng.choice(GATEWAYS[name])
    behind = random_config(rng, gateway, onward=0.7)
    site = rng.choice((None, "s1", "s2"))
    caller = Caller(peer=config.gateway.name, origin=None if site is None else Origin(site))
    options: Options = replace(
        random_options(rng, list(behind.privacy.classes), caller),
        privacy=rng.choice((None, None, *behind.privacy.classes)),
        allowed=decode(permit.allowed.encode()),
        hops=permit.hops,
    )
    request = Request(rng.choice(("m0", "m1")), "", options, 100, None, decision.id, 0.0)
    up = {e.name: EndpointState(True) for e in behind.endpoints}
    snapshot = Snapshot(behind, "1", up, {}, random_groups(rng, behind))
    _check_gateway(rng, World(snapshot, request), left, number, seen)


def _check_narrowing(rng: random.Random, world: World, decision: Decision) -> None:
    """A caller's class may shrink what is allowed; it adds nothing. (It may bring another policy,
    and leave only places that are then relaxed for or tried in a hurry.)"""
    if world.request.options.privacy is not None or not decision.policy:
        return
    narrow = narrowed(world, rng.choice(list(world.config.privacy.classes)))
    other = decide(narrow.snapshot, narrow.request, NOW, rng)
    assert _let_through(other) <= _let_through(decision), "a caller's class lets a place in"
    policy = next(p for p in world.config.policies if p.name == decision.policy)
    hurried = any(note.rule == "hurried" for c in other.plan for note in c.reasons)
    if other.policy == decision.policy and policy.on_no_candidate == "reject" and not hurried:
        planned = {id(c.variant) for c in decision.plan}
        assert {id(c.variant) for c in other.plan} <= planned, "a caller's class adds to the plan"


def _let_through(decision: Decision) -> set[str]:
    return {
        c.variant.endpoint for c in decision.candidates if all(note.rule != "privacy" for note in c.reasons)
    }


def _failure(*, sent: bool) -> AttemptError:
    return AttemptError(Reason.UNAVAILABLE, "gone", grpc_status="UNAVAILABLE", sent=sent, retryable=True)
