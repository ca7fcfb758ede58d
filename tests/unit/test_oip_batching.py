"""Which requests share a run, and what is said when a model answers short."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oip.batching import Batcher, batch_key, join, split
from oip.errors import OipError
from oip.infer import InferWork
from oip.reasons import Reason

WORK = InferWork("m", "1", "a", {"x": np.zeros((2, 3), np.float32)}, ("y",), rows=2)


def test_rows_ids_and_wanted_outputs_do_not_keep_requests_apart():
    other = replace(WORK, id="b", inputs={"x": np.ones((5, 3), np.float32)}, outputs=("z",), rows=5)
    assert batch_key(other) == batch_key(WORK)


@pytest.mark.parametrize(
    "other",
    [
        replace(WORK, model="n"),
        replace(WORK, version="2"),
        replace(WORK, inputs={"x": np.zeros((2, 4), np.float32)}),
        replace(WORK, inputs={"x": np.zeros((2, 3), np.int32)}),
        replace(WORK, inputs={"w": np.zeros((2, 3), np.float32)}),
        replace(WORK, inputs={**WORK.inputs, "w": np.zeros((2, 3), np.float32)}),
        replace(WORK, parameters={"temperature": 0.5}),
        replace(WORK, rows=None),
        replace(WORK, rows=0, inputs={"x": np.zeros((0, 3), np.float32)}),
    ],
)
def test_what_keeps_requests_apart(other: InferWork):
    assert batch_key(other) != batch_key(WORK)


def test_requests_without_rows_run_alone():
    assert batch_key(replace(WORK, rows=None)) is None
    assert batch_key(replace(WORK, rows=0)) is None


def test_inputs_are_joined_in_order_and_by_name():
    def work(at: int, *names: str) -> InferWork:
        return replace(WORK, inputs={name: np.full((1, 1), f"{name}{at}", object) for name in names}, rows=1)

    joint = join([work(0, "x", "w"), work(1, "w", "x")])
    assert {name: array.ravel().tolist() for name, array in joint.items()} == {
        "x": ["x0", "x1"],
        "w": ["w0", "w1"],
    }


@pytest.mark.parametrize(
    ("array", "found"), [(np.zeros((4, 1)), "4"), (np.zeros(0), "0"), (np.zeros(()), "no")]
)
def test_an_answer_of_other_rows_is_the_models_failure(array: np.ndarray, found: str):
    with pytest.raises(OipError) as caught:
        split({"y": array}, [2, 3])
    assert caught.value.reason is Reason.ENDPOINT_FAILED
    assert caught.value.message == f"The model gave {found} rows of output 'y' for a batch of 5."


def test_a_full_batch_does_not_wait_and_a_lone_item_waits_its_delay():
    batcher: Batcher[str] = Batcher(4, 0.5)
    batcher.push("a", 2, 10.0, "k")
    assert (batcher.due(10.0), batcher.take(10.25)) == (10.5, [])
    batcher.push("b", 2, 10.25, "k")
    assert batcher.due(10.25) == 10.25
    assert batcher.take(10.25) == ["a", "b"]
    batcher.push("c", 9, 11.0, "k")
    assert batcher.take(11.0) == ["c"]
    assert batcher.due(11.0) is None


def test_the_remainder_of_a_batch_waits_on():
    batcher: Batcher[str] = Batcher(4, 0.5)
    for at, item in enumerate("abc"):
        batcher.push(item, 3, 10.0 + at / 8, "k")
    assert batcher.take(10.25) == ["a"]
    assert batcher.take(10.25) == ["b"]
    assert batcher.take(10.25) == []
    assert batcher.due(10.25) == 10.75
    assert batcher.take(10.75) == ["c"]


def test_items_without_a_key_share_with_none():
    batcher: Batcher[str] = Batcher(4, 0.5)
    batcher.push("a", 1, 1.0, None)
    batcher.push("b", 1, 1.0, None)
    assert [batcher.take(1.0), batcher.take(1.0), batcher.take(1.0)] == [["a"], ["b"], []]


def test_an_item_that_left_is_in_no_batch_and_makes_none_full():
    batcher: Batcher[str] = Batcher(4, 0.5)
    batcher.push("a", 2, 1.0, "k")
    batcher.push("b", 2, 1.0, "k")
    assert batcher.discard("a")
    assert batcher.take(1.0) == []
    assert batcher.take(1.5) == ["b"]
    assert not batcher.discard("b")
    assert len(batcher) == 0


@pytest.mark.parametrize(("size", "delay"), [(0, 0.0), (1, -0.1)])
def test_impossible_settings(size: int, delay: float):
    with pytest.raises(ValueError, match="at least one row"):
        Batcher(size, delay)
