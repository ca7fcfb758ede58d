"""The set of places that a request's data may go to, as it travels with the request.

A gateway works it out from the privacy classes that apply and the origin (`same` becomes the
origin's own site or device), and sends it along to whatever passes data on: another gateway, a
device. Whoever receives it may only narrow it. It names places, not classes, because the receiver's
classes may be others under the same names.

As text, in a header: rules separated by ",", parts of a rule by ";", values by "+", as in
`tier=device+site;site=plant-7,tier=cloud;region=eu-west-1`. The set that allows nothing is `none`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from edgewire.places import Place, Tier, is_name

MAX_TEXT = 4096
"""Longest text that is read; a header, not a document."""
NOTHING = "none"
COMPARED = 64
"""Up to so many rules are compared with each other for what they cover; the work grows by the square."""

_PARTS = ("tier", "region", "site", "device")
Names = frozenset[str] | None


class AllowedRule(NamedTuple):
    """Places of which every part that is given (not None) has one of the values given for it."""

    tiers: frozenset[Tier] | None = None
    regions: Names = None
    sites: Names = None
    devices: Names = None

    def allows(self, place: Place) -> bool:
        return (
            (self.tiers is None or place.tier in self.tiers)
            and (self.regions is None or place.region in self.regions)
            and (self.sites is None or place.site in self.sites)
            and (self.devices is None or place.device in self.devices)
        )

    def within(self, other: AllowedRule) -> bool:
        """Whether every place of this rule is one of the other's."""
        return all(
            theirs is None or (own is not None and own <= theirs)
            for own, theirs in zip(self, other, strict=True)
        )


@dataclass(frozen=True, slots=True)
class AllowedSet:
    """A place is allowed when one of the rules allows it. Without rules nothing is, and a rule that
    asks for nothing is not one: it is left out."""

    rules: tuple[AllowedRule, ...]

    def allows(self, place: Place) -> bool:
        return any(_asks(rule) and rule.allows(place) for rule in self.rules)

    def narrowed(self, other: AllowedSet) -> AllowedSet:
        """The places that both allow."""
        theirs = [rule for rule in other.rules if _possible(rule)]
        return of_rules(both for mine in self.rules if _possible(mine) for both in _both(mine, theirs))

    @property
    def devices(self) -> frozenset[str]:
        """Every device that some rule names; whether a place is allowed depends on its device only
        for these."""
        return frozenset(name for rule in self.rules for name in rule.devices or ())

    def encode(self) -> str:
        """Raises ValueError when the text would be longer than MAX_TEXT, or hold what is no name: read
        back it could stand for more."""
        text = ",".join(_text(rule) for rule in self.rules if _possible(rule)) or NOTHING
        if len(text) > MAX_TEXT:
            raise ValueError(f"the set of allowed places takes {len(text)} characters, more than {MAX_TEXT}")
        return text


def of_rules(rules: Iterable[AllowedRule]) -> AllowedSet:
    """A set without the rules that allow nothing, those given twice and, of not too many, those that
    another one covers."""
    possible = tuple(dict.fromkeys(rule for rule in rules if _possible(rule)))
    if len(possible) > COMPARED:
        return AllowedSet(possible)
    kept: list[AllowedRule] = []
    for rule in possible:
        if any(rule.within(other) for other in kept):
            continue
        kept = [other for other in kept if not other.within(rule)]
        kept.append(rule)
    return AllowedSet(tuple(kept))


def decode(text: str) -> AllowedSet:
    """Raises ValueError with what is wrong, and never reads more into a text than it says."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"longer than {MAX_TEXT} characters")
    if text == NOTHING:
        return AllowedSet(())
    return of_rules(_rule(part) for part in text.split(","))


def _asks(rule: AllowedRule) -> bool:
    return any(part is not None for part in rule)


def _possible(rule: AllowedRule) -> bool:
    """Whether some place could meet it: it asks for something, and for nothing that has no values."""
    return _asks(rule) and all(part is None or part for part in rule)


def _both(rule: AllowedRule, others: Iterable[AllowedRule]) -> Iterator[AllowedRule]:
    for other in others:
        tiers = other.tiers if rule.tiers is None else rule.tiers
        if rule.tiers is not None and other.tiers is not None:
            tiers = rule.tiers & other.tiers
        yield AllowedRule(
            tiers,
            _common(rule.regions, other.regions),
            _common(rule.sites, other.sites),
            _common(rule.devices, other.devices),
        )


def _common(mine: Names, theirs: Names) -> Names:
    if mine is None or theirs is None:
        return theirs if mine is None else mine
    return mine & theirs


def _text(rule: AllowedRule) -> str:
    for names in rule:
        if not all(is_name(name) for name in names or ()):
            raise ValueError("a site, region or device of the allowed places is no name")
    parts = [f"{part}={'+'.join(sorted(names))}" for part, names in zip(_PARTS, rule, strict=True) if names]
    return ";".join(parts)


def _rule(text: str) -> AllowedRule:
    given: dict[str, frozenset[str]] = {}
    for part in text.split(";"):
        key, equals, values = part.partition("=")
        names = values.split("+")
        if not equals or key not in _PARTS or key in given:
            raise ValueError("a rule is one or more of tier=, region=, site= and device=, each once")
        if not all(is_name(name) for name in names):
            raise ValueError(f"{key}= needs names separated by '+'")
        given[key] = frozenset(names)
    tiers = given.get("tier")
    if tiers is not None and not tiers <= {tier.value for tier in Tier}:
        raise ValueError("the tiers are " + ", ".join(tier.value for tier in Tier))
    return AllowedRule(
        None if tiers is None else frozenset(Tier(tier) for tier in tiers),
        given.get("region"),
        given.get("site"),
        given.get("device"),
    )
