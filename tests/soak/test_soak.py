"""The long runs, cut short, with TIDEGATE_SOAK=1; `make soak` has them in full. How they judge, always."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

import pytest

from tests.soak.run import crosstalk, flat
from tests.soak.stage import Stage, stage
from tests.soak.watch import Sample, drawing, judge

SECONDS = 10.0
REQUESTS = 2_000
LONG = pytest.mark.skipif("TIDEGATE_SOAK" not in os.environ, reason="set TIDEGATE_SOAK")


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("soak")) as found:
        yield found


@LONG
async def test_no_answer_belongs_to_another_request(on: Stage):
    report = await crosstalk(on, 32, SECONDS)
    assert report.tally.faults == []
    assert (report.left_in_flight, report.failed_inside) == (0, 0)
    assert report.tally.left > report.tally.asked / 10
    assert report.tally.right > report.tally.asked / 4
    assert set(report.tally.by_way) == {"grpc", "json", "binary", "stream", "events"}


@LONG
async def test_nothing_stays_of_requests_that_ended_or_were_left(on: Stage):
    report = await flat(on, 32, REQUESTS, 0.25)
    assert report.tally.faults == []
    assert (report.left_in_flight, report.failed_inside) == (0, 0)
    # Memory is judged by the long run alone: in this one pools, caches and rings still fill.
    grown = [one for one in report.verdicts if not one.flat and one.figure != "rss_mb"]
    assert grown == []
    assert {one.process for one in report.verdicts} == {"data_plane", "control", "hub", "pool", "agent"}
    ElementTree.fromstring(drawing(report.samples))


def sampled(rss_per_request: float, figure: str = "rss_mb", at: float = 200.0) -> list[Sample]:
    return [
        Sample(number, number * 1000, {"hub": {figure: at + rss_per_request * number * 1000}})
        for number in range(101)
    ]


@pytest.mark.parametrize(
    ("figure", "at", "per_request", "flat"),
    [
        ("rss_mb", 200.0, 0.0, True),
        ("rss_mb", 200.0, -1e-3, True),
        ("rss_mb", 200.0, 100 / 2**20, True),
        ("rss_mb", 200.0, 300 / 2**20, False),
        ("rss_mb", 30.0, 50 / 2**20, True),
        ("fds", 100.0, 1e-3, False),
        ("fds", 100.0, 1e-4, True),
        ("inflight", 0.0, 1 / 3, False),
    ],
)
def test_a_figure_that_grows_with_the_requests_is_told(
    figure: str, at: float, per_request: float, flat: bool
):
    (verdict,) = judge(sampled(per_request, figure, at))
    assert verdict.flat is flat, verdict


def test_too_short_a_run_is_not_judged():
    with pytest.raises(ValueError, match="too few samples"):
        judge(sampled(0.0)[:3])
