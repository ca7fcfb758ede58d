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
    flat = np.concatenate([array.astype(np.float64).reshape(rows, -1) for array in numeric], axis=1)
    flat = np.nan_to_num(flat, nan=0.0, posinf=0.0, neginf=0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        found = {INPUT_MEAN: flat.mean(axis=1), INPUT_STD: flat.std(axis=1)}
    return {name: np.nan_to_num(values) for name, values in found.items()}


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
        if not (np.isfinite(rows).all() and (rows >= 0).all()):
            continue
        if (np.abs(rows.sum(axis=1) - 1) <= SUM_TOLERANCE).all():
            return {CONFIDENCE: rows.max(axis=1)}
    return {}


def bin_counts(values: Values, edges: Sequence[float]) -> list[int]:
    """How many values lie in each bin; one bin more than there are edges."""
    at = np.searchsorted(np.asarray(edges, np.float64), values, side="right")
    return np.bincount(at, minlength=len(edges) + 1).tolist()


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
