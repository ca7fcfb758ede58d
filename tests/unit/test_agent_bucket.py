"""A token bucket, by hand."""

from __future__ import annotations

import pytest

from edge_agent.bucket import Bucket


def test_it_fills_up_to_its_most_and_says_how_long_a_debt_takes():
    bucket = Bucket(rate_per_s=2, most=10, tokens=4, now=100)
    assert bucket.tokens(100) == 4
    assert bucket.tokens(101) == 6
    assert bucket.tokens(1000) == 10
    bucket.take(13, 1000)
    assert bucket.wait_s(1000) == pytest.approx(1.5)
    assert bucket.wait_s(1001) == pytest.approx(0.5)
    assert bucket.wait_s(1002) == 0
    assert bucket.tokens(1002) == pytest.approx(1)


def test_a_clock_that_stands_still_or_goes_back_gives_nothing():
    bucket = Bucket(rate_per_s=1, most=5, tokens=5, now=50)
    bucket.take(5, 50)
    assert bucket.tokens(40) == 0
    assert bucket.tokens(50) == 0
    assert bucket.tokens(51) == 1


def test_what_is_remembered_of_another_run_is_taken_within_bounds():
    assert Bucket(1, 5, 99, 0).tokens(0) == 5
    assert Bucket(1, 5, -3, 0).tokens(0) == 0


def test_no_more_is_taken_in_a_time_than_what_comes_in_and_was_there():
    bucket = Bucket(rate_per_s=256, most=500, tokens=500, now=0)
    now, sent = 0.0, 0
    while (now := now + 0.001 + bucket.wait_s(now + 0.001)) < 60:
        bucket.take(300, now)
        sent += 300
    assert 59 * 256 <= sent <= 60 * 256 + 500 + 300
