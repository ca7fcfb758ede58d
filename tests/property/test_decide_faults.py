"""The property test sees: each of these faults, planted, is found by it."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import replace

import pytest

import edgewire.allowed as allowed_module
import gateway.decide.admission as admission
import gateway.decide.attempts as attempts
import gateway.decide.choose as choose
import gateway.decide.groups as groups
import gateway.decide.tables as tables_module
import gateway.policy.privacy as privacy
from edgewire.allowed import AllowedSet
from gateway.core.decision import Candidate, Decision, Snapshot, VariantKey
from gateway.core.errors import Refusal
from gateway.core.fleet import Device
from gateway.core.place import Origin, Place, PlaceRule
from gateway.core.ports import Permit
from gateway.core.request import Options
from gateway.decide import Attempts
from gateway.decide.tables import Compiled, Model, Wall
from gateway.routing.pick import Rng
from tests.property.decide_check import Seen, check

SEEDS = 5_000
Plant = Callable[[pytest.MonkeyPatch], None]


def _second_class_ignored(patch: pytest.MonkeyPatch) -> None:
    real = Compiled.wall
    patch.setattr(
        Compiled, "wall", lambda self, names, origin, left=None: real(self, names[:1], origin, left)
    )


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
        patch.setattr(module, "origin_of", privacy.home_of)


def _callers_site_is_believed(patch: pytest.MonkeyPatch) -> None:
    real = privacy.origin_of

    def faulty(gateway: Place, options: Options) -> Origin:
        return Origin(options.site, options.device) if options.site else real(gateway, options)

    for module in (choose, admission):
        patch.setattr(module, "origin_of", faulty)


def _peers_data_is_from_here(patch: pytest.MonkeyPatch) -> None:
    def faulty(gateway: Place, options: Options) -> Origin:
        return options.caller.origin or Origin(gateway.site, gateway.device)

    patch.setattr(privacy, "home_of", faulty)


def _same_device_by_its_site(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        privacy,
        "_same_device",
        lambda place, origin: origin.device is not None and place.site == origin.site,
    )


def _same_device_by_its_name_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        privacy,
        "_same_device",
        lambda place, origin: place.device is not None and place.device == origin.device,
    )


def _fallbacks_unfiltered(patch: pytest.MonkeyPatch) -> None:
    real = choose._eligible

    def faulty(rows, relax, among):  # type: ignore[no-untyped-def]
        relaxed, left = real(rows, relax, among)
        unfiltered = [i for i, row in enumerate(rows) if row.facts.refused_by and i not in left]
        return relaxed, [*left, *unfiltered] if left else left

    patch.setattr(choose, "_eligible", faulty)


def _own_place_not_asked(patch: pytest.MonkeyPatch) -> None:
    real = Wall.__init__

    def faulty(self, *given):  # type: ignore[no-untyped-def]
        real(self, *given)
        self.gateway = ()

    patch.setattr(Wall, "__init__", faulty)


def _own_place_not_asked_of_the_peer(patch: pytest.MonkeyPatch) -> None:
    real = admission._check_passage

    def faulty(tables: Compiled, options: Options) -> Refusal | None:
        return real(tables, replace(options, allowed=None))

    patch.setattr(admission, "_check_passage", faulty)


def _circles_not_seen(patch: pytest.MonkeyPatch) -> None:
    real = admission._check_passage

    def faulty(tables: Compiled, options: Options) -> Refusal | None:
        return real(tables, replace(options, hops=()))

    patch.setattr(admission, "_check_passage", faulty)


def _hops_ignored(patch: pytest.MonkeyPatch) -> None:
    rules = tuple(rule for rule in choose.EXCLUSIONS if rule.__name__ != "hops")
    patch.setattr(choose, "EXCLUSIONS", rules)


def _hops_not_told(patch: pytest.MonkeyPatch) -> None:
    real = Attempts._permit

    def faulty(self: Attempts, *given) -> Permit:  # type: ignore[no-untyped-def]
        return replace(real(self, *given), hops=self._options.hops)

    patch.setattr(Attempts, "_permit", faulty)


def _peers_set_ignored(patch: pytest.MonkeyPatch) -> None:
    real = Compiled.wall
    patch.setattr(Compiled, "wall", lambda self, names, origin, left=None: real(self, names, origin))


def _permit_without_the_peers_set(patch: pytest.MonkeyPatch) -> None:
    real = Attempts._permit

    def faulty(self: Attempts, snapshot: Snapshot, candidate: Candidate, wall: Wall) -> Permit:
        decision = self._decision
        tables = tables_module.compiled(snapshot.config)
        return replace(
            real(self, snapshot, candidate, wall),
            allowed=tables.wall(decision.privacy, decision.origin).allowed,
        )

    patch.setattr(Attempts, "_permit", faulty)


def _peers_set_replaces_the_classes(patch: pytest.MonkeyPatch) -> None:
    real = Wall.__init__

    def faulty(self, classes, origin, left, *given):  # type: ignore[no-untyped-def]
        real(self, classes, origin, left, *given)
        self.allowed = self.allowed if left is None else left

    patch.setattr(Wall, "__init__", faulty)


def _walls_shared_by_peers(patch: pytest.MonkeyPatch) -> None:
    kept: dict[object, Wall] = {}
    real = Compiled.wall

    def faulty(
        self: Compiled, names: tuple[str, ...], origin: Origin, left: AllowedSet | None = None
    ) -> Wall:
        return kept.setdefault((id(self), names, origin), real(self, names, origin, left))

    patch.setattr(Compiled, "wall", faulty)


def _devices_share_their_sites_answer(patch: pytest.MonkeyPatch) -> None:
    real = Wall.of

    def faulty(self: Wall, place: Place) -> tuple[str, ...]:
        if place.device is not None and place.device in self.devices:
            key = (place.tier, place.region, place.site, None)
            return self._of.setdefault(key, real(self, place))
        return real(self, place)

    patch.setattr(Wall, "of", faulty)


def _group_not_asked(patch: pytest.MonkeyPatch) -> None:
    def faulty(snapshot: Snapshot, key: VariantKey, wall: Wall) -> groups.Reach:
        return groups.Reach((), "")

    patch.setattr(groups, "reach_group", faulty)
    patch.setattr(attempts, "reach_group", faulty)


def _any_device_of_an_open_group(patch: pytest.MonkeyPatch) -> None:
    """Picked because the group as a whole is let through."""

    def faulty(
        snapshot: Snapshot, key: VariantKey, wall: Wall, tried: Collection[str], rng: Rng
    ) -> Device | None:
        ready = snapshot.groups[key.endpoint].ready.get((key.model, key.version), {})
        names = [name for where in ready.values() for name in where if name not in tried]
        return snapshot.groups[key.endpoint].devices[names[0]] if names else None

    patch.setattr(attempts, "pick", faulty)


def _devices_as_they_were_decided_on(patch: pytest.MonkeyPatch) -> None:
    """A retry picks among the devices of the first snapshot."""
    begin, real = Attempts.__init__, Attempts._with_device

    def began(self, snapshot, *given):  # type: ignore[no-untyped-def]
        begin(self, snapshot, *given)
        remembered[id(self)] = snapshot.groups

    def faulty(self: Attempts, snapshot: Snapshot, wall: Wall, candidate: Candidate) -> Candidate | None:
        return real(self, replace(snapshot, groups=remembered[id(self)]), wall, candidate)

    remembered: dict[int, object] = {}
    patch.setattr(Attempts, "__init__", began)
    patch.setattr(Attempts, "_with_device", faulty)


def _drained_devices_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(groups, "_can", lambda device, key: True)


def _any_version_of_a_group(patch: pytest.MonkeyPatch) -> None:
    """A device is picked for the model, whatever version the caller asked for."""
    real = groups.pick

    def faulty(
        snapshot: Snapshot, key: VariantKey, wall: Wall, tried: Collection[str], rng: Rng
    ) -> Device | None:
        return real(snapshot, key._replace(version=""), wall, tried, rng)

    patch.setattr(attempts, "pick", faulty)


def _lacking_version_not_seen(patch: pytest.MonkeyPatch) -> None:
    real = groups.reach
    patch.setattr(choose, "reach", lambda snapshot, target, wall, version: real(snapshot, target, wall))


def _device_tried_twice(patch: pytest.MonkeyPatch) -> None:
    real = groups.pick
    patch.setattr(
        attempts, "pick", lambda snapshot, key, wall, tried, rng: real(snapshot, key, wall, (), rng)
    )


def _retry_does_not_ask_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attempts, "_open", lambda *given: True)


def _place_not_asked_again(patch: pytest.MonkeyPatch) -> None:
    """A retry that trusts the place as it was decided, under the classes of now."""
    real = attempts._open

    def faulty(  # type: ignore[no-untyped-def]
        tables: Compiled, snapshot: Snapshot, wall: Wall, decision: Decision, candidate: Candidate
    ) -> bool:
        if candidate.variant.endpoint in tables.places:
            return not wall.of(candidate.place)
        return real(tables, snapshot, wall, decision, candidate)

    patch.setattr(attempts, "_open", faulty)


def _reload_widens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Attempts, "_left", lambda self, snapshot: self._decision.allowed)


def _class_of_now_ignored(patch: pytest.MonkeyPatch) -> None:
    def faulty(tables: Compiled, decision: Decision, left: AllowedSet | None) -> Wall:
        return tables.wall(decision.privacy, decision.origin, left)

    patch.setattr(attempts, "wall_of", faulty)


def _empty_part_is_left_out_of_the_text(patch: pytest.MonkeyPatch) -> None:
    """What no place can meet becomes, as text, what asks for less."""
    patch.setattr(allowed_module, "_possible", allowed_module._asks)


def _everything_blocked_without_a_site(patch: pytest.MonkeyPatch) -> None:
    real = privacy._matches
    patch.setattr(
        privacy,
        "_matches",
        lambda rule, place, origin: place.site is not None and real(rule, place, origin),
    )


PLANTS = [
    plant for name, plant in list(globals().items()) if name.startswith("_") and not name.startswith("__")
]


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_seeds(SEEDS)


def test_without_a_fault_nothing_is_found() -> None:
    check_seeds(200)


def check_seeds(count: int) -> None:
    seen = Seen()
    for seed in range(count):
        check(random.Random(seed), seen)
