"""The fixture models as a device has them: TFLite files for what TFLite can express, and for the rest files that
`tests.conformance.device_worker` knows by their graph's name and answers in Python.

Such a placeholder is a whole .tflite file, so that gateway, hub and agent handle it as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from gateway.demo.tflite import Graph
from tests.conformance.python_models import MODELS, PythonModel

PYTHON = "python:"
"""How the graph's name of a placeholder begins."""


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


def _required(model: PythonModel) -> PythonModel:
    """A device knows no optional inputs."""
    return replace(model, inputs=tuple(replace(spec, optional=False) for spec in model.inputs))


PYTHON_MODELS: Mapping[str, PythonModel] = {
    name: _required(model) for name, model in MODELS.items() if name not in {*_FILES, "opt_in"}
}
"""What TFLite cannot express, or not without more care than the fixture is worth."""
