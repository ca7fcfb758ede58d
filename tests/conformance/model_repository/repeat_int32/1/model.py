"""Decoupled: one response per element of IN, DELAY[i] ms before each; execute returns after WAIT ms.

If STREAM_LOG names a file, one JSON line {id, sent, cancelled} is appended per request.
"""

import json
import os
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.threads = []
        self.log = os.environ.get("STREAM_LOG")

    def execute(self, requests):
        wait_ms = 0
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().reshape(-1)
            delays = pb_utils.get_input_tensor_by_name(request, "DELAY").as_numpy().reshape(-1)
            wait_ms = max(
                wait_ms, int(pb_utils.get_input_tensor_by_name(request, "WAIT").as_numpy().reshape(-1)[0])
            )
            sender = request.get_response_sender()
            if len(values) != len(delays):
                message = f"expected IN and DELAY shape to match, got [{len(values)}] and [{len(delays)}]"
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(message)), flags=FINAL)
                continue
            thread = threading.Thread(
                target=self.stream,
                args=(sender, request.request_id(), values.copy(), delays.copy()),
                daemon=True,
            )
            self.threads = [t for t in self.threads if t.is_alive()] + [thread]
            thread.start()
        time.sleep(wait_ms / 1000.0)
        return None

    def stream(self, sender, request_id, values, delays):
        sent, cancelled = 0, False
        for index, (value, delay) in enumerate(zip(values, delays, strict=True)):
            until = time.monotonic() + int(delay) / 1000.0
            while not cancelled and (left := until - time.monotonic()) > 0:
                time.sleep(min(left, 0.05))
                cancelled = sender.is_cancelled()
            if cancelled or sender.is_cancelled():
                cancelled = True
                break
            sender.send(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("OUT", np.array([value], dtype=np.int32)),
                        pb_utils.Tensor("IDX", np.array([index], dtype=np.uint32)),
                    ]
                )
            )
            sent += 1
        sender.send(flags=FINAL)
        if self.log:
            with open(self.log, "a") as f:
                f.write(json.dumps({"id": request_id, "sent": sent, "cancelled": cancelled}) + "\n")

    def finalize(self):
        for thread in self.threads:
            thread.join(timeout=5)
