"""Writing .tflite files with the schema's own classes, and their golden vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

SCHEMA_VERSION = 3
_LAST_NARROW_CODE = 127
"""Operators beyond it are named in the wider of the schema's two fields alone."""


@dataclass(slots=True)
class Graph:
    """A model with one subgraph, written node by node; tensors are named by the number that adding them
    gives."""

    name: str
    _tensors: list[Any] = field(default_factory=list)
    _buffers: list[Any] = field(default_factory=list)
    _codes: dict[tuple[int, int], int] = field(default_factory=dict)
    _nodes: list[Any] = field(default_factory=list)

    def tensor(
        self, name: str, shape: Sequence[int], dtype: Any = np.float32, *, variable: bool = False
    ) -> int:
        """An input, an output, or something between. A dimension of -1 is free; dtype `object` is BYTES."""
        from ai_edge_litert import schema_py_generated as schema

        tensor = schema.TensorT()
        tensor.name, tensor.shape, tensor.buffer = name, [max(1, dim) for dim in shape], 0
        if -1 in shape:
            tensor.shapeSignature = list(shape)
        tensor.type = _tensor_type(np.dtype(dtype))
        tensor.isVariable = variable
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def constant(self, name: str, values: Array) -> int:
        from ai_edge_litert import schema_py_generated as schema

        index = self.tensor(name, values.shape, values.dtype)
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
        self._buffers.append(buffer)
        self._tensors[index].buffer = len(self._buffers)
        return index

    def node(
        self,
        operator: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: Any = None,
        version: int = 1,
    ) -> None:
        """`operator` is its name in the schema; `options` one of the schema's option objects."""
        from ai_edge_litert import schema_py_generated as schema

        code = getattr(schema.BuiltinOperator, operator)
        node = schema.OperatorT()
        node.opcodeIndex = self._codes.setdefault((code, version), len(self._codes))
        node.inputs, node.outputs = list(inputs), list(outputs)
        if options is not None:
            node.builtinOptions = options
            node.builtinOptionsType = getattr(schema.BuiltinOptions, type(options).__name__.removesuffix("T"))
        self._nodes.append(node)

    def build(
        self, inputs: Mapping[str, int], outputs: Mapping[str, int], *, signature: bool = True
    ) -> bytes:
        """The file, with inputs and outputs by the names of a `serving_default` signature."""
        import flatbuffers
        from ai_edge_litert import schema_py_generated as schema

        graph = schema.SubGraphT()
        graph.name, graph.tensors, graph.operators = self.name, self._tensors, self._nodes
        graph.inputs, graph.outputs = list(inputs.values()), list(outputs.values())
        model = schema.ModelT()
        model.version, model.subgraphs = SCHEMA_VERSION, [graph]
        model.buffers = [schema.BufferT(), *self._buffers]
        model.operatorCodes = [_operator_code(*key) for key in self._codes]
        if signature:
            entry = schema.SignatureDefT()
            entry.signatureKey, entry.subgraphIndex = "serving_default", 0
            entry.inputs = [_named(*pair) for pair in inputs.items()]
            entry.outputs = [_named(*pair) for pair in outputs.items()]
            model.signatureDefs = [entry]
        builder = flatbuffers.Builder(4096)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def write_golden(
    path: Path, cases: Sequence[tuple[Mapping[str, Array], Mapping[str, Array]]], tolerance: float
) -> None:
    """Golden vectors, as a gateway and a device read them beside an artifact: each case's inputs and the
    outputs that they must give to within `tolerance`."""
    arrays: dict[str, Array] = {"tolerance": np.array(tolerance)}
    for at, (inputs, outputs) in enumerate(cases):
        arrays |= {f"{at}/input/{name}": array for name, array in inputs.items()}
        arrays |= {f"{at}/output/{name}": array for name, array in outputs.items()}
    with path.open("wb") as file:
        np.savez(file, **arrays)


def golden_beside(artifact: Path) -> Path:
    """Where an artifact's golden vectors lie."""
    return artifact.with_name(f"{artifact.name}.golden.npz")


def _operator_code(code: int, version: int) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    entry = schema.OperatorCodeT()
    entry.builtinCode, entry.deprecatedBuiltinCode = code, min(code, _LAST_NARROW_CODE)
    entry.version = version
    return entry


def _named(name: str, index: int) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    entry = schema.TensorMapT()
    entry.name, entry.tensorIndex = name, index
    return entry


def _tensor_type(dtype: np.dtype[Any]) -> int:
    from ai_edge_litert import schema_py_generated as schema

    return getattr(schema.TensorType, "STRING" if dtype.hasobject else dtype.name.upper())
