"""An agent's worker that answers for placeholders in Python, and is the real one for every other file.

`RuntimeSettings(worker="tests.conformance.device_worker")` has it run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge_agent.runtime import worker
from edge_agent.runtime.engine import Array, RunFailed
from oip.signature import TensorSpec
from tests.conformance.device_models import PYTHON_MODELS, python_name
from tests.conformance.python_models import Failed, PythonModel


class _PythonEngine:
    """In the place of `edge_agent.runtime.engine.Engine`."""

    delegate, taken, nodes, degraded = "python", 0, 1, ""

    def __init__(self, model: PythonModel) -> None:
        self._model = model
        self.input_specs: tuple[TensorSpec, ...] = model.inputs
        self.output_specs: tuple[TensorSpec, ...] = model.outputs

    def run(self, given: Mapping[str, Array]) -> dict[str, Array]:
        try:
            return self._model.run(given, lambda: False)
        except (Failed, RuntimeError):
            raise RunFailed(shape=False) from None

    def refresh(self) -> None: ...


class _PythonWorker(worker.Worker):
    def load(self, header: Mapping[str, Any]) -> Any:
        name = python_name(Path(header["path"]).read_bytes())
        if name is None:
            return super().load(header)
        engine = _PythonEngine(PYTHON_MODELS[name])
        self.loaded(engine, stateful=False)
        return engine


if __name__ == "__main__":
    sys.exit(worker.main(_PythonWorker))
