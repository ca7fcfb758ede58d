"""The algebra of allowed places, and their text, which comes from outside."""

from __future__ import annotations

import itertools
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgewire.allowed import COMPARED, MAX_TEXT, AllowedRule, AllowedSet, decode, of_rules
from edgewire.places import Place, Tier

NAMES = ["a", "b", "plant-7", "eu.1"]
PLACES = [
    Place(tier, region, site, device)
    for tier, region, site, device in itertools.product(Tier, [None, *NAMES], [None, *NAMES], [None, *NAMES])
]

names = st.none() | st.frozensets(st.sampled_from(NAMES), max_size=3)
tiers = st.none() | st.frozensets(st.sampled_from(list(Tier)), max_size=3)
rules = st.builds(AllowedRule, tiers, names, names, names)
sets = st.builds(lambda some: AllowedSet(tuple(some)), st.lists(rules, max_size=5))
some_places = st.lists(st.sampled_from(PLACES), min_size=1, max_size=40)


@given(sets)
@example(AllowedSet((AllowedRule(frozenset({Tier.CLOUD}), sites=frozenset()),)))
@example(AllowedSet((AllowedRule(), AllowedRule(frozenset({Tier.CLOUD})))))
def test_a_text_says_what_the_set_says(one: AllowedSet) -> None:
    back = decode(one.encode())
    assert back == of_rules(one.rules)
    assert decode(back.encode()) == back
    assert all(back.allows(place) == one.allows(place) for place in PLACES[:: len(PLACES) // 60])


@given(sets, some_places)
def test_leaving_out_what_is_covered_changes_nothing(one: AllowedSet, places: list[Place]) -> None:
    assert [of_rules(one.rules).allows(p) for p in places] == [one.allows(p) for p in places]


@given(sets, sets, some_places)
@example(AllowedSet((AllowedRule(),)), AllowedSet((AllowedRule(frozenset({Tier.CLOUD})),)), PLACES)
def test_narrowed_is_what_both_allow(one: AllowedSet, other: AllowedSet, places: list[Place]) -> None:
    both = one.narrowed(other)
    for place in places:
        assert both.allows(place) == (one.allows(place) and other.allows(place))
        assert other.narrowed(one).allows(place) == both.allows(place)
        assert both.narrowed(one).allows(place) == both.allows(place)
    assert both.devices <= one.devices | other.devices


@given(sets, st.sampled_from(PLACES), st.text(string.ascii_lowercase, min_size=1, max_size=3))
def test_devices_that_no_rule_names_are_alike(one: AllowedSet, place: Place, other: str) -> None:
    named = {*one.devices, *(() if place.device is None else (place.device,))}
    if place.device in one.devices or other in named:
        return
    assert one.allows(place) == one.allows(Place(place.tier, place.region, place.site, other))


@given(st.text(st.sampled_from("tiersgondvc=+;,abN1 .-\u00e9\n"), max_size=60))
def test_a_text_is_read_back_or_refused(text: str) -> None:
    try:
        found = decode(text)
    except ValueError:
        return
    assert decode(found.encode()) == found
    assert found.rules or text == "none"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a rule is"),
        (",", "a rule is"),
        ("tier=site,", "a rule is"),
        ("none,tier=site", "a rule is"),
        ("None", "a rule is"),
        ("tier", "a rule is"),
        ("tiers=site", "a rule is"),
        ("tier=site;tier=cloud", "each once"),
        ("tier=site;", "a rule is"),
        ("tier=", "needs names"),
        ("tier=site+", "needs names"),
        ("site=a b", "needs names"),
        ("site=a=b", "needs names"),
        (" site=a", "a rule is"),
        ("site=a\n", "needs names"),
        ("site=\u0430", "needs names"),
        ("site=" + "a" * 129, "needs names"),
        ("tier=moon", "the tiers are device, site, regional, cloud"),
        ("tier=Site", "the tiers are"),
        ("site=" + "+".join(["abc"] * 1200), f"longer than {MAX_TEXT}"),
    ],
)
def test_malformed_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(text)


@pytest.mark.parametrize("name", ["a+b", "a,tier=cloud", "a;region=eu", "", " ", "a" * 129])
def test_what_is_no_name_is_in_no_text(name: str) -> None:
    one = AllowedSet((AllowedRule(devices=frozenset({name})),))
    with pytest.raises(ValueError, match="is no name"):
        one.encode()


def test_a_set_that_is_too_long_for_a_header_is_refused() -> None:
    one = of_rules(AllowedRule(sites=frozenset({f"site-{i}"})) for i in range(400))
    with pytest.raises(ValueError, match="more than 4096"):
        one.encode()


def test_a_set_of_many_rules_is_kept_as_it_is() -> None:
    """A peer may send hundreds; comparing each with each would hold up the loop."""
    many = [AllowedRule(sites=frozenset({f"s{i}"})) for i in range(COMPARED + 1)]
    wide = AllowedRule(frozenset(Tier))
    assert of_rules([*many[:COMPARED], wide, wide]).rules == (*many[:COMPARED], wide)
    assert of_rules([*many[: COMPARED - 1], wide]).rules == (*many[: COMPARED - 1], wide)
    covered = [*many[: COMPARED - 2], AllowedRule(frozenset({Tier.SITE})), wide]
    assert of_rules(covered).rules == (*many[: COMPARED - 2], wide)
    text = of_rules(many).encode()
    assert decode(text).encode() == text
