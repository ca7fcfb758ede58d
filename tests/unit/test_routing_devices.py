from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.fleet import Device
from gateway.core.place import Place, Tier
from gateway.routing.devices import SAMPLED, best, sample, suitability
from tests.unit.decide_config import Fixed

NEWEST = 1000.0


def device(name: str = "a", **changes: Any) -> Device:
    known = Device(name, Place(Tier.DEVICE, None, "s1", name), True, heard_at=NEWEST)
    return replace(known, **changes)


@pytest.mark.parametrize(
    ("readings", "score"),
    [
        ({}, 1.0),
        ({"inflight": 1}, 0.5),
        ({"inflight": 3}, 0.25),
        ({"inflight": -5}, 1.0),
        ({"heard_at": NEWEST - 15}, 1.0),
        ({"heard_at": NEWEST - 37.5}, 0.55),
        ({"heard_at": NEWEST - 60}, 0.1),
        ({"heard_at": NEWEST - 6000}, 0.1),
        ({"battery_percent": 100}, 1.0),
        ({"battery_percent": 50}, 1.0),
        ({"battery_percent": 30}, 0.55),
        ({"battery_percent": 10}, 0.1),
        ({"battery_percent": 0}, 0.1),
        ({"battery_percent": float("nan")}, 1.0),
        ({"temperature_c": 20}, 1.0),
        ({"temperature_c": 70}, 1.0),
        ({"temperature_c": 80}, 0.55),
        ({"temperature_c": 95}, 0.1),
        ({"temperature_c": float("inf")}, 1.0),
        ({"throttled": True}, 0.5),
        ({"throttled": False}, 1.0),
        ({"inflight": 1, "battery_percent": 30, "throttled": True}, 0.1375),
    ],
)
def test_what_a_reading_is_worth(readings: dict[str, Any], score: float) -> None:
    assert suitability(device(**readings), NEWEST, 0) == pytest.approx(score)


def test_the_load_is_what_either_side_knows() -> None:
    assert suitability(device(inflight=1), NEWEST, 3) == 0.25
    assert suitability(device(inflight=3), NEWEST, 1) == 0.25


def test_the_best_is_taken_and_the_first_of_equals() -> None:
    hot, busy, good, as_good = (
        device("hot", temperature_c=90),
        device("busy", inflight=2),
        device("good"),
        device("as-good"),
    )
    assert best([hot, busy, good, as_good], {}) is good
    assert best([hot, busy, good, as_good], {"good": 1}) is as_good
    assert best([hot], {}) is hot, "nothing excludes"
    assert best([], {}) is None


def test_freshness_is_by_the_newest_of_those_drawn() -> None:
    old, older = device("old", heard_at=10.0), device("older", heard_at=-40.0)
    assert best([older, old], {}) is old
    assert best([older], {}) is older


def test_a_sample_is_without_repetition_and_without_what_was_tried() -> None:
    rng = random.Random(1)
    pools = [tuple(f"a{i}" for i in range(5)), (), tuple(f"b{i}" for i in range(500))]
    for tried in (set[str](), {"a0", "b7"}, {f"b{i}" for i in range(10)}):
        found = sample(pools, tried, rng)
        assert len(found) == len(set(found)) == SAMPLED
        assert not tried & set(found)
    everything = {name for pool in pools for name in pool}
    assert sample(pools, everything, rng) == []
    assert sample(pools, everything - {"b499"}, rng) == ["b499"]
    assert sorted(sample([("x", "y")], (), rng)) == ["x", "y"]
    assert sample([], (), rng) == []


@pytest.mark.parametrize("value", [0.0, 0.5, 1 - 2**-53])
def test_a_sample_ends_whatever_is_drawn(value: float) -> None:
    names = tuple(map(str, range(20)))
    found = sample([names], ("0", "19"), Fixed(value))
    assert len(set(found)) == SAMPLED


def test_nobody_is_drawn_twice() -> None:
    names = [tuple(map(str, range(7))), tuple(map(str, range(7, 12)))]
    for seed in range(300):
        assert len(set(sample(names, (), random.Random(seed)))) == SAMPLED


def test_every_device_gets_its_turn() -> None:
    rng, counts = random.Random(2), dict.fromkeys(map(str, range(20)), 0)
    for _ in range(4000):
        counts[sample([tuple(counts)[:3], tuple(counts)[3:]], (), rng)[0]] += 1
    assert all(140 < count < 260 for count in counts.values()), counts


def test_the_draw_costs_the_same_in_a_large_group() -> None:
    class Counting(random.Random):
        calls = 0

        def random(self) -> float:
            Counting.calls += 1
            return super().random()

    sample([tuple(map(str, range(100_000)))], {"5"}, Counting(3))
    assert Counting.calls <= SAMPLED + 1
