"""Which hub is dialled, and how long is waited before."""

from __future__ import annotations

from random import Random

import pytest

from edge_agent.link.dialing import STEADY_S, Dialing, Setback


class Most(Random):
    """Draws the upper end of every range."""

    def uniform(self, a: float, b: float) -> float:
        return b


def test_waits_double_up_to_the_cap():
    dialing = Dialing(["a:1"], Most())
    waits = [dialing.failed(Setback.UNREACHABLE) for _ in range(8)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0, 20.0]


def test_hubs_take_turns_and_only_whole_rounds_count():
    dialing = Dialing(["a:1", "b:2"], Most())
    tried, waits = [], []
    for _ in range(5):
        tried.append(dialing.hub)
        waits.append(dialing.failed(Setback.UNREACHABLE))
    assert tried == ["a:1", "b:2", "a:1", "b:2", "a:1"]
    assert waits == [1.0, 1.0, 2.0, 2.0, 4.0]


def test_after_a_steady_stream_the_same_hub_comes_first_and_the_count_begins_anew():
    dialing = Dialing(["a:1", "b:2"], Most())
    dialing.failed(Setback.UNREACHABLE)
    assert dialing.lost(STEADY_S) == 1.0
    assert dialing.hub == "b:2"
    assert dialing.failed(Setback.UNREACHABLE) == 1.0


def test_a_hub_that_drops_streams_at_once_is_not_hammered():
    dialing = Dialing(["a:1"], Most())
    assert [dialing.lost(0.1) for _ in range(6)][-1] == 20.0


def test_refusals_are_slower_and_a_hubs_wish_is_a_lower_bound():
    dialing = Dialing(["a:1"], Random(7))
    assert Dialing(["a:1"], Most()).failed(Setback.UNKNOWN) == 5.0
    assert Dialing(["a:1"], Most()).failed(Setback.REVOKED) == 60.0
    assert dialing.failed(Setback.UNREACHABLE, hint_s=20.0) >= 20.0


def test_a_thousand_devices_spread():
    """Full jitter: the first wait of devices that lost their hub together is even over a second."""
    waits = sorted(Dialing(["a:1"], Random(seed)).failed(Setback.UNREACHABLE) for seed in range(1000))
    tenths = [sum(1 for wait in waits if tenth <= wait * 10 < tenth + 1) for tenth in range(10)]
    assert min(tenths) > 60
    assert max(tenths) < 150


def test_it_needs_a_hub():
    with pytest.raises(ValueError, match="no hub"):
        Dialing([], Random())
