"""Nothing of a request goes to a gateway or a place of training that its sets forbid, whatever is asked for, in
whatever order, and whichever hub it is delivered to. An oracle that reads the sets by itself says what may;
builds of the device's part with a leak planted are caught by the same check."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

import edge_agent.analytics.gathering
import edge_agent.analytics.wall
from edge_agent.ports import Served
from edgewire.places import Place, Tier
from edgewire.signals import CONFIDENCE
from edgewire.v1 import edge_pb2
from edgewire.wire_places import to_wire

TIERS = ("device", "site", "regional", "cloud")
PLACES = [
    Place(Tier.SITE, site="plant-7"),
    Place(Tier.SITE, site="plant-9"),
    Place(Tier.REGIONAL, region="eu-west-1"),
    Place(Tier.CLOUD, region="eu-west-1"),
    Place(Tier.CLOUD, region="us-east-1"),
    Place(Tier.DEVICE, site="plant-7", device="cam-7a"),
    Place(Tier.CLOUD),
]


def allows(text: str | None, place: Place | None) -> bool:
    """The oracle: one of the rules asks for something, and the place has what each part of it asks for."""
    if place is None:
        return False
    if text is None:
        return True
    if not text or ";;" in text:
        return False
    has = {"tier": place.tier.value, "region": place.region, "site": place.site, "device": place.device}
    for rule in text.split(","):
        parts = [part.split("=") for part in rule.split(";") if "=" in part]
        if parts and all(has[key] in values.split("+") for key, values in parts):
            return True
    return False


def any_set(random: Random) -> str:
    """Up to three rules, wide ones as a rule; at times nothing, or what is no set."""
    if random.random() < 0.1:
        return random.choice(["none", "", "tier=device;;", "everything"])
    rules: list[str] = []
    for _ in range(random.randint(1, 3)):
        tiers = "tier=" + "+".join(sorted(random.sample(TIERS, random.randint(1, 4))))
        other = random.choice(["region=eu-west-1", "site=plant-7", "site=plant-7+plant-9"])
        rules.append(random.choice([tiers, tiers, other, f"{tiers};{other}"]))
    return ",".join(rules)


class Gather(NamedTuple):
    own: str
    counted: bool
    training: Place | None


Event = tuple[str, Any, Any]


def any_events(random: Random) -> list[Event]:
    """A hub's words, requests of its and of the device's own callers, and reports."""
    events: list[Event] = []
    for _ in range(random.randint(0, 12)):
        kind = random.choice(["desire", "request", "request", "request", "report"])
        if kind == "desire":
            training = random.choice([None, *PLACES])
            order = (
                None if random.random() < 0.1 else Gather(any_set(random), random.random() < 0.7, training)
            )
            events.append((kind, order, random.choice([None, *PLACES])))
        elif kind == "request":
            asked = None if random.random() < 0.3 else any_set(random)
            events.append((kind, asked, random.uniform(0.5, 1)))
        else:
            events.append((kind, None, None))
    return events


DIGITS = Served("digits", "2", "sha256:aa")


def desired(gather: Any) -> edge_pb2.Desired:
    model = edge_pb2.DesiredModel(model="digits", version="2", digest="sha256:aa")
    if gather is not None:
        model.gather.allowed = gather.own
        if gather.counted:
            model.gather.signals.add(name=CONFIDENCE, edges=[0.5, 0.75])
        if gather.training is not None:
            model.gather.samples.training.CopyFrom(to_wire(gather.training))
            model.gather.samples.max_per_day = 10_000
            model.gather.samples.confidence_below = 0.9
    return edge_pb2.Desired(models=[model])


def check(wall: Any, gathering: Any, events: Sequence[Event]) -> None:
    """Run the events, deliver every record to each of the places, and ask the oracle."""
    machine = gathering.Gathering(0.0, {})
    gather, there = None, None
    counted, asked_of = 0, {}
    spool: list[tuple[Any, int, Place | None]] = []
    """What was written, with how many values it may hold at most, and for which gateway they were counted."""

    def written(found: Sequence[Any]) -> None:
        nonlocal counted
        for one in found:
            spool.append((one, counted, there))
        counted = 0

    for number, (kind, what, how) in enumerate(events):
        now = float(number)
        if kind == "desire":
            written(machine.desire(desired(what), how, now))
            gather, there = what, how
        elif kind == "report":
            written(machine.report(now))
        else:
            may = gather is not None and allows(what, there) and allows(gather.own, there)
            wanted = machine.wanted(DIGITS, what)
            assert not wanted or may, "values are taken of what may not be counted"
            message = str(number).encode()
            sample = machine.answered(DIGITS, 0.01, message, what, {CONFIDENCE: np.array([how])}, now)
            counted += may and gather.counted
            asked_of[message] = (what, gather)
            if sample is not None:
                spool.append((sample, 0, there))
    written(machine.report(99.0))
    total = 0
    for one, most, counted_for in spool:
        if one.record.HasField("window"):
            total += one.record.window.answered
        for place in (*PLACES, None):
            told = wall.deliverable(one.record, one.place, place)
            if told.HasField("window"):
                values = sum(sum(signal.counts) for signal in told.window.signals)
                assert values == (most if place == counted_for and place is not None else 0)
                assert told.window.answered == one.record.window.answered
            elif told.HasField("sample"):
                asked, order = asked_of[told.sample.request]
                for data_goes_to in (place, order.training):
                    assert allows(asked, data_goes_to)
                    assert allows(order.own, data_goes_to)
                for anywhere in PLACES:
                    assert allows(told.sample.allowed, anywhere) == (
                        allows(asked, anywhere) and allows(order.own, anywhere)
                    )
            else:
                assert told.gap.first == told.number
    assert total == sum(kind == "request" for kind, _, _ in events), "plain counts are of every request"


def look(wall: Any, gathering: Any, worlds: int) -> None:
    random = Random(1)
    for _ in range(worlds):
        check(wall, gathering, any_events(random))


def test_only_what_the_sets_allow_leaves_the_device():
    look(edge_agent.analytics.wall, edge_agent.analytics.gathering, 1500)


WALL, GATHERING = "wall", "gathering"
LEAKS = {
    "the request's own set is forgotten": (
        WALL,
        "self._own if asked is None else self._own.narrowed(_read(asked))",
        "self._own",
    ),
    "the model's set is forgotten": (
        WALL,
        "self._own.narrowed(_read(asked))",
        "_read(asked)",
    ),
    "the gateway's place is not asked for": (WALL, "or not both.allows(self._there)", ""),
    "the place of training is not asked for": (WALL, "or not both.allows(self._training)", ""),
    "a set that cannot be read allows": (
        WALL,
        "        return AllowedSet(())",
        "        return allowed.decode('tier=device+site+regional+cloud')",
    ),
    "a sample goes with the model's set": (WALL, "both.encode()", "self._own.encode()"),
    "values go to whichever hub there is": (
        WALL,
        "there is None or counted_for != written_place(there)",
        "False",
    ),
    "samples go to whichever hub there is": (
        WALL,
        "there is None or not _read(record.sample.allowed).allows(there)",
        "False",
    ),
    "an older order stays": (GATHERING, "self._asked, self._there = asked, there", "self._asked = asked"),
    "what was counted for one gateway is reported as for the next": (
        GATHERING,
        "        written = self.report(now)\n",
        "        written = []\n",
    ),
    "values are counted without asking": (GATHERING, "order is None or not may.values", "order is None"),
    "samples are kept without asking": (GATHERING, "may.sample", "'tier=device+site+cloud'"),
}


def mutated(path: str, old: str, new: str, names: dict[str, Any]) -> ModuleType:
    text = Path(path).read_text()
    assert text.count(old) >= 1, f"there is no {old!r} any more: plant the leak anew"
    found = ModuleType(f"planted_{Path(path).stem}")
    sys.modules[found.__name__] = found
    exec(compile(text.replace(old, new), path, "exec"), found.__dict__)
    found.__dict__.update(names)
    return found


@contextmanager
def planted(where: str, old: str, new: str) -> Iterator[tuple[Any, Any]]:
    wall, gathering = edge_agent.analytics.wall, edge_agent.analytics.gathering
    before = set(sys.modules)
    try:
        if where == WALL:
            wall = mutated(str(wall.__file__), old, new, {})
            used = {name: getattr(wall, name) for name in ("NOTHING", "Wall", "written_place")}
            gathering = mutated(str(gathering.__file__), "", "", used)
        else:
            gathering = mutated(str(gathering.__file__), old, new, {})
        yield wall, gathering
    finally:
        for name in set(sys.modules) - before:
            del sys.modules[name]


@pytest.mark.parametrize("leak", LEAKS)
def test_a_planted_leak_is_caught(leak: str):
    with planted(*LEAKS[leak]) as (wall, gathering), pytest.raises(AssertionError):
        look(wall, gathering, 5000)
