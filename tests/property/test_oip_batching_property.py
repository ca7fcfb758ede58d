"""Whatever arrives when, a batcher loses nothing, doubles nothing, and holds nothing too long."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from oip.batching import Batcher, batch_key, join, split
from oip.infer import InferWork

SETTINGS = settings(max_examples=300, derandomize=True, database=None, deadline=None)
DELAY_S = 2.0

arrivals = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0]),  # seconds after the one before
        st.integers(1, 12),  # rows
        st.sampled_from(["a", "a", "b", None]),
        st.booleans(),  # whether its caller leaves at once
    ),
    max_size=40,
)


@SETTINGS
@given(arrivals, st.integers(1, 10), st.sampled_from([0.0, DELAY_S]))
def test_a_shell_that_takes_when_it_is_due(arrived, max_size: int, delay_s: float):
    batcher: Batcher[int] = Batcher(max_size, delay_s)
    now = 0.0
    pushed: dict[int, tuple[float, int, str | None]] = {}
    left: set[int] = set()
    batches: list[tuple[float, list[int]]] = []

    def run_until(end: float) -> None:
        at = now
        while (due := batcher.due(at)) is not None and due <= end:
            at = max(at, due)
            batch = batcher.take(at)
            assert batch, "due, but nothing to take"
            batches.append((at, batch))
        assert not batcher.take(end)

    for item, (gap, rows, key, leaves) in enumerate(arrived):
        run_until(now + gap)
        now += gap
        batcher.push(item, rows, now, key)
        if leaves:
            assert batcher.discard(item)
            assert not batcher.discard(item)
            left.add(item)
        else:
            pushed[item] = (now, rows, key)
        assert len(batcher) == len(pushed) - sum(len(batch) for _, batch in batches)
    run_until(now + delay_s)

    assert batcher.due(now) is None
    assert Counter(item for _, batch in batches for item in batch) == Counter(pushed.keys())
    for key in ("a", "b"):
        order = [item for _, batch in batches for item in batch if pushed[item][2] == key]
        assert order == sorted(order)
    for at, batch in batches:
        assert len({pushed[item][2] for item in batch}) == 1
        assert len(batch) == 1 or (
            pushed[batch[0]][2] is not None and sum(pushed[item][1] for item in batch) <= max_size
        )
        for item in batch:
            assert pushed[item][0] <= at <= pushed[item][0] + delay_s
        if pushed[batch[0]][2] is None:
            assert at == pushed[batch[0]][0]


@SETTINGS
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 2**32))
def test_a_joint_run_answers_each_as_it_would_alone(rows: list[int], seed: int):
    rng = np.random.default_rng(seed)
    works = [
        InferWork("m", "1", str(at), {"x": rng.random((count, 3), np.float32)}, ("y",), rows=count)
        for at, count in enumerate(rows)
    ]
    assert len({batch_key(work) for work in works}) == 1
    joint = join(works)["x"]
    assert joint.shape == (sum(rows), 3)
    answers = split({"y": joint * 2, "n": np.array([str(row[0]) for row in joint], object)}, rows)
    for work, answer in zip(works, answers, strict=True):
        assert answer["y"].tobytes() == (work.inputs["x"] * 2).tobytes()
        assert answer["n"].tolist() == [str(row[0]) for row in work.inputs["x"]]
