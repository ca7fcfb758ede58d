"""Signals and counts against a plain calculation, whatever the arrays hold."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from edgewire import signals
from edgewire.gathering import Tally, bins_of
from edgewire.signals import CONFIDENCE, INPUT_MEAN, INPUT_STD, SIGNALS
from edgewire.v1 import edge_pb2

SHAPES = of_numpy.array_shapes(min_dims=1, max_dims=3, max_side=4)
DTYPES = st.sampled_from(["<f4", "<f8", "<f2", "u1", "i1", "i8", "?"])
ARRAYS = DTYPES.flatmap(lambda dtype: of_numpy.arrays(dtype, SHAPES))
EDGES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20, unique=True).map(sorted)


def plain_rows(arrays: list[np.ndarray]) -> int:
    lengths = {len(array) for array in arrays}
    return lengths.pop() if len(lengths) == 1 and all(array.ndim > 1 for array in arrays) else 1


@given(st.lists(ARRAYS, min_size=1, max_size=3))
def test_input_signals_are_a_rows_mean_and_deviation(arrays: list[np.ndarray]):
    found = signals.input_values({str(n): array for n, array in enumerate(arrays)})
    rows = plain_rows(arrays)
    for at in range(rows):
        values: list[float] = []
        for array in arrays:
            share = array.size // rows
            values += [float(v) for v in array.reshape(-1)[at * share : (at + 1) * share]]
        values = [v if math.isfinite(v) else 0.0 for v in values]
        mean = sum(map(Fraction, values)) / len(values)
        spread = sum((Fraction(v) - mean) ** 2 for v in values) / len(values)
        most = max(map(abs, values))
        assert found[INPUT_MEAN][at] == pytest.approx(float(mean), rel=1e-9, abs=1e-12 * most)
        if most < 1e150:
            assert found[INPUT_STD][at] == pytest.approx(math.sqrt(spread), rel=1e-6, abs=1e-7 * most)
    assert all(np.isfinite(of_rows).all() and len(of_rows) == rows for of_rows in found.values())


def test_numbers_whose_sum_passes_the_largest_number_have_a_mean():
    found = signals.input_values({"x": np.full((1, 4), 1e308)})
    assert found[INPUT_MEAN].tolist() == [1e308]
    assert np.isfinite(found[INPUT_STD]).all()


def test_text_has_no_signals():
    assert signals.input_values({"x": np.array([b"a", b"b"], object)}) == {}
    assert signals.input_values({"x": np.zeros((0, 4), np.float32)}) == {}


@given(st.lists(ARRAYS, min_size=1, max_size=3))
@example([np.full((1, 2), 1e308)])
def test_confidence_is_of_the_first_output_that_holds_probabilities(arrays: list[np.ndarray]):
    expected = None
    for array in arrays:
        if array.dtype.kind != "f" or array.shape[-1] < 2:
            continue
        rows = [[float(v) for v in row] for row in array.reshape(-1, array.shape[-1])]
        if all(all(map(math.isfinite, row)) and min(row) >= 0 and abs(sum(row) - 1) <= 0.02 for row in rows):
            expected = [max(row) for row in rows]
            break
    found = signals.output_values({str(n): array for n, array in enumerate(arrays)})
    assert {name: values.tolist() for name, values in found.items()} == (
        {} if expected is None else {CONFIDENCE: expected}
    )


@given(
    of_numpy.arrays(
        "<f4", st.tuples(st.integers(1, 5), st.integers(2, 6)), elements=st.floats(0, 1, width=32)
    )
)
def test_confidence_of_probabilities(weights: np.ndarray):
    probabilities = (weights + 0.01) / (weights + 0.01).sum(axis=1, keepdims=True)
    found = signals.output_values({"scores": weights * -1, "probabilities": probabilities})
    np.testing.assert_allclose(found[CONFIDENCE], probabilities.max(axis=1))


@given(st.lists(st.floats(allow_nan=False), max_size=30), EDGES)
def test_a_bin_is_between_its_edges(values: list[float], edges: list[float]):
    expected = [0] * (len(edges) + 1)
    for value in values:
        expected[sum(edge <= value for edge in edges)] += 1
    assert signals.bin_counts(np.array(values, np.float64), edges) == expected


REQUESTS = st.lists(
    st.one_of(
        st.tuples(
            st.floats(0, 400),
            of_numpy.arrays("<f4", (3, 2), elements=st.floats(0, 1, width=32)),
            st.booleans(),
        ),
        st.sampled_from(["malformed", "deadline", "endpoint_failed"]),
    ),
    max_size=12,
)


@given(REQUESTS, st.sets(st.sampled_from(SIGNALS)), EDGES, st.integers(0, 10**6))
def test_a_tally_counts_every_request_and_values_only_where_they_may_go(requests, wanted, edges, took_ms):
    tally = Tally("digits", "2", "sha256:aa", dict.fromkeys(wanted, edges))
    failed: Counter[str] = Counter()
    latency: Counter[int] = Counter()
    values: dict[str, list[float]] = {}
    for one in requests:
        if isinstance(one, str):
            tally.failed(one)
            failed[one] += 1
            continue
        took_s, array, may = one
        inputs, outputs = {"x": array}, {"y": np.hstack([array[:, :1], 1 - array[:, :1]])}
        tally.answered(took_s, inputs, outputs, may)
        latency[signals.latency_bin(took_s)] += 1
        if may:
            for name, of_rows in {**signals.input_values(inputs), **signals.output_values(outputs)}.items():
                if name in wanted:
                    values.setdefault(name, []).extend(of_rows.tolist())
    window = tally.take(took_ms)
    if not requests:
        assert window is None
        return
    assert window is not None
    assert (window.model, window.version, window.digest, window.took_ms) == (
        "digits",
        "2",
        "sha256:aa",
        took_ms,
    )
    assert (window.answered, dict(window.failed), dict(window.latency)) == (latency.total(), failed, latency)
    assert {one.name: list(one.counts) for one in window.signals} == {
        name: signals.bin_counts(np.array(of_rows), edges) for name, of_rows in values.items()
    }
    assert {one.bins for one in window.signals} <= {signals.edges_crc(edges)}
    # And it begins anew.
    assert tally.take(took_ms) is None
    tally.failed("deadline")
    again = tally.take(1)
    assert again is not None
    assert (again.answered, dict(again.failed), len(again.signals)) == (0, {"deadline": 1}, 0)


def test_only_what_can_be_counted_is_asked_for():
    Signal = edge_pb2.Signal
    asked = [
        Signal(name=CONFIDENCE, edges=[0.5]),
        Signal(name=CONFIDENCE, edges=[0.9]),
        Signal(name=INPUT_MEAN, edges=[2, 1]),
        Signal(name=INPUT_STD, edges=[]),
        Signal(name="input.pixels", edges=[1]),
    ]
    assert bins_of(asked) == {CONFIDENCE: (0.5,)}
