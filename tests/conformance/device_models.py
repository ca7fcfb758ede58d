"""The fixture models as a device has them: TFLite files for what TFLite can express, and for the rest files that
`tests.conformance.device_worker` knows by their graph's name and answers in Python.

Such a placeholder is a whole .tflite file, so that gateway, hub and agent handle it as any other.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from gateway.demo.tflite import Graph
from oip.signature import TensorSpec

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[Mapping[str, Array]], dict[str, Array]]

PYTHON = "python:"
"""How the graph's name of a placeholder begins."""
BATCHING = {"max_size": 8, "delay_ms": 0}
BATCHED = frozenset({"simple", "simple_int8", "simple_string", "simple_identity", "pt_identity"})
"""Served with BATCHING, as their `max_batch_size: 8` is on Triton."""


@dataclass(frozen=True, slots=True)
class PythonModel:
    """Tensors as a runtime sees them (`oip.infer`): BYTES are objects, BF16 its bits as uint16."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    run: Run


def artifact(name: str) -> bytes:
    """The .tflite file of a fixture model. Raises KeyError for one that devices do not serve."""
    if name in _FILES:
        return _FILES[name]()
    if name not in PYTHON_MODELS:
        raise KeyError(name)
    return _placeholder(name)


def names() -> Sequence[str]:
    """Every fixture model that a device serves."""
    return sorted({*_FILES, *PYTHON_MODELS})


def python_name(content: bytes) -> str | None:
    """The model that a placeholder stands for; None for a model of TFLite's own."""
    graph = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0)).subgraphs[0]
    name = graph.name.decode() if isinstance(graph.name, bytes) else str(graph.name)
    return name.removeprefix(PYTHON) if name.startswith(PYTHON) else None


def _placeholder(name: str) -> bytes:
    graph = Graph(f"{PYTHON}{name}")
    x, y = graph.tensor("x", (1,)), graph.tensor("y", (1,))
    graph.node("ADD", (x, x), (y,), schema.AddOptionsT())
    return graph.build({"x": x}, {"y": y})


def _identity(shape: Sequence[int], dtype: Any) -> bytes:
    """INPUT0 -> OUTPUT0, both of this shape, in which only the first dimension is free."""
    graph = Graph("identity")
    x, y = graph.tensor("INPUT0", shape, dtype), graph.tensor("OUTPUT0", shape, dtype)
    to = graph.constant("shape", np.array(shape, np.int32))
    graph.node("RESHAPE", (x, to), (y,), schema.ReshapeOptionsT())
    return graph.build({"INPUT0": x}, {"OUTPUT0": y})


def _identity_2d() -> bytes:
    graph = Graph("identity")
    x, y = graph.tensor("INPUT0", (-1, -1)), graph.tensor("OUTPUT0", (-1, -1))
    order = graph.constant("order", np.array([0, 1], np.int32))
    graph.node("TRANSPOSE", (x, order), (y,), schema.TransposeOptionsT())
    return graph.build({"INPUT0": x}, {"OUTPUT0": y})


def _simple() -> bytes:
    graph = Graph("simple")
    tensors = {
        name: graph.tensor(name, (-1, 16), np.int32) for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    }
    given = tensors["INPUT0"], tensors["INPUT1"]
    graph.node("ADD", given, (tensors["OUTPUT0"],), schema.AddOptionsT())
    graph.node("SUB", given, (tensors["OUTPUT1"],), schema.SubOptionsT())
    return graph.build(
        {name: tensors[name] for name in ("INPUT0", "INPUT1")},
        {name: tensors[name] for name in ("OUTPUT0", "OUTPUT1")},
    )


_FLAT = {
    "id_bool": np.bool_, "id_uint8": np.uint8, "id_uint32": np.uint32, "id_uint64": np.uint64,
    "id_int8": np.int8, "id_int16": np.int16, "id_int32": np.int32, "id_int64": np.int64,
    "id_fp32": np.float32, "id_fp64": np.float64, "id_bytes": object,
}  # fmt: skip
_FILES: Mapping[str, Callable[[], bytes]] = {
    **{name: lambda dtype=dtype: _identity((-1,), dtype) for name, dtype in _FLAT.items()},
    "id2d_fp32": _identity_2d,
    "pt_identity": lambda: _identity((-1, 8), np.float32),
    "simple": _simple,
}


def _same(datatype: str, shape: tuple[int, ...]) -> PythonModel:
    return PythonModel(
        (TensorSpec("INPUT0", datatype, shape),),
        (TensorSpec("OUTPUT0", datatype, shape),),
        lambda given: {"OUTPUT0": given["INPUT0"]},
    )


def _add_sub(datatype: str, add_sub: Callable[[Array, Array], tuple[Array, Array]]) -> PythonModel:
    def run(given: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(("OUTPUT0", "OUTPUT1"), add_sub(given["INPUT0"], given["INPUT1"]), strict=True))

    inputs, outputs = (
        tuple(TensorSpec(f"{kind}{at}", datatype, (-1, 16)) for at in (0, 1)) for kind in ("INPUT", "OUTPUT")
    )
    return PythonModel(inputs, outputs, run)


def _decimals(a: Array, b: Array) -> tuple[Array, Array]:
    def texts(values: list[int]) -> Array:
        found = np.empty(len(values), object)
        found[:] = [str(value).encode() for value in values]
        return found.reshape(a.shape)

    pairs = [(int(x), int(y)) for x, y in zip(a.ravel(), b.ravel(), strict=True)]
    return texts([x + y for x, y in pairs]), texts([x - y for x, y in pairs])


def _wrapping(a: Array, b: Array) -> tuple[Array, Array]:
    return a + b, a - b


def _slow(given: Mapping[str, Array]) -> dict[str, Array]:
    """Sleeps for SECONDS. If SLOW_LOG names a file, a line of when it began and ended and the first of what it
    was given is appended."""
    began = time.time()
    time.sleep(float(given["SECONDS"].reshape(-1)[0]))
    if log := os.environ.get("SLOW_LOG"):
        first = [int(value) for value in given["INPUT0"][:1]]
        with open(log, "a") as file:
            file.write(json.dumps({"first": first, "start": began, "end": time.time()}) + "\n")
    return {"OUTPUT0": given["INPUT0"]}


def _nan(given: Mapping[str, Array]) -> dict[str, Array]:
    return {"OUTPUT0": np.array([np.nan, np.inf, -np.inf, 1, 2, 3], np.float32)}


def _sum(given: Mapping[str, Array]) -> dict[str, Array]:
    total = np.asarray(given["INPUT0"].sum(dtype=np.float32))
    return {"SCALAR": total, "ONE": total.reshape(1)}


def _wide(given: Mapping[str, Array]) -> dict[str, Array]:
    return {"OUTPUT0": np.arange(max(0, int(given["N"][0])), dtype=np.float32)}


_FREE = (-1,)
PYTHON_MODELS: Mapping[str, PythonModel] = {
    "id_uint16": _same("UINT16", _FREE),
    "id_fp16": _same("FP16", _FREE),
    "id_bf16": _same("BF16", _FREE),
    "simple_identity": _same("BYTES", (-1, -1)),
    "simple_int8": _add_sub("INT8", _wrapping),
    "simple_string": _add_sub("BYTES", _decimals),
    "slow_identity": PythonModel(
        (TensorSpec("INPUT0", "INT32", _FREE), TensorSpec("SECONDS", "FP32", (1,))),
        (TensorSpec("OUTPUT0", "INT32", _FREE),),
        _slow,
    ),
    "nan_out": PythonModel(
        (TensorSpec("INPUT0", "FP32", _FREE),), (TensorSpec("OUTPUT0", "FP32", _FREE),), _nan
    ),
    "scalar_out": PythonModel(
        (TensorSpec("INPUT0", "FP32", _FREE),),
        (TensorSpec("SCALAR", "FP32", ()), TensorSpec("ONE", "FP32", (1,))),
        _sum,
    ),
    "wide_out": PythonModel(
        (TensorSpec("N", "INT32", (1,)),), (TensorSpec("OUTPUT0", "FP32", _FREE),), _wide
    ),
}
"""What TFLite cannot express, or not without more care than the fixture is worth."""
