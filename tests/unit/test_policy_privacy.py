from __future__ import annotations

import pytest

from gateway.core.place import Origin, Place, PlaceRule, PrivacyClass, Tier
from gateway.core.request import Caller, Options
from gateway.policy.privacy import allowed, allowed_set, origin_of, refusing

HERE = Origin("s1", "d1")
SITE = Place(Tier.SITE, "r1", "s1")
CLOUD = Place(Tier.CLOUD, "r1")


def cls(*rules: PlaceRule, name: str = "c") -> PrivacyClass:
    return PrivacyClass(name, rules)


@pytest.mark.parametrize(
    ("rule", "place", "origin", "expected"),
    [
        (PlaceRule(tiers=frozenset({Tier.SITE})), SITE, HERE, True),
        (PlaceRule(tiers=frozenset({Tier.SITE})), CLOUD, HERE, False),
        (PlaceRule(regions=frozenset({"r1"})), CLOUD, HERE, True),
        (PlaceRule(regions=frozenset({"r1"})), Place(Tier.CLOUD), HERE, False),
        (PlaceRule(sites=frozenset({"s2"})), SITE, HERE, False),
        (PlaceRule(same=frozenset({"site"})), SITE, HERE, True),
        (PlaceRule(same=frozenset({"site"})), SITE, Origin("s2"), False),
        (PlaceRule(same=frozenset({"site"})), SITE, Origin(), False),
        (PlaceRule(same=frozenset({"site"})), CLOUD, Origin(), False),
        (PlaceRule(same=frozenset({"device"})), Place(Tier.DEVICE, None, "s1", "d1"), HERE, True),
        (PlaceRule(same=frozenset({"device"})), Place(Tier.DEVICE, None, "s1", "d2"), HERE, False),
        (PlaceRule(same=frozenset({"device"})), Place(Tier.DEVICE), Origin(), False),
        (PlaceRule(same=frozenset({"device"})), Place(Tier.DEVICE, None, "s2", "d1"), HERE, False),
        (PlaceRule(same=frozenset({"device"})), Place(Tier.DEVICE, None, None, "d1"), HERE, False),
        (
            PlaceRule(same=frozenset({"device"})),
            Place(Tier.DEVICE, None, "s2", "d1"),
            Origin(None, "d1"),
            True,
        ),
        (PlaceRule(same=frozenset({"site", "device"})), Place(Tier.DEVICE, None, "s2", "d1"), HERE, False),
        (PlaceRule(), SITE, HERE, False),
    ],
)
def test_one_rule(rule: PlaceRule, place: Place, origin: Origin, expected: bool) -> None:
    assert allowed([cls(rule)], place, origin) is expected
    assert allowed_set([cls(rule)], origin).allows(place) is expected


def test_classes_intersect_and_rules_unite() -> None:
    site, cloud = PlaceRule(tiers=frozenset({Tier.SITE})), PlaceRule(tiers=frozenset({Tier.CLOUD}))
    both, one = cls(site, cloud, name="both"), cls(site, name="one")
    assert allowed([both], CLOUD, HERE)
    assert not allowed([both, one], CLOUD, HERE)
    assert refusing([both, one], CLOUD, HERE) == ("one",)
    assert allowed([both, one], SITE, HERE)


def test_nothing_is_no_permission() -> None:
    assert not allowed([], SITE, HERE)
    assert not allowed([cls()], SITE, HERE)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Options(), Origin("s1", "d1")),
        (Options(site="s1", device="d1"), Origin("s1", "d1")),
        (Options(device="d2"), Origin("s1", None)),
        (Options(site="s2"), Origin(None, None)),
        (Options(site="s2", device="d1"), Origin(None, None)),
    ],
)
def test_the_caller_can_deny_the_origin_but_not_set_it(options: Options, expected: Origin) -> None:
    assert origin_of(Place(Tier.DEVICE, None, "s1", "d1"), options) == expected


def test_a_site_that_the_gateway_does_not_know_is_no_origin() -> None:
    assert origin_of(Place(Tier.DEVICE, None, None, "d1"), Options(site="s2")) == Origin(None, "d1")


GATEWAY = Place(Tier.DEVICE, None, "s1", "d1")
OF_S2 = Caller(peer="gw-2", origin=Origin("s2"))
CAMERA = Caller(device="cam", origin=Origin("s1", "cam"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Options(caller=OF_S2), Origin("s2")),
        (Options(caller=OF_S2, site="s2"), Origin("s2")),
        (Options(caller=OF_S2, site="s1"), Origin()),
        (Options(caller=OF_S2, device="d1"), Origin("s2")),
        (Options(caller=Caller(peer="gw-3")), Origin()),
        (Options(caller=Caller(peer="gw-3"), site="s1", device="d1"), Origin()),
        (Options(caller=Caller(device="cam")), Origin()),
        (Options(caller=CAMERA), Origin("s1", "cam")),
        (Options(caller=CAMERA, device="cam"), Origin("s1", "cam")),
        (Options(caller=CAMERA, device="d1"), Origin("s1")),
        (Options(caller=CAMERA, site="s2"), Origin()),
        (Options(caller=Caller(device="cam", origin=Origin(None, "cam"))), Origin(None, "cam")),
    ],
)
def test_with_a_credential_the_gateways_own_place_never_counts(options: Options, expected: Origin) -> None:
    assert origin_of(GATEWAY, options) == expected
