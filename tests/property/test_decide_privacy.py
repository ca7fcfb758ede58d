"""No place that a class forbids is ever decided for, retried at or fallen back to.

Each seed makes one configuration and one request of its own; a failure names its seed, and
`check(random.Random(seed))` plays it again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gateway.decide.admission as admission
import gateway.decide.attempts as attempts
import gateway.decide.choose as choose
import gateway.decide.tables as tables_module
import gateway.policy.privacy as privacy
from gateway.core.decision import Candidate, Decision, EndpointState, Snapshot
from gateway.core.errors import AttemptError
from gateway.core.place import Origin, Place, PlaceRule
from gateway.decide import Attempts, decide, gateway_refusal, may_attempt
from gateway.decide.tables import Compiled, Model
from gateway.resilience.budget import RetryBudget
from gateway.resilience.retry import Halt
from oip.reasons import Reason
from tests.property.decide_worlds import (
    World,
    class_names,
    narrowed,
    origin_tuple,
    places_of,
    random_config,
    random_world,
    validated,
    where,
)

CHUNKS = 20
PER_CHUNK = 5_000
NOW = 1000.0


def test_the_issue_asks_for_a_hundred_thousand() -> None:
    assert CHUNKS * PER_CHUNK >= 100_000


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_forbidden_place(chunk: int) -> None:
    plans = 0
    for seed in range(chunk * PER_CHUNK, (chunk + 1) * PER_CHUNK):
        try:
            plans += check(random.Random(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert plans > PER_CHUNK / 4, "hardly any request is ever answered: the worlds prove nothing"


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_no_forbidden_place_shrinking(rng: random.Random) -> None:
    check(rng)


def test_the_worlds_are_valid_configurations() -> None:
    for seed in range(300):
        config = random_config(random.Random(seed))
        assert validated(config) == config


def check(rng: random.Random) -> bool:
    """Decide once, dispatch through every fallback, and hold both against the oracle."""
    world = random_world(rng)
    request, config = world.request, world.config
    decision = decide(world.snapshot, request, NOW, rng)
    early = gateway_refusal(config, request.options, request.model)
    if request.options.privacy == "no-such-class":
        assert decision.refused is Reason.BAD_OPTION
        assert not decision.plan
        assert early is not None
        return False

    origin = origin_tuple(world)
    allowed = places_of(config, class_names(world), origin)
    places = {e.name: where(e.location) for e in config.endpoints}
    if where(config.gateway.location) not in allowed:
        assert decision.refused is Reason.PRIVACY, "the gateway itself is in a forbidden place"
        assert not decision.plan
        assert early is not None
        assert early.reason is Reason.PRIVACY
        return False
    assert early is None, "the gateway refuses in a place that is allowed"

    for candidate in decision.plan:
        assert places[candidate.variant.endpoint] in allowed, "a forbidden place is in the plan"
        assert may_attempt(world.snapshot, decision, candidate), "a planned place is refused"
    for candidate in decision.candidates:
        forbidden = places[candidate.variant.endpoint] not in allowed
        said = any(note.rule == "privacy" for note in candidate.reasons)
        assert said == forbidden, "the word about privacy is wrong"
    _check_dispatch(rng, world, decision)
    _check_narrowing(rng, world, decision)
    return bool(decision.plan)


def _check_dispatch(rng: random.Random, world: World, decision: Decision) -> None:
    """Every attempt fails, and at a random moment the configuration becomes another one."""
    snapshot = world.snapshot
    reload_at = rng.randint(1, 4)
    budget = RetryBudget()
    failure = None
    sent: list[str] = []
    with Attempts(snapshot, decision, world.request, budget) as plan:
        for count in range(1, 8):
            if count == reload_at:
                moved = random_config(rng)
                if all(name in moved.privacy.classes for name in decision.privacy):
                    up = {e.name: EndpointState(True) for e in moved.endpoints}
                    snapshot = Snapshot(moved, "2", up, {})
            found = plan.next(snapshot, None, failure)
            if isinstance(found, Halt):
                break
            candidate, _ = found
            failure = _failure(sent=rng.random() < 0.5)
            name = candidate.variant.endpoint
            sent.append(name)
            for config in {id(c.config): c.config for c in (world.snapshot, snapshot)}.values():
                now_in = replace(world, snapshot=Snapshot(config, "", {}, {}))
                names = set(decision.privacy) | class_names(replace_options(now_in))
                place = next((where(e.location) for e in config.endpoints if e.name == name), None)
                assert place in places_of(config, names, origin_tuple(world)), (
                    "an attempt goes to a forbidden place"
                )
    assert len(sent) == len(set(sent)), "an endpoint is tried twice"
    assert set(sent) <= {c.variant.endpoint for c in decision.plan}
    for end in (budget.end_request, budget.end_retry):
        with pytest.raises(ValueError, match="never began"):
            end()


def replace_options(world: World) -> World:
    """Without the caller's class: only what the model's own configuration asks for."""
    return replace(
        world, request=replace(world.request, options=replace(world.request.options, privacy=None))
    )


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


Plant = Callable[[pytest.MonkeyPatch], None]


def _second_class_ignored(patch: pytest.MonkeyPatch) -> None:
    real = Compiled.wall
    patch.setattr(Compiled, "wall", lambda self, names, origin: real(self, names[:1], origin))


def _caller_class_replaces_the_models(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Model, "classes", lambda self, options: (options.privacy or self.privacy,))


def _same_ignored(patch: pytest.MonkeyPatch) -> None:
    real = privacy._matches

    def faulty(rule: PlaceRule, place: Place, origin: Origin) -> bool:
        if rule.tiers is None and rule.regions is None and rule.sites is None:
            return True
        return real(replace(rule, same=frozenset()), place, origin)

    patch.setattr(privacy, "_matches", faulty)


def _missing_region_is_any(patch: pytest.MonkeyPatch) -> None:
    real = privacy._matches

    def faulty(rule: PlaceRule, place: Place, origin: Origin) -> bool:
        return real(replace(rule, regions=None) if place.region is None else rule, place, origin)

    patch.setattr(privacy, "_matches", faulty)


def _unknown_origin_is_any(patch: pytest.MonkeyPatch) -> None:
    real = privacy._matches

    def faulty(rule: PlaceRule, place: Place, origin: Origin) -> bool:
        return real(rule, place, Origin(origin.site or place.site, origin.device or place.device))

    patch.setattr(privacy, "_matches", faulty)


def _denied_origin_kept(patch: pytest.MonkeyPatch) -> None:
    for module in (choose, admission):
        patch.setattr(module, "origin_of", lambda gateway, options: Origin(gateway.site, gateway.device))


def _fallbacks_unfiltered(patch: pytest.MonkeyPatch) -> None:
    real = choose._eligible

    def faulty(rows, relax, among):  # type: ignore[no-untyped-def]
        relaxed, left = real(rows, relax, among)
        unfiltered = [i for i, row in enumerate(rows) if row.facts.refused_by and i not in left]
        return relaxed, [*left, *unfiltered] if left else left

    patch.setattr(choose, "_eligible", faulty)


def _own_place_not_asked(patch: pytest.MonkeyPatch) -> None:
    real = Compiled.wall
    patch.setattr(
        Compiled, "wall", lambda self, names, origin: real(self, names, origin)._replace(gateway=())
    )


def _retry_does_not_ask_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attempts, "may_attempt", lambda snapshot, decision, candidate: True)


def _place_not_asked_again(patch: pytest.MonkeyPatch) -> None:
    """A retry that trusts the place as it was decided, under the classes of now."""

    def faulty(snapshot: Snapshot, decision: Decision, candidate: Candidate) -> bool:
        tables = tables_module.compiled(snapshot.config)
        classes = tables.classes_named(decision.privacy)
        return privacy.allowed(classes, candidate.place, decision.origin)

    patch.setattr(attempts, "may_attempt", faulty)


def _everything_blocked_without_a_site(patch: pytest.MonkeyPatch) -> None:
    real = privacy._matches
    patch.setattr(
        privacy,
        "_matches",
        lambda rule, place, origin: place.site is not None and real(rule, place, origin),
    )


@pytest.mark.parametrize(
    "plant",
    [
        _second_class_ignored,
        _caller_class_replaces_the_models,
        _same_ignored,
        _missing_region_is_any,
        _unknown_origin_is_any,
        _denied_origin_kept,
        _fallbacks_unfiltered,
        _own_place_not_asked,
        _retry_does_not_ask_again,
        _place_not_asked_again,
        _everything_blocked_without_a_site,
    ],
)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    check_seeds(200)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_seeds(PER_CHUNK)


def check_seeds(count: int) -> None:
    for seed in range(count):
        check(random.Random(seed))
