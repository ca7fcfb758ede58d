"""OUTPUT is the running sum of the sequence; any kind of correlation id. CORR is the id as text."""

import numpy as np
import triton_python_backend_utils as pb_utils


def control(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy().reshape(-1)[0]


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        value = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        if not control(request, "READY"):  # an empty slot of the batch
            empty = np.full(value.shape, b"", dtype=np.object_)
            return pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT", np.zeros_like(value)), pb_utils.Tensor("CORR", empty)]
            )
        start, end = bool(control(request, "START")), bool(control(request, "END"))
        key = request.correlation_id()
        total = value.astype(np.int64) + (0 if start else self.sums.get(key, 0))
        if end:
            self.sums.pop(key, None)
        else:
            self.sums[key] = total
        out = total
        corr = np.full(value.shape, str(key).encode(), dtype=np.object_)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUTPUT", out.astype(np.int32)), pb_utils.Tensor("CORR", corr)]
        )
