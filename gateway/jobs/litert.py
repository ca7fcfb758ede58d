"""TFLite files as devices compute them, in the maintained runtime, which a damaged file does not crash.

Not OpenVINO, which reads them too: it computes int8 in FP32, so it would not see what quantizing costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gateway.pool.runtimes._interface import DATATYPES, Array, LoadError
from oip.signature import Signature, TensorSpec

_DEFAULT_SIGNATURE = "serving_default"


class LiteRtSession:
    """One opened file. `signature`: its tensors by the names of the file's signature, else by their own
    less what a converter adds. Not to be used by two threads at once. Raises LoadError."""

    def __init__(self, content: bytes, threads: int) -> None:
        try:
            from ai_edge_litert.interpreter import Interpreter
        except ImportError:
            raise LoadError("ai-edge-litert is not installed: install tidegate[pool]") from None
        try:
            self._interpreter: Any = Interpreter(model_content=content, num_threads=threads)
            self._interpreter.allocate_tensors()
            inputs, outputs = self._interpreter.get_input_details(), self._interpreter.get_output_details()
            signatures = self._interpreter._get_full_signature_list()
        except (ValueError, RuntimeError) as error:
            raise LoadError(f"litert cannot open it ({type(error).__name__})") from None
        signature = signatures.get(_DEFAULT_SIGNATURE) or next(iter(signatures.values()), None)
        self._inputs = _named(inputs, signature and signature["inputs"])
        self._outputs = _named(outputs, signature and signature["outputs"])
        self.signature = Signature(_specs(self._inputs), _specs(self._outputs))

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Every output by name, as a copy; nothing is left of an earlier run."""
        for name, array in inputs.items():
            self._interpreter.resize_tensor_input(self._inputs[name]["index"], array.shape)
        self._interpreter.allocate_tensors()
        self._interpreter.reset_all_variables()
        for name, array in inputs.items():
            self._interpreter.set_tensor(self._inputs[name]["index"], array)
        self._interpreter.invoke()
        return {
            name: np.array(self._interpreter.get_tensor(detail["index"]))
            for name, detail in self._outputs.items()
        }


def _named(details: list[dict[str, Any]], signature: Mapping[str, int] | None) -> dict[str, dict[str, Any]]:
    by_index = {int(detail["index"]): detail for detail in details}
    if signature is not None and {int(index) for index in signature.values()} <= by_index.keys():
        return {name: by_index[int(index)] for name, index in signature.items()}
    return {
        detail["name"].removeprefix(f"{_DEFAULT_SIGNATURE}_").removesuffix(":0"): detail for detail in details
    }


def _specs(details: Mapping[str, dict[str, Any]]) -> tuple[TensorSpec, ...]:
    found: list[TensorSpec] = []
    for name, detail in details.items():
        datatype = DATATYPES.get(np.dtype(detail["dtype"]).name)
        if datatype is None:
            raise LoadError(f"{name!r} is of a type that is not measured with")
        shape = detail["shape_signature"] if len(detail["shape_signature"]) else detail["shape"]
        found.append(TensorSpec(name, datatype, tuple(int(size) for size in shape)))
    return tuple(found)
