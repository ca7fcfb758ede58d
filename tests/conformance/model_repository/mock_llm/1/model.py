"""Decoupled text model: echoes PROMPT as TEXT.

Request parameters: REPETITION (responses when STREAM, default 1), DELAY (seconds before each),
FAIL_LAST (end with an error), OUTPUT_0_DIM (empty TEXT). STREAM false: exactly one response.
"""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            self.answer(request)
        return None

    def answer(self, request):
        params = json.loads(request.parameters() or "{}")
        prompt = pb_utils.get_input_tensor_by_name(request, "PROMPT").as_numpy().reshape(-1)
        stream = bool(pb_utils.get_input_tensor_by_name(request, "STREAM").as_numpy().reshape(-1)[0])
        text = np.array([], dtype=np.object_) if params.get("OUTPUT_0_DIM") else prompt
        sender = request.get_response_sender()

        def response():
            return pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)])

        if not stream:
            sender.send(response(), flags=FINAL)
            return
        for _ in range(int(params.get("REPETITION", 1))):
            time.sleep(float(params.get("DELAY", 0)))
            if sender.is_cancelled():
                break
            sender.send(response())
        if params.get("FAIL_LAST"):
            error = pb_utils.TritonError("An Error Occurred")
            sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
        else:
            sender.send(flags=FINAL)
