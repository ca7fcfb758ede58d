"""What a .tflite file says, read in pure Python before any native code sees it.

tflite-runtime does not verify a file: bent offsets and indices make it read and write where they point.
So every table, vector and string is held against the file's bounds, every index against what it
indexes, the nodes' order against their inputs, the constants against their shapes, and every operator
against what the runtime has. What passes may still fail a kernel's own checks: it is tried in a process
of its own.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import tflite
from tflite.utils import BUILTIN_OPCODE2NAME

from edgewire.operators import CUSTOM, STATEFUL, VERSIONS

SCHEMA_VERSION = 3
MAX_TENSOR_BYTES = 2**31 - 1
_NO_TENSOR = -1
_BITS = {
    tflite.TensorType.FLOAT32: 32, tflite.TensorType.FLOAT16: 16, tflite.TensorType.INT32: 32,
    tflite.TensorType.UINT8: 8, tflite.TensorType.INT64: 64, tflite.TensorType.BOOL: 8,
    tflite.TensorType.INT16: 16, tflite.TensorType.COMPLEX64: 64, tflite.TensorType.INT8: 8,
    tflite.TensorType.FLOAT64: 64, tflite.TensorType.COMPLEX128: 128, tflite.TensorType.UINT64: 64,
    tflite.TensorType.UINT32: 32, tflite.TensorType.UINT16: 16, tflite.TensorType.INT4: 4,
}  # fmt: skip
_UNSIZED = {tflite.TensorType.STRING, tflite.TensorType.RESOURCE, tflite.TensorType.VARIANT}
_NAMES = {value: name for name, value in vars(tflite.TensorType).items() if isinstance(value, int)}
_OPTIONS = {value: name for name, value in vars(tflite.BuiltinOptions).items() if isinstance(value, int)}
_SUBGRAPHS_OF = {
    "CallOnceOptions": ("InitSubgraphIndex",),
    "IfOptions": ("ThenSubgraphIndex", "ElseSubgraphIndex"),
    "WhileOptions": ("CondSubgraphIndex", "BodySubgraphIndex"),
}
_STRINGS_OF = {"VarHandleOptions": (4, 6)}
_UNREADABLE = (
    struct.error, IndexError, ValueError, TypeError, AttributeError, OverflowError, KeyError, RecursionError,
)  # fmt: skip


class BadModel(Exception):
    """The file is no model that this device can run; the text is one clause that says why."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`stateful`: it keeps state in resources, which live as long as an interpreter does.

    `versions`: the highest version of each operator that it uses. `computed` and `stored`: datatypes of
    tensors that nodes or callers write, and of constants, by their names in TFLite's schema.
    `working_bytes`: what the written tensors take together, an upper bound of what a runtime lays out.
    """

    nodes: int
    operators: tuple[str, ...]
    stateful: bool
    versions: Mapping[str, int]
    computed: frozenset[str]
    stored: frozenset[str]
    working_bytes: int


def read_model(content: bytes, *, any_custom: bool = False, any_operator: bool = False) -> ModelFacts:
    """Hold a whole .tflite file against its schema. Raises BadModel.

    `any_custom`: a delegate may bring custom operators that the runtime lacks. `any_operator`: the file is
    to be known, not run here, so that no operator is refused.
    """
    try:
        return _Reader(content, any_custom, any_operator).read()
    except BadModel:
        raise
    except _UNREADABLE:
        raise BadModel("the file is not a whole TFLite model") from None


def _bad(fault: str) -> NoReturn:
    raise BadModel(fault)


class _Reader:
    def __init__(self, content: bytes, any_custom: bool, any_operator: bool) -> None:
        self._content = content
        self._any_custom = any_custom or any_operator
        self._any_operator = any_operator
        self._size = len(content)
        self._steps = 0
        self._versions: dict[str, int] = {}
        self._computed: set[int] = set()
        self._stored: set[int] = set()
        self._working = 0

    def read(self) -> ModelFacts:
        if self._size < 16 or self._content[4:8] != b"TFL3":
            _bad("the file is no TFLite model")
        model = self._table(tflite.Model.GetRootAs(self._content, 0))
        if model.Version() != SCHEMA_VERSION:
            _bad(f"the file has schema version {model.Version()}, and the runtime reads {SCHEMA_VERSION}")
        self._string(model, 10)
        buffers = [self._buffer(b) for b in self._tables(model.BuffersLength, model.Buffers)]
        names = [self._operator_code(c) for c in self._codes(model)]
        graphs = list(self._tables(model.SubgraphsLength, model.Subgraphs))
        if not graphs:
            _bad("the model has no subgraph")
        calls: dict[int, list[int]] = {}
        tensors: list[int] = []
        for at, graph in enumerate(graphs):
            count, calls[at] = self._graph(graph, buffers, names, len(graphs))
            tensors.append(count)
        _refuse_recursion(calls)
        self._signatures(model, tensors)
        for entry in self._tables(model.MetadataLength, model.Metadata):
            self._string(entry, 4)
            _index(entry.Buffer(), len(buffers), "metadata names buffer")
        model.MetadataBufferAsNumpy()
        return ModelFacts(
            sum(graph.OperatorsLength() for graph in graphs[:1]),
            tuple(sorted(set(names))),
            bool(STATEFUL.intersection(names)),
            self._versions,
            frozenset(_NAMES[kind] for kind in self._computed),
            frozenset(_NAMES[kind] for kind in self._stored),
            self._working,
        )

    def _codes(self, model: Any) -> Iterator[Any]:
        return self._tables(model.OperatorCodesLength, model.OperatorCodes)

    def _tables(self, length: Callable[[], int], at: Callable[[int], Any]) -> Iterator[Any]:
        """Each table of a vector, checked."""
        count = int(length())
        if count > self._size // 4:
            _bad("a vector of the file is longer than the file")
        for index in range(count):
            yield self._table(at(index))

    def _table(self, table: Any) -> Any:
        """The table, once its fields lie inside the file. A file with shared tables takes no longer to
        read than one of its size could."""
        self._steps += 1
        if self._steps > self._size:
            _bad("the file's tables refer to each other more often than its size allows")
        at = int(table._tab.Pos)
        (back,) = struct.unpack_from("<i", self._content, at) if 0 <= at <= self._size - 4 else (0,)
        fields = at - back
        if back == 0 or not 0 <= fields <= self._size - 4:
            _bad("a table of the file lies outside it")
        length, size = struct.unpack_from("<HH", self._content, fields)
        if length < 4 or length % 2 or fields + length > self._size or at + size > self._size:
            _bad("a table of the file does not fit into it")
        for offset in struct.unpack_from(f"<{(length - 4) // 2}H", self._content, fields + 4):
            if offset and not 4 <= offset < size:
                _bad("a field of the file lies outside its table")
        return table

    def _string(self, table: Any, slot: int) -> str:
        """The string in a table's slot; "" when it has none."""
        tab = table._tab
        offset = tab.Offset(slot)
        if not offset:
            return ""
        at = int(tab.Indirect(tab.Pos + offset))
        (length,) = struct.unpack_from("<I", self._content, at)
        if at + 4 + length > self._size:
            _bad("a name in the file runs past its end")
        return self._content[at + 4 : at + 4 + length].decode()

    def _buffer(self, buffer: Any) -> int:
        """Bytes of a constant's data."""
        if buffer.Offset() > 1 or buffer.Size() > 1:
            _bad("the model keeps weights outside its flatbuffer, which the runtime does not read")
        data = buffer.DataAsNumpy()
        return 0 if isinstance(data, int) else len(data)

    def _operator_code(self, code: Any) -> str:
        """The operator's name, once the runtime has it in that version."""
        custom = self._string(code, 6)
        # Writers set one of two fields, and the runtime takes the larger.
        wide = code._tab.Offset(10)
        number = max(
            code.DeprecatedBuiltinCode(),
            struct.unpack_from("<i", self._content, code._tab.Pos + wide)[0] if wide else 0,
        )
        name = BUILTIN_OPCODE2NAME.get(number, f"number {number}")
        if name == "CUSTOM":
            if custom not in CUSTOM and not self._any_custom:
                _bad(f"the runtime lacks the model's custom operator {custom[:64]!r}")
            return f"CUSTOM {custom}"
        self._versions[name] = max(code.Version(), self._versions.get(name, 0))
        if self._any_operator:
            return name
        if name not in VERSIONS:
            _bad(f"the runtime lacks the model's operator {name}")
        if code.Version() not in VERSIONS[name]:
            versions = VERSIONS[name]
            _bad(
                f"the model needs version {code.Version()} of {name}, and the runtime has "
                f"{versions.start} to {versions.stop - 1}"
            )
        return name

    def _graph(self, graph: Any, buffers: list[int], names: list[str], graphs: int) -> tuple[int, list[int]]:
        """Tensors of a subgraph, and the subgraphs that its nodes run."""
        self._string(graph, 12)
        constant: list[bool] = []
        known: set[int] = set()
        for at, tensor in enumerate(self._tables(graph.TensorsLength, graph.Tensors)):
            constant.append(self._tensor(tensor, buffers))
            if constant[-1] or tensor.IsVariable():
                known.add(at)
        count = len(constant)
        for index in _vector(graph.InputsAsNumpy()):
            known.add(_index(index, count, "a subgraph's input is tensor"))
        calls: list[int] = []
        made: set[int] = set()
        for node in self._tables(graph.OperatorsLength, graph.Operators):
            name = names[_index(node.OpcodeIndex(), len(names), "a node has operator")]
            for index in _vector(node.InputsAsNumpy()):
                if index != _NO_TENSOR and _index(index, count, f"{name} reads tensor") not in known:
                    _bad(f"a node {name} reads tensor {index} before any node has made it")
            for index in _vector(node.IntermediatesAsNumpy()):
                _index(index, count, f"{name} keeps tensor")
            for index in _vector(node.OutputsAsNumpy()):
                if constant[_index(index, count, f"{name} writes tensor")] or index in made:
                    _bad(f"a node {name} writes tensor {index}, which is a constant or made already")
                made.add(index)
                known.add(index)
            calls += self._options(node, graphs)
            node.CustomOptionsAsNumpy()
            node.MutatingVariableInputsAsNumpy()
        for index in _vector(graph.OutputsAsNumpy()):
            if _index(index, count, "a subgraph's output is tensor") not in known:
                _bad(f"no node makes the output tensor {index}")
        return count, calls

    def _tensor(self, tensor: Any, buffers: list[int]) -> bool:
        """Whether the tensor is a constant, once its data has the size that its shape takes."""
        name = self._string(tensor, 10)[:64]
        kind, shape = tensor.Type(), _vector(tensor.ShapeAsNumpy())
        signature = _vector(tensor.ShapeSignatureAsNumpy())
        data = buffers[_index(tensor.Buffer(), len(buffers), f"tensor {name!r} has buffer")]
        if kind not in _BITS and kind not in _UNSIZED:
            _bad(f"tensor {name!r} has the datatype number {kind}, which the runtime lacks")
        if any(dim < 0 for dim in shape) or any(dim < -1 for dim in signature):
            _bad(f"tensor {name!r} has a negative dimension")
        if signature and len(signature) != len(shape):
            _bad(
                f"tensor {name!r} has a shape of {len(shape)} dimensions and a signature of {len(signature)}"
            )
        takes = -(-math.prod(shape) * _BITS.get(kind, 0) // 8)
        if takes > MAX_TENSOR_BYTES:
            _bad(f"tensor {name!r} takes {takes} bytes, more than the runtime can address")
        (self._stored if data else self._computed).add(kind)
        if not data:
            self._working += takes
        self._quantization(tensor, name, shape)
        sparse = tensor.Sparsity()
        if sparse is not None:
            self._sparsity(self._table(sparse), name, len(shape))
        elif data and kind in _BITS and data != takes:
            _bad(f"tensor {name!r} has {data} bytes of data, and its shape takes {takes}")
        if data and kind == tflite.TensorType.STRING:
            self._strings(tensor.Buffer(), name, math.prod(shape))
        return data > 0

    def _strings(self, buffer: int, name: str, count: int) -> None:
        """A constant of strings: their number, where each begins and the last ends, then the bytes."""
        model: Any = tflite.Model.GetRootAs(self._content, 0)
        data: bytes = model.Buffers(buffer).DataAsNumpy().tobytes()
        (found,) = struct.unpack_from("<i", data, 0)
        if found != count or len(data) < 8 + 4 * count:
            _bad(f"tensor {name!r} holds {found} strings, and its shape takes {count}")
        ends = struct.unpack_from(f"<{count + 1}i", data, 4)
        if list(ends) != sorted(ends) or ends[0] != 8 + 4 * count or ends[-1] > len(data):
            _bad(f"tensor {name!r} holds strings that lie outside it")

    def _quantization(self, tensor: Any, name: str, shape: list[int]) -> None:
        found = tensor.Quantization()
        if found is None:
            return
        self._table(found)
        scales, zeros = _vector(found.ScaleAsNumpy()), _vector(found.ZeroPointAsNumpy())
        found.MinAsNumpy()
        found.MaxAsNumpy()
        if not np.isfinite(scales).all():
            _bad(f"tensor {name!r} is quantized by a scale that is no number")
        if len(scales) > 1:
            axis = found.QuantizedDimension()
            if not 0 <= axis < len(shape) or shape[axis] != len(scales):
                _bad(f"tensor {name!r} has {len(scales)} scales, which fit no dimension of its shape")
        if scales and len(zeros) not in (1, len(scales)):
            _bad(f"tensor {name!r} has {len(scales)} scales and {len(zeros)} zero points")
        if found.DetailsType():
            _bad(f"tensor {name!r} is quantized in a way that the runtime lacks")

    def _sparsity(self, sparse: Any, name: str, rank: int) -> None:
        order = _vector(sparse.TraversalOrderAsNumpy())
        blocks = _vector(sparse.BlockMapAsNumpy())
        if sorted(order) != list(range(rank + len(blocks))) or sparse.DimMetadataLength() != len(order):
            _bad(f"tensor {name!r} is sparse in a way that does not fit its shape")
        for block in blocks:
            _index(block, rank, f"tensor {name!r} has a block of dimension")
        for entry in self._tables(sparse.DimMetadataLength, sparse.DimMetadata):
            if entry.DenseSize() < 0:
                _bad(f"tensor {name!r} is sparse in a way that does not fit its shape")

    def _options(self, node: Any, graphs: int) -> list[int]:
        """The subgraphs that a node runs, once its options lie inside the file."""
        name = _OPTIONS.get(node.BuiltinOptionsType())
        union = node.BuiltinOptions()
        if name is None:
            _bad("a node has options of an unknown kind")
        if name == "NONE" or union is None:
            return []
        options = getattr(tflite, name)()
        options.Init(union.Bytes, union.Pos)
        self._table(options)
        for slot in _STRINGS_OF.get(name, ()):
            self._string(options, slot)
        for method in dir(options):
            if method.endswith("AsNumpy"):
                getattr(options, method)()
        return [
            _index(getattr(options, method)(), graphs, f"{name} runs subgraph")
            for method in _SUBGRAPHS_OF.get(name, ())
        ]

    def _signatures(self, model: Any, tensors: list[int]) -> None:
        for signature in self._tables(model.SignatureDefsLength, model.SignatureDefs):
            self._string(signature, 8)
            graph = _index(signature.SubgraphIndex(), len(tensors), "a signature runs subgraph")
            for length, at in (
                (signature.InputsLength, signature.Inputs),
                (signature.OutputsLength, signature.Outputs),
            ):
                names: list[str] = []
                for entry in self._tables(length, at):
                    names.append(self._string(entry, 4))
                    _index(entry.TensorIndex(), tensors[graph], "a signature names tensor")
                if len(set(names)) != len(names) or "" in names:
                    _bad("a signature of the model has names that are empty or not unique")


def _vector(found: Any) -> list[Any]:
    """A vector as flatbuffers gives it: 0 where there is none."""
    return [] if isinstance(found, int) else found.tolist()


def _index(value: int, count: int, what: str) -> int:
    if not 0 <= value < count:
        _bad(f"{what} {value} of {count}")
    return value


def _refuse_recursion(calls: dict[int, list[int]]) -> None:
    """Subgraphs may run each other, but not in a circle."""
    done: set[int] = set()

    def walk(graph: int, above: Iterable[int]) -> None:
        if graph in above:
            _bad(f"subgraph {graph} runs itself")
        if graph not in done:
            for called in calls[graph]:
                walk(called, {*above, graph})
            done.add(graph)

    for graph in calls:
        walk(graph, ())
