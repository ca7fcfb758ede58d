"""What Ray runs to find how right model files are: each file over all held-out rows, on the CPU."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gateway.pool.runtimes._interface import DATATYPES, Array, LoadError
from gateway.pool.runtimes.onnxruntime import OnnxRuntime
from oip.signature import Signature, TensorSpec

BATCH = 64
"""Rows of a run, where the model takes any number."""
_DTYPES = {datatype: np.dtype(name) for name, datatype in DATATYPES.items()}
Message = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """Held-out rows of one form: inputs by name, rows first, and INT64 labels [rows]."""

    inputs: Mapping[str, Array]
    labels: Array


class CannotMeasure(Exception):
    """The text is one clause."""


class _Session(Protocol):
    signature: Signature

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]: ...


def measure(
    files: Mapping[str, tuple[str, bytes]], held_out: Sequence[Rows], cpus: float
) -> Iterator[Message]:
    """`files`: (format, content) by a name. Yields ("began",), and for each file ("measuring", name) and then
    ("measured", name, rows by label, right ones by label) or ("unmeasured", name, why in a clause)."""
    yield ("began",)
    for name, (format, content) in files.items():
        yield "measuring", name
        try:
            session = _opened(format, content, cpus)
            rows, right = _counted(session, held_out)
            yield "measured", name, rows, right
        except (LoadError, CannotMeasure) as fault:
            yield "unmeasured", name, str(fault)


def _opened(format: str, content: bytes, cpus: float) -> _Session:
    if format == "onnx":
        return OnnxRuntime().load(content, {"CPU": cpus})
    from gateway.jobs.litert import LiteRtSession

    return LiteRtSession(content, max(1, math.ceil(cpus)))


def _counted(session: _Session, held_out: Sequence[Rows]) -> tuple[dict[int, int], dict[int, int]]:
    rows: Counter[int] = Counter()
    right: Counter[int] = Counter()
    for part in held_out:
        found = _classes(session, part)
        rows.update(part.labels.tolist())
        right.update(part.labels[found == part.labels].tolist())
    return dict(rows), dict(right)


def _classes(session: _Session, part: Rows) -> Array:
    """What the model takes each row for, INT64 [rows]; -1 where its answer is no number."""
    given = _bound(session.signature.inputs, part.inputs)
    most = _rows_a_run(session.signature.inputs)
    found: list[Array] = []
    for begin in range(0, len(part.labels), most or BATCH):
        batch = {name: array[begin : begin + (most or BATCH)] for name, array in given.items()}
        count = len(next(iter(batch.values())))
        if most and count < most:
            # The last run of a model that takes so many rows and no fewer.
            batch = {name: np.resize(array, (most, *array.shape[1:])) for name, array in batch.items()}
        try:
            outputs = session.run(batch)
        except Exception as error:  # runtimes raise what they like
            raise CannotMeasure(f"it fails on the held-out data ({type(error).__name__})") from None
        found.append(_greatest(outputs, len(next(iter(batch.values()))))[:count])
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _greatest(outputs: Mapping[str, Array], rows: int) -> Array:
    for array in outputs.values():
        if array.dtype.kind in "iuf" and array.ndim >= 2 and len(array) == rows and array.shape[-1] >= 2:
            scores = array.reshape(rows, -1)
            if scores.shape[1] != array.shape[-1]:
                continue
            return np.where(np.isfinite(scores).all(axis=1), scores.argmax(axis=1), -1)
    raise CannotMeasure("none of its outputs holds a score for each class of each row")


def _bound(specs: Sequence[TensorSpec], given: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays by the model's own names and in its types."""
    names = [spec.name for spec in specs]
    if len(names) == len(given) == 1:
        given = {names[0]: next(iter(given.values()))}
    if set(names) != set(given):
        raise CannotMeasure(
            f"it takes inputs {', '.join(sorted(names))}, and the held-out data has {', '.join(sorted(given))}"
        )
    found: dict[str, Array] = {}
    for spec in specs:
        array, wanted = given[spec.name], _DTYPES[spec.datatype]
        if len(array.shape) != len(spec.shape) or any(
            size not in (-1, there) for size, there in zip(spec.shape[1:], array.shape[1:], strict=True)
        ):
            raise CannotMeasure(
                f"it takes {spec.name} {list(spec.shape)}, and the held-out data is {list(array.shape)}"
            )
        if not np.can_cast(array.dtype, wanted, "same_kind"):
            raise CannotMeasure(
                f"its input {spec.name} is {spec.datatype}, and the held-out data {array.dtype}"
            )
        found[spec.name] = np.ascontiguousarray(array, wanted)
    return found


def _rows_a_run(specs: Sequence[TensorSpec]) -> int:
    """How many rows each run must have; 0: any number."""
    return max((spec.shape[0] for spec in specs if spec.shape and spec.shape[0] > 0), default=0)
