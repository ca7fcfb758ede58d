"""What the fixture models of `model_repository` compute, for runtimes that are no Triton.

Requests' parameters and ids do not reach a runtime of a pool or a device, so that what the fixtures read from
those is given as an input here: `routes.LIMITS` says of which.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from oip.signature import TensorSpec

Array = np.ndarray[Any, np.dtype[Any]]
Stopped = Callable[[], bool]
Run = Callable[[Mapping[str, Array], Stopped], dict[str, Array]]

LOOK_S = 0.05
"""How often a run that takes its time looks whether it is to stop."""
BATCHED = frozenset({"simple", "simple_int8", "simple_string", "simple_identity", "pt_identity"})
"""Served with a batch of at most 8, as their `max_batch_size: 8` is on Triton."""
_FREE = (-1,)


@dataclass(frozen=True, slots=True)
class PythonModel:
    """Tensors as a runtime sees them (`oip.infer`): BYTES are objects, BF16 its bits as uint16. `run` is given
    what tells whether anybody still wants the answer."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    run: Run


class Failed(Exception):
    """The model fails on what it was given."""


def _same(datatype: str, shape: tuple[int, ...]) -> PythonModel:
    return PythonModel(
        (TensorSpec("INPUT0", datatype, shape),),
        (TensorSpec("OUTPUT0", datatype, shape),),
        lambda given, stopped: {"OUTPUT0": given["INPUT0"]},
    )


def _add_sub(datatype: str, add_sub: Callable[[Array, Array], tuple[Array, Array]]) -> PythonModel:
    def run(given: Mapping[str, Array], stopped: Stopped) -> dict[str, Array]:
        return dict(zip(("OUTPUT0", "OUTPUT1"), add_sub(given["INPUT0"], given["INPUT1"]), strict=True))

    inputs, outputs = (
        tuple(TensorSpec(f"{kind}{at}", datatype, (-1, 16)) for at in (0, 1)) for kind in ("INPUT", "OUTPUT")
    )
    return PythonModel(inputs, outputs, run)


def _wrapping(a: Array, b: Array) -> tuple[Array, Array]:
    return a + b, a - b


def _decimals(a: Array, b: Array) -> tuple[Array, Array]:
    def texts(values: list[int]) -> Array:
        found = np.empty(len(values), object)
        found[:] = [str(value).encode() for value in values]
        return found.reshape(a.shape)

    try:
        pairs = [(int(x), int(y)) for x, y in zip(a.ravel(), b.ravel(), strict=True)]
    except ValueError:
        raise Failed from None
    return texts([x + y for x, y in pairs]), texts([x - y for x, y in pairs])


def _slow(given: Mapping[str, Array], stopped: Stopped) -> dict[str, Array]:
    """Sleeps for SECONDS, as long as it is wanted. If SLOW_LOG names a file, a line of the first of what it was
    given, when it began and ended, and whether it was stopped, is appended."""
    began = time.time()
    until = time.monotonic() + (float(given["SECONDS"].ravel()[0]) if "SECONDS" in given else 0.0)
    while not stopped() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, LOOK_S))
    if log := os.environ.get("SLOW_LOG"):
        first = [int(value) for value in given["INPUT0"][:1]]
        entry = {"first": first, "start": began, "end": time.time(), "cancelled": stopped()}
        with open(log, "a") as file:
            file.write(json.dumps(entry) + "\n")
    if stopped():
        raise Failed
    return {"OUTPUT0": given["INPUT0"]}


def _nan(given: Mapping[str, Array], stopped: Stopped) -> dict[str, Array]:
    return {"OUTPUT0": np.array([np.nan, np.inf, -np.inf, 1, 2, 3], np.float32)}


def _sum(given: Mapping[str, Array], stopped: Stopped) -> dict[str, Array]:
    total = np.asarray(given["INPUT0"].sum(dtype=np.float32))
    return {"SCALAR": total, "ONE": total.reshape(1)}


def _wide(given: Mapping[str, Array], stopped: Stopped) -> dict[str, Array]:
    return {"OUTPUT0": np.arange(max(0, int(given["N"].ravel()[0])), dtype=np.float32)}


def _inputs_given(given: Mapping[str, Array], stopped: Stopped) -> dict[str, Array]:
    return {"OUTPUT0": np.array([len(given)], np.float32)}


def _boom(given: Mapping[str, Array], stopped: Stopped) -> dict[str, Array]:
    """Fails on a negative number, with what it was given in its words."""
    if (given["INPUT0"] < 0).any():
        raise RuntimeError(f"boom: {given['INPUT0'].tolist()}")
    return {"OUTPUT0": given["INPUT0"]}


def _spec(name: str, datatype: str, shape: tuple[int, ...] = _FREE, *, optional: bool = False) -> TensorSpec:
    return TensorSpec(name, datatype, shape, optional)


_OUTPUT = (_spec("OUTPUT0", "FP32"),)
_DATATYPES = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64", "BYTES"]  # fmt: skip
MODELS: Mapping[str, PythonModel] = {
    **{f"id_{datatype.lower()}": _same(datatype, _FREE) for datatype in _DATATYPES},
    "id2d_fp32": _same("FP32", (-1, -1)),
    "pt_identity": _same("FP32", (-1, 8)),
    "simple_identity": _same("BYTES", (-1, -1)),
    "simple": _add_sub("INT32", _wrapping),
    "simple_int8": _add_sub("INT8", _wrapping),
    "simple_string": _add_sub("BYTES", _decimals),
    "slow_identity": PythonModel(
        (_spec("INPUT0", "INT32"), _spec("SECONDS", "FP32", (1,), optional=True)),
        (_spec("OUTPUT0", "INT32"),),
        _slow,
    ),
    "nan_out": PythonModel((_spec("INPUT0", "FP32"),), _OUTPUT, _nan),
    "scalar_out": PythonModel(
        (_spec("INPUT0", "FP32"),), (_spec("SCALAR", "FP32", ()), _spec("ONE", "FP32", (1,))), _sum
    ),
    "wide_out": PythonModel((_spec("N", "INT32", (1,)),), _OUTPUT, _wide),
    "opt_in": PythonModel(
        tuple(_spec(f"INPUT{at}", "FP32", optional=at == 3) for at in range(4)),
        (_spec("OUTPUT0", "FP32", (1,)),),
        _inputs_given,
    ),
    "boom": PythonModel((_spec("INPUT0", "INT32"),), (_spec("OUTPUT0", "INT32"),), _boom),
}
