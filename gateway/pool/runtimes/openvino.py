"""OpenVINO: ONNX and TFLite files, on the CPU, or on Intel's GPU or NPU where the pool has one."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gateway.pool.runtimes._interface import DATATYPES, Array, LoadError, Session
from oip.signature import Signature, TensorSpec

_TFLITE = (slice(4, 8), b"TFL3")
"""Where a TFLite file says that it is one."""


class OpenVino:
    """`runtime: openvino`."""

    kind: ClassVar[str] = "openvino"
    formats: ClassVar[tuple[str, ...]] = ("onnx", "tflite")

    def load(self, model: bytes, resources: Mapping[str, float]) -> Session:
        try:
            import openvino
        except ImportError:
            raise LoadError("openvino is not installed: install tidegate[pool]") from None
        core = openvino.Core()
        device = next((name for name in ("NPU", "GPU") if resources.get(name)), "CPU")
        if not any(found.split(".")[0] == device for found in core.available_devices):
            raise LoadError(
                f"the pool has a {device} and OpenVINO finds none here: install its driver, or take "
                f"{device} off the pool's resources"
            )
        # By default it rounds to what the device likes best, and is off by 8e-3 where 1e-3 matters.
        options: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        if device == "CPU":
            options["INFERENCE_NUM_THREADS"] = max(1, math.ceil(resources.get("CPU", 1)))
        try:
            compiled = core.compile_model(_read(core, model), device, options)
        except Exception as error:
            raise LoadError(f"openvino cannot open it ({_last_words(error)})") from None
        return _OpenVinoSession(compiled)


class _OpenVinoSession:
    def __init__(self, compiled: Any) -> None:
        self._request = compiled.create_infer_request()
        self.signature = Signature(
            tuple(_spec(port) for port in compiled.inputs), tuple(_spec(port) for port in compiled.outputs)
        )
        self._outputs = [(spec.name, index) for index, spec in enumerate(self.signature.outputs)]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        # A model's variables live as long as the request: what one caller left is not the next one's.
        self._request.reset_state()
        self._request.infer(dict(inputs))
        return {name: np.array(self._request.get_output_tensor(index).data) for name, index in self._outputs}

    def stop(self) -> None:
        self._request.cancel()


def _read(core: Any, model: bytes) -> Any:
    where, mark = _TFLITE
    if model[where] != mark:
        return core.read_model(model)
    # Its TFLite reader takes files alone.
    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
        path = Path(folder) / "model.tflite"
        path.write_bytes(model)
        return core.read_model(path)


def _spec(port: Any) -> TensorSpec:
    name = port.get_any_name() if port.names else port.get_node().get_friendly_name()
    try:
        datatype = DATATYPES[np.dtype(port.element_type.to_dtype()).name]
    except (KeyError, TypeError, RuntimeError):
        kind = port.element_type.get_type_name()
        raise LoadError(f"{name!r} is of type {kind}, which pools do not carry") from None
    shape = tuple(size.get_length() if size.is_static else -1 for size in port.partial_shape)
    return TensorSpec(name, datatype, shape)


def _last_words(error: Exception) -> str:
    """The last line of a text that is mostly positions in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    return type(error).__name__ if "/" in last or len(last) > 200 else last.rstrip(".")
