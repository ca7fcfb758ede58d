"""Numbers that say how a model's inputs and its confidence are, without saying what they were.

    input.mean          of all elements of a row's inputs
    input.std           their standard deviation
    output.confidence   the greatest probability of a row's first output that holds probabilities

A row is an entry of the first dimension where every input has one of the same length, else the whole
request. Values are only ever counted in bins: a quantile sketch would keep some as they are, and reading
one that a device made would trust that device with this process (datasketches 5.2 crashes on bent bytes).
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Values = NDArray[np.float64]

INPUT_MEAN = "input.mean"
INPUT_STD = "input.std"
CONFIDENCE = "output.confidence"
SIGNALS = (INPUT_MEAN, INPUT_STD, CONFIDENCE)

MAX_EDGES = 256
SUM_TOLERANCE = 0.02
"""How far from 1 the sum of a row of probabilities may be; int8 ones come in steps of 1/256."""

FEW = 16
"""Up to so many values are looked up faster one by one than by an array's search."""

LATENCY_BINS_PER_DOUBLING = 12
"""So a latency is known to 6 %."""
LEAST_LATENCY_S = 1e-5
LATENCY_BINS = 300
"""The last one begins beyond 300 s."""


def input_values(inputs: Mapping[str, Array]) -> dict[str, Values]:
    """`input.mean` and `input.std`, a value a row, of numeric inputs; {} where there is none. Values that
    are no finite numbers count as 0."""
    numeric = [array for array in inputs.values() if array.dtype.kind in "biuf" and array.size]
    if not numeric:
        return {}
    rows = rows_of(inputs)
    parts = [array.astype(np.float64).reshape(rows, -1) for array in numeric]
    flat = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        means, stds = _moments(flat)
        if not np.isfinite(stds).all():
            # Something of it was not finite, or its squares are not.
            flat = np.nan_to_num(flat, nan=0.0, posinf=0.0, neginf=0.0)
            # Nor need their sum be where their mean is.
            means = np.add.reduce(flat / flat.shape[1], axis=1)
            stds = np.nan_to_num(_spread(flat, means))
    return {INPUT_MEAN: means, INPUT_STD: stds}


def rows_of(inputs: Mapping[str, Array]) -> int:
    """How many rows a request has, at least 1."""
    lengths = {array.shape[0] if array.ndim > 1 else 0 for array in inputs.values()}
    return lengths.pop() if len(lengths) == 1 and 0 not in lengths else 1


def output_values(outputs: Mapping[str, Array]) -> dict[str, Values]:
    """`output.confidence`, a value a row, of the first floating output of two or more columns whose rows
    are probabilities: none negative, sum 1. {} where no output is like that."""
    for array in outputs.values():
        if array.dtype.kind != "f" or array.ndim < 1 or array.shape[-1] < 2 or not array.size:
            continue
        rows = array.astype(np.float64).reshape(-1, array.shape[-1])
        # What is infinite or no number fails one of these two as well.
        if not np.minimum.reduce(rows, axis=None) >= 0:
            continue
        with np.errstate(over="ignore"):
            sums = np.add.reduce(rows, axis=1)
        if np.maximum.reduce(np.abs(sums - 1)) <= SUM_TOLERANCE:
            return {CONFIDENCE: np.maximum.reduce(rows, axis=1)}
    return {}


def bins_at(values: Values, edges: Sequence[float]) -> list[int]:
    """The bin of each value."""
    if len(values) <= FEW:
        return [bisect_right(edges, value) for value in values.tolist()]
    return np.searchsorted(np.asarray(edges, np.float64), values, side="right").tolist()


def bin_counts(values: Values, edges: Sequence[float]) -> list[int]:
    """How many values lie in each bin; one bin more than there are edges."""
    counts = [0] * (len(edges) + 1)
    for at in bins_at(values, edges):
        counts[at] += 1
    return counts


def edges_fault(edges: Sequence[float]) -> str | None:
    """Why these are no edges, in a clause; None where they are."""
    if not 1 <= len(edges) <= MAX_EDGES:
        return f"there must be 1 to {MAX_EDGES} of them"
    if not all(math.isfinite(edge) for edge in edges):
        return "they must be finite"
    if any(b <= a for a, b in pairwise(edges)):
        return "they must ascend"
    return None


def edges_crc(edges: Sequence[float]) -> int:
    """Tells sets of bins apart."""
    return zlib.crc32(np.asarray(edges, "<f8").tobytes())


def default_edges(signal: str) -> tuple[float, ...]:
    """Bins for a signal of which nothing is known: 20 equal ones for a probability, else bins that widen
    with the distance from 0, from a thousandth to a million."""
    if signal == CONFIDENCE:
        return tuple(k / 20 for k in range(1, 20))
    sizes = [10 ** (k / 4) for k in range(-12, 25)]
    return (*(-size for size in reversed(sizes)), 0.0, *sizes)


def latency_bin(seconds: float) -> int:
    """0 to LATENCY_BINS - 1."""
    if not seconds > LEAST_LATENCY_S:
        return 0
    at = math.ceil(math.log2(seconds / LEAST_LATENCY_S) * LATENCY_BINS_PER_DOUBLING)
    return min(at, LATENCY_BINS - 1)


def latency_of(at: int) -> float:
    """The longest latency of a bin, in seconds."""
    return LEAST_LATENCY_S * 2 ** (at / LATENCY_BINS_PER_DOUBLING)


def latency_quantile(counts: Mapping[int, int], share: float) -> float | None:
    """In seconds, rounded up to its bin's end; None where nothing was counted."""
    total = sum(counts.values())
    if total <= 0:
        return None
    wanted, seen = share * total, 0
    for at in sorted(counts):
        seen += counts[at]
        if seen >= wanted:
            return latency_of(at)
    return latency_of(max(counts))


def _moments(flat: Values) -> tuple[Values, Values]:
    """Mean and standard deviation of each row. np.mean and np.std say the same in three times the time, which
    on the way of every request is worth a few lines."""
    means = np.add.reduce(flat, axis=1) / flat.shape[1]
    return means, _spread(flat, means)


def _spread(flat: Values, means: Values) -> Values:
    spread = flat - means[:, None]
    return np.sqrt(np.add.reduce(spread * spread, axis=1) / flat.shape[1])
