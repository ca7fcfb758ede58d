"""ONNX Runtime: ONNX files, on the CPU, or on CUDA where the pool has a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from gateway.pool.runtimes._interface import DATATYPES, Array, LoadError, Session
from oip.signature import Signature, TensorSpec

_TYPES = {"tensor(float)": "FP32", "tensor(double)": "FP64", "tensor(bool)": "BOOL"}
_TYPES |= {
    f"tensor({name})": datatype for name, datatype in DATATYPES.items() if name.startswith(("int", "uint"))
}
_TYPES["tensor(float16)"] = "FP16"
_CUDA = "CUDAExecutionProvider"
_QUIET = 4
"""Only what is fatal: failures come back as exceptions."""


class OnnxRuntime:
    """`runtime: onnxruntime`."""

    kind: ClassVar[str] = "onnxruntime"
    formats: ClassVar[tuple[str, ...]] = ("onnx",)

    def load(self, model: bytes, resources: Mapping[str, float]) -> Session:
        try:
            import onnxruntime
        except ImportError:
            raise LoadError("onnxruntime is not installed: install tidegate[pool]") from None
        wanted = ["CPUExecutionProvider"]
        if resources.get("GPU"):
            if _CUDA not in onnxruntime.get_available_providers():
                raise LoadError(
                    "the pool has a GPU and this onnxruntime has no CUDA: install onnxruntime-gpu, or take "
                    "GPU off the pool's resources"
                )
            wanted.insert(0, _CUDA)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = max(1, math.ceil(resources.get("CPU", 1)))
        options.log_severity_level = _QUIET
        try:
            session = onnxruntime.InferenceSession(model, options, providers=wanted)
        except Exception as error:
            raise LoadError(f"onnxruntime cannot open it ({type(error).__name__})") from None
        if wanted[0] not in session.get_providers():
            # It falls back to the CPU by itself, and says so only in its log.
            raise LoadError("CUDA could not be started on this replica's GPU")
        return _OnnxSession(session, onnxruntime.RunOptions)


class _OnnxSession:
    def __init__(self, session: Any, options: Callable[[], Any]) -> None:
        self._session = session
        self._options = options
        self._running: Any = None
        self.signature = Signature(
            tuple(_spec(tensor) for tensor in session.get_inputs()),
            tuple(_spec(tensor) for tensor in session.get_outputs()),
        )
        self._names = [tensor.name for tensor in self.signature.outputs]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        # Of its own for every run: what ended one must not end the next.
        self._running = options = self._options()
        # What it gives is memory of its own for every run.
        found = self._session.run(self._names, dict(inputs), options)
        return {name: np.asarray(array) for name, array in zip(self._names, found, strict=True)}

    def stop(self) -> None:
        if (options := self._running) is not None:
            options.terminate = True


def _spec(tensor: Any) -> TensorSpec:
    datatype = _TYPES.get(tensor.type)
    if datatype is None:
        raise LoadError(f"{tensor.name!r} is a {tensor.type}, which pools do not carry")
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in tensor.shape)
    return TensorSpec(tensor.name, datatype, shape)
