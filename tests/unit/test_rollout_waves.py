"""How many devices a wave has, and which."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.config import RolloutConfig
from gateway.rollout.waves import order_of, size_of


@pytest.mark.parametrize(
    ("wave", "able", "size"),
    [
        ("1%", 7, 1),
        ("10%", 7, 1),
        ("100%", 7, 7),
        ("1%", 100, 1),
        ("1%", 101, 2),
        ("1%", 10_000, 100),
        ("10%", 10, 1),
        ("10%", 11, 2),
        ("50%", 5, 3),
        ("0.1%", 10_000, 10),
        (".5%", 1000, 5),
        ("33.3%", 1000, 333),
        ("33.4%", 1000, 334),
        ("7%", 100, 7),
        ("29%", 100, 29),
        ("1", 1, 1),
        ("5", 3, 3),
        ("5", 0, 0),
        ("100%", 0, 0),
        ("1%", 0, 0),
    ],
)
def test_sizes(wave: str, able: int, size: int):
    """7 % of 100 is 7: binary fractions would make 8 of it."""
    assert size_of(wave, able) == size


PERCENT = st.integers(1, 1000).map(lambda tenths: f"{tenths / 10:g}%")


@given(wave=PERCENT, able=st.integers(1, 20_000))
def test_share_is_rounded_up_to_at_least_one_and_never_more_than_there_are(wave: str, able: int):
    exact = Fraction(wave[:-1]) * able / 100
    size = size_of(wave, able)
    assert 1 <= size <= able
    assert size == max(1, math.ceil(exact))


@given(
    first=st.integers(1, 999),
    second=st.integers(1, 999),
    able=st.integers(0, 5000),
    more=st.integers(0, 50),
)
def test_sizes_grow_with_the_share_and_with_the_fleet(first: int, second: int, able: int, more: int):
    low, high = sorted((first, second))
    assert size_of(f"{low / 10:g}%", able) <= size_of(f"{high / 10:g}%", able)
    assert size_of(f"{low / 10:g}%", able) <= size_of(f"{low / 10:g}%", able + more)


@given(
    sites=st.dictionaries(st.text(min_size=1, max_size=6), st.sampled_from("abcd"), max_size=60),
    rollout=st.text(max_size=8),
)
def test_order_holds_each_device_once_and_does_not_depend_on_how_it_is_told(
    sites: dict[str, str], rollout: str
):
    order = order_of(rollout, sites)
    assert sorted(order) == sorted(sites)
    assert order == order_of(rollout, dict(reversed(sites.items())))


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=6), taken=st.integers(1, 40))
def test_first_devices_are_spread_over_the_sites(counts: list[int], taken: int):
    """No site has a device more than another that still has one to give."""
    sites = {f"{site}-{n}": str(site) for site, count in enumerate(counts) for n in range(count)}
    first = Counter(sites[device] for device in order_of("ro", sites)[:taken])
    for site, count in enumerate(counts):
        if first[str(site)] < count:
            assert first[str(site)] >= max(first.values()) - 1


def test_another_rollout_begins_with_other_devices():
    sites = {f"cam-{n}": "plant" for n in range(200)}
    firsts = {order_of(f"ro-{n}", sites)[0] for n in range(40)}
    assert len(firsts) > 20


def test_defaults_are_those_of_the_contract():
    assert RolloutConfig().waves == ("1", "10%", "50%", "100%")
