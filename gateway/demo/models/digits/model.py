"""Runs model.onnx beside it with ONNX Runtime, one thread, after an optional wait per request."""

import json
import time
from pathlib import Path

import onnxruntime
import triton_python_backend_utils as pb_utils  # pyright: ignore[reportMissingImports]  # Triton's own


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self._delay_s = float(parameters["delay_ms"]["string_value"]) / 1000
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        path = Path(args["model_repository"], args["model_version"], "model.onnx")
        self._session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        if self._delay_s:
            time.sleep(self._delay_s)
        pixels = pb_utils.get_input_tensor_by_name(request, "pixels").as_numpy()
        (probabilities,) = self._session.run(["probabilities"], {"pixels": pixels})
        return pb_utils.InferenceResponse([pb_utils.Tensor("probabilities", probabilities)])
