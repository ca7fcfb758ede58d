"""No place that a class forbids is ever decided for, retried at, fallen back to or reached through
another gateway.

Each seed makes one configuration and one request of its own, with the gateways and devices that it
comes to; a failure names its seed, and `check(random.Random(seed), Seen())` plays it again.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.property.decide_check import Seen, check
from tests.property.decide_worlds import random_config, validated

CHUNKS = 20
PER_CHUNK = 5_000


def test_the_issue_asks_for_a_hundred_thousand() -> None:
    assert CHUNKS * PER_CHUNK >= 100_000


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_forbidden_place(chunk: int) -> None:
    seen = Seen()
    for seed in range(chunk * PER_CHUNK, (chunk + 1) * PER_CHUNK):
        try:
            check(random.Random(seed), seen)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert seen.plans > PER_CHUNK / 4, "hardly any request is ever answered: the worlds prove nothing"
    assert seen.to_devices > PER_CHUNK / 25
    assert seen.second_devices > PER_CHUNK / 250
    assert seen.passed_on > PER_CHUNK / 20
    assert seen.third_gateways > PER_CHUNK / 250
    assert seen.from_the_third > PER_CHUNK / 1000


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_no_forbidden_place_shrinking(rng: random.Random) -> None:
    check(rng, Seen())


def test_the_worlds_are_valid_configurations() -> None:
    for seed in range(300):
        config = random_config(random.Random(seed))
        assert validated(config) == config
