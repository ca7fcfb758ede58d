"""A model in one interpreter, run by the first delegate of a chain that works, bound by names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_agent.delegates import Delegate, DelegateFailed, DelegateSpec, count_taken, kinds
from oip.signature import TensorSpec

Array = np.ndarray[Any, np.dtype[Any]]

_DATATYPES = {
    np.bool_: "BOOL", np.uint8: "UINT8", np.uint16: "UINT16", np.uint32: "UINT32", np.uint64: "UINT64",
    np.int8: "INT8", np.int16: "INT16", np.int32: "INT32", np.int64: "INT64", np.float16: "FP16",
    np.float32: "FP32", np.float64: "FP64", np.bytes_: "BYTES", np.object_: "BYTES",
}  # fmt: skip
_DTYPES = {name: kind for kind, name in _DATATYPES.items() if name != "BYTES"}
_DEFAULT_SIGNATURE = "serving_default"
_INVOKE_FAULTS = (RuntimeError, ValueError)


class EngineFailed(Exception):
    """No delegate of the chain runs the model; the text is one clause that says why."""


class RunFailed(Exception):
    """The model could not compute these inputs; `shape` when it cannot take their shapes at all."""

    def __init__(self, shape: bool) -> None:
        super().__init__()
        self.shape = shape


@dataclass(slots=True)
class _Tensor:
    spec: TensorSpec
    index: int


@dataclass(slots=True)
class _Built:
    """An interpreter and the delegate that it needs alive."""

    spec: DelegateSpec
    delegate: Delegate
    interpreter: Any
    taken: int
    nodes: int


class Engine:
    """`degraded`: why a better delegate of the chain does not serve, "" when none was wanted in vain.

    Not thread-safe; outputs are copies.
    """

    def __init__(
        self, path: str, chain: Sequence[DelegateSpec], threads: int, *, stateful: bool, say: Any
    ) -> None:
        """`say(stage)` is told what begins. Raises EngineFailed."""
        self._path = path
        self._threads = threads
        self._stateful = stateful
        self._say = say
        self._left = list(chain)
        self._faults: list[str] = []
        self._shapes: tuple[tuple[int, ...], ...] | None = None
        self._used = False
        self._built = self._next()
        self.inputs, self.outputs = self._bind()
        self._learn_rows()

    @property
    def delegate(self) -> str:
        return self._built.spec.name

    @property
    def taken(self) -> int:
        return self._built.taken

    @property
    def nodes(self) -> int:
        return self._built.nodes

    @property
    def degraded(self) -> str:
        return "; ".join(self._faults)

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        return tuple(tensor.spec for tensor in self.inputs)

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        return tuple(tensor.spec for tensor in self.outputs)

    def run(self, given: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, copied. `given` has every input by name, of its datatype. Raises RunFailed,
        and EngineFailed when the model can no longer be run at all.

        A delegate that cannot run even zeros any more is left for the next of the chain for good. One
        that can stays, whatever a request did to it: no caller takes the accelerator from the others.
        """
        empty = self._nothing(given)
        if empty is not None:
            return empty
        try:
            return self._run(given)
        except RunFailed:
            if not self._left or self._works():
                raise
            outputs = self._elsewhere(given)
            if outputs is None:
                raise
            return outputs

    def refresh(self) -> None:
        """Make the interpreter ready for another caller, while none waits for it."""
        if self._stateful and self._used:
            self._rebuild()

    def _run(self, given: Mapping[str, Array]) -> dict[str, Array]:
        if self._stateful and self._used:
            self._rebuild()
        interpreter = self._built.interpreter
        arrays = [given[tensor.spec.name] for tensor in self.inputs]
        shapes = tuple(array.shape for array in arrays)
        try:
            if shapes != self._shapes:
                self._shapes = None
                for tensor, shape in zip(self.inputs, shapes, strict=True):
                    interpreter.resize_tensor_input(tensor.index, shape)
                interpreter.allocate_tensors()
                self._shapes = shapes
        except _INVOKE_FAULTS as fault:
            raise RunFailed(shape=True) from fault
        try:
            interpreter.reset_all_variables()
            for tensor, array in zip(self.inputs, arrays, strict=True):
                interpreter.set_tensor(tensor.index, array)
            self._used = True
            interpreter.invoke()
            return {tensor.spec.name: _read(interpreter, tensor) for tensor in self.outputs}
        except _INVOKE_FAULTS as fault:
            self._shapes = None
            raise RunFailed(shape=False) from fault

    def _rebuild(self) -> None:
        built = self._built
        delegate = kinds()[built.spec.kind](built.spec)
        try:
            interpreter = delegate.interpreter(self._path, self._threads)
        except DelegateFailed as fault:
            self._faults.append(f"{built.spec.name} did not start again: {fault}")
            self._built = self._next()
        else:
            self._built = _Built(built.spec, delegate, interpreter, built.taken, built.nodes)
        self._shapes, self._used = None, False

    def _nothing(self, given: Mapping[str, Array]) -> dict[str, Array] | None:
        """The outputs for inputs of which some have no elements, None where all have. Kernels and delegates
        take such inputs badly, up to the end of the process, so they are not run: how the outputs' shapes
        grow shows in runs on one and on two of what is missing. Raises RunFailed where outputs would have
        elements all the same."""
        if all(array.size for array in given.values()):
            return None
        one, two = (self._run({name: _padded(array, n) for name, array in given.items()}) for n in (1, 2))
        return {name: _shrunk(array, two[name].shape) for name, array in one.items()}

    def _works(self) -> bool:
        """Whether the present delegate still runs zeros."""
        try:
            self._run(zeros(self.input_specs))
        except RunFailed:
            return False
        return True

    def _elsewhere(self, given: Mapping[str, Array]) -> dict[str, Array] | None:
        """The answer of the next delegate of the chain that gives one, which then stays; None, and all
        as it was, when none does."""
        before = (self._built, list(self._left), list(self._faults))
        self._faults.append(f"{self._built.spec.name} failed while running the model")
        while self._left:
            try:
                self._built = self._next()
                self._shapes, self._used = None, False
                return self._run(given)
            except EngineFailed:
                break
            except RunFailed:
                continue
        self._built, self._left, self._faults = before
        self._shapes, self._used = None, True
        return None

    def _next(self) -> _Built:
        """The next delegate of the chain that loads the model."""
        while self._left:
            spec = self._left.pop(0)
            self._say(f"loading it with {spec.name}")
            try:
                delegate = kinds()[spec.kind](spec)
                interpreter = delegate.interpreter(self._path, self._threads)
                taken, nodes = count_taken(interpreter)
            except DelegateFailed as fault:
                self._faults.append(f"{spec.name}: {fault}")
                continue
            if not taken and nodes and self._left and spec.kind != "builtin":
                # What it leaves to the builtin kernels in full is served under their name.
                if spec.kind == "external":
                    self._faults.append(f"{spec.name} took none of the model's {nodes} nodes")
                continue
            return _Built(spec, delegate, interpreter, taken, nodes)
        raise EngineFailed(self.degraded)

    def _bind(self) -> tuple[list[_Tensor], list[_Tensor]]:
        """Inputs and outputs by the names of the model's signature, or else by its tensors'."""
        interpreter = self._built.interpreter
        inputs = {int(d["index"]): d for d in interpreter.get_input_details()}
        outputs = {int(d["index"]): d for d in interpreter.get_output_details()}
        signatures = interpreter._get_full_signature_list()
        for key in sorted(signatures, key=lambda k: (k != _DEFAULT_SIGNATURE, k)):
            named = signatures[key]
            if set(named["inputs"].values()) == set(inputs) and set(named["outputs"].values()) <= set(
                outputs
            ):
                return _tensors(named["inputs"], inputs), _tensors(named["outputs"], outputs)
        return _tensors(_plain_names(inputs), inputs), _tensors(_plain_names(outputs), outputs)

    def _learn_rows(self) -> None:
        """Which first dimensions grow with the inputs' own: a converter may forget to say so of outputs.

        Found by a run on two rows; when the model cannot take two, its first dimension is no free one.
        """
        free = [t for t in self.inputs if t.spec.shape and t.spec.shape[0] == -1]
        if not free:
            return
        shapes: list[list[tuple[int, ...]]] = []
        try:
            for rows in (1, 2):
                filled = {t.spec.name: _zeros(t.spec, rows) for t in self.inputs}
                shapes.append([array.shape for array in self._run(filled).values()])
        except RunFailed as fault:
            if shapes and fault.shape:
                for tensor in free:
                    tensor.spec = _with_first(tensor.spec, 1)
            return
        for tensor, one, two in zip(self.outputs, *shapes, strict=True):
            if one and two and one[0] != two[0]:
                tensor.spec = _with_first(tensor.spec, -1)


def zeros(specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Inputs of nothing but zeros, one for every free dimension."""
    return {spec.name: _zeros(spec, 1) for spec in specs}


def _zeros(spec: TensorSpec, rows: int) -> Array:
    shape = [rows if at == 0 and dim == -1 else 1 if dim == -1 else dim for at, dim in enumerate(spec.shape)]
    if spec.datatype == "BYTES":
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, dtype=_DTYPES[spec.datatype])


def _padded(array: Array, count: int) -> Array:
    """The array, or zeros with so many in place of none where it has no elements."""
    if array.size:
        return array
    shape = tuple(dim or count for dim in array.shape)
    return np.full(shape, b"", dtype=object) if array.dtype.hasobject else np.zeros(shape, array.dtype)


def _shrunk(one: Array, two: Sequence[int]) -> Array:
    """An output without elements, by its shapes with one and with two of what is missing."""
    if len(two) != one.ndim:
        raise RunFailed(shape=True)
    shape = tuple(2 * a - b for a, b in zip(one.shape, two, strict=True))
    if min(shape, default=1) < 0 or math.prod(shape):
        raise RunFailed(shape=True)
    return np.empty(shape, one.dtype)


def _with_first(spec: TensorSpec, dim: int) -> TensorSpec:
    return TensorSpec(spec.name, spec.datatype, (dim, *spec.shape[1:]), spec.optional)


def _read(interpreter: Any, tensor: _Tensor) -> Array:
    """A copy; BYTES as an array of objects, whatever the runtime makes of them."""
    array = interpreter.get_tensor(tensor.index)
    return array.astype(object) if array.dtype.kind == "S" else array


def _tensors(indices: Mapping[str, int], details: Mapping[int, Any]) -> list[_Tensor]:
    found: list[_Tensor] = []
    for name, index in indices.items():
        detail = details[int(index)]
        datatype = _DATATYPES.get(detail["dtype"])
        if datatype is None:
            raise EngineFailed(f"tensor {name[:64]!r} has a datatype that the protocol cannot carry")
        signed = [int(dim) for dim in detail["shape_signature"]] or [int(dim) for dim in detail["shape"]]
        found.append(_Tensor(TensorSpec(name, datatype, tuple(signed)), int(index)))
    return found


def _plain_names(details: Mapping[int, Any]) -> dict[str, int]:
    """Tensors' names less what a converter adds, `serving_default_x:0`; as they are where two would be
    the same. Raises EngineFailed when they are not unique even so."""
    whole = [detail["name"] for detail in details.values()]
    plain = [name.removeprefix(f"{_DEFAULT_SIGNATURE}_").removesuffix(":0") for name in whole]
    names = plain if len(set(plain)) == len(plain) and "" not in plain else whole
    if len(set(names)) != len(names) or "" in names:
        raise EngineFailed("the model's inputs or outputs have no names that tell them apart")
    return dict(zip(names, details, strict=True))
