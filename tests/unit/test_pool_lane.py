"""The shell around the batcher: what shares a run, what is left out, and how a failure is told."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
import pytest

from gateway.core.config import Batching
from gateway.pool.lane import Lane
from oip.errors import OipError
from oip.infer import InferWork
from oip.reasons import Reason
from oip.signature import Signature, TensorSpec
from tests.support.waiting import until

SPEC = Signature((TensorSpec("x", "FP32", (-1, 1)),), (TensorSpec("y", "FP32", (-1, 1)),), 8)


class Gated:
    """A session whose runs wait to be let go; it notes the rows of each."""

    signature = SPEC

    def __init__(self) -> None:
        self.runs: list[list[float]] = []
        self.go = threading.Event()
        self.fails: BaseException | None = None
        self.spoilt_by: float | None = None
        """A number that no run takes."""
        self.held_from = 0
        """The number of the run from which they wait again."""
        self.drops = False
        """Whether a run gives no rows for zeros."""
        self.stopped = 0

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        self.runs.append(inputs["x"][:, 0].tolist())
        if len(self.runs) == self.held_from:
            self.go.clear()
        assert self.go.wait(10)
        if self.fails is not None:
            raise self.fails
        if self.spoilt_by in self.runs[-1]:
            raise ValueError(f"it holds {self.spoilt_by}")
        if self.drops:
            return {"y": inputs["x"][inputs["x"][:, 0] != 0] * 2}
        return {"y": inputs["x"] * 2}

    def stop(self) -> None:
        self.stopped += 1


def work(*values: float) -> InferWork:
    rows = np.array(values, np.float32).reshape(-1, 1)
    return InferWork("m", "1", "", {"x": rows}, ("y",), {}, len(values))


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def session() -> Gated:
    return Gated()


@pytest.fixture
async def lane(session: Gated) -> AsyncIterator[Lane]:
    lane = Lane(session, Batching(max_size=4, delay_ms=0), "m")
    yield lane
    session.go.set()
    await lane.close()


async def _first_running(lane: Lane, session: Gated) -> asyncio.Task[Any]:
    task = asyncio.create_task(lane.run(work(0), soon()))
    await until(lambda: len(session.runs) == 1)
    return task


async def test_what_comes_while_a_run_is_under_way_shares_the_next_in_order(lane: Lane, session: Gated):
    first = await _first_running(lane, session)
    others = [asyncio.create_task(lane.run(work(*values), soon())) for values in ([1], [2, 3], [4], [5])]
    await until(lambda: lane.waiting == 4)
    session.go.set()
    answers = await asyncio.gather(first, *others)
    assert session.runs == [[0], [1, 2, 3, 4], [5]]
    assert [ran.outputs["y"][:, 0].tolist() for ran in answers] == [[0], [2], [4, 6], [8], [10]]
    assert [(ran.rows, ran.together) for ran in answers] == [(1, 1), (4, 3), (4, 3), (4, 3), (1, 1)]
    assert all(ran.queued_s >= 0 and ran.ran_s > 0 for ran in answers)


async def test_without_batching_each_runs_alone(session: Gated):
    lane = Lane(session, None, "m")
    session.go.set()
    await asyncio.gather(*(lane.run(work(n), soon()) for n in range(3)))
    assert session.runs == [[0], [1], [2]]
    await lane.close()


async def test_a_lone_request_waits_for_others_only_as_long_as_it_is_told(session: Gated):
    lane = Lane(session, Batching(max_size=2, delay_ms=60_000), "m")
    session.go.set()
    first = asyncio.create_task(lane.run(work(1), soon()))
    await until(lambda: lane.waiting == 1)
    second = asyncio.create_task(lane.run(work(2), soon()))
    await asyncio.gather(first, second)
    assert session.runs == [[1, 2]]
    await lane.close()


async def test_what_is_late_never_runs(lane: Lane, session: Gated):
    first = await _first_running(lane, session)
    late = asyncio.create_task(lane.run(work(1), soon(0.05)))
    with pytest.raises(OipError) as caught:
        await late
    assert caught.value.reason is Reason.DEADLINE
    assert lane.waiting == 0
    session.go.set()
    await first
    with pytest.raises(OipError):
        await lane.run(work(2), soon(-1))
    assert (await lane.run(work(3), soon())).outputs["y"].tolist() == [[6]]
    assert session.runs == [[0], [3]]


async def test_a_cancelled_request_never_runs(lane: Lane, session: Gated):
    first = await _first_running(lane, session)
    given_up = asyncio.create_task(lane.run(work(1), soon()))
    kept = asyncio.create_task(lane.run(work(2), soon()))
    await until(lambda: lane.waiting == 2)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    session.go.set()
    await asyncio.gather(first, kept)
    assert session.runs == [[0], [2]]


async def test_a_failed_run_fails_its_requests_and_not_the_next(lane: Lane, session: Gated):
    session.fails = ValueError("quotes the input: 3.14")
    session.go.set()
    with pytest.raises(OipError) as caught:
        await lane.run(work(1), soon())
    assert caught.value.reason is Reason.ENDPOINT_FAILED
    assert caught.value.message == "The model failed (ValueError)."
    session.fails = None
    assert (await lane.run(work(2), soon())).outputs["y"].tolist() == [[4]]


async def _together(lane: Lane, session: Gated, *values: float) -> list[Any]:
    """The outcomes of requests that share a run."""
    first = await _first_running(lane, session)
    tasks = [asyncio.create_task(lane.run(work(value), soon())) for value in values]
    await until(lambda: lane.waiting == len(values))
    session.go.set()
    await asyncio.gather(first, return_exceptions=True)
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_one_caller_sends_costs_those_of_its_run_nothing(lane: Lane, session: Gated):
    session.spoilt_by = 2
    one, bad, three = await _together(lane, session, 1, 2, 3)
    assert session.runs == [[0], [1, 2, 3], [1], [2], [3]]
    assert [ran.outputs["y"].tolist() for ran in (one, three)] == [[[2]], [[6]]]
    assert [(ran.rows, ran.together) for ran in (one, three)] == [(1, 1), (1, 1)]
    assert str(bad) == "The model failed (ValueError)."


async def test_a_joint_answer_that_cannot_be_shared_out_is_given_alone(lane: Lane, session: Gated):
    session.drops = True
    one, nothing = await _together(lane, session, 1, 0)
    assert one.outputs["y"].tolist() == [[2]]
    assert nothing.outputs["y"].tolist() == []


async def test_closing_ends_what_is_tried_again_alone(lane: Lane, session: Gated):
    session.spoilt_by, session.held_from = 1, 3
    together = asyncio.create_task(_together(lane, session, 1, 2))
    await until(lambda: len(session.runs) == 3)
    await lane.close()
    for outcome in await together:
        assert isinstance(outcome, OipError)
        assert outcome.reason is Reason.UNAVAILABLE
    assert session.runs == [[0], [1, 2], [1]]


async def test_how_a_run_failed_that_was_left_behind_is_not_logged(session: Gated):
    lane = Lane(session, None, "m")
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    session.fails = ValueError("quotes the input: 3.14")
    running = await _first_running(lane, session)
    await lane.close()
    session.go.set()
    await until(lambda: not any(thread.name.startswith("model-m") for thread in threading.enumerate()))
    with pytest.raises(OipError):
        await running
    for _ in range(5):
        await asyncio.sleep(0)
    del lane, running
    gc.collect()
    assert logged == []


async def test_closing_ends_what_waits_and_what_runs(lane: Lane, session: Gated):
    running = await _first_running(lane, session)
    waiting = asyncio.create_task(lane.run(work(1), soon()))
    await until(lambda: lane.waiting == 1)
    await lane.close()
    for task in (running, waiting):
        with pytest.raises(OipError) as caught:
            await task
        assert caught.value.reason is Reason.UNAVAILABLE
    assert session.runs == [[0]]
    session.go.set()
    await until(lambda: not any(thread.name.startswith("model-m") for thread in threading.enumerate()))


async def test_a_run_is_stopped_when_the_last_of_those_that_wait_for_it_is_gone(lane: Lane, session: Gated):
    two = [asyncio.create_task(lane.run(work(value), soon())) for value in (1, 2)]
    await until(lambda: session.runs == [[1, 2]])
    two[0].cancel()
    await asyncio.wait(two[:1])
    assert session.stopped == 0
    two[1].cancel()
    await asyncio.wait(two)
    assert session.stopped == 1
    session.go.set()
    assert (await lane.run(work(3), soon())).outputs["y"].tolist() == [[6]]
    assert session.stopped == 1
