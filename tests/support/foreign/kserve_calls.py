"""KServe's own client, in its environment: `kserve_calls.py HTTP GRPC` prints as JSON what every call gives.

Case -> what came of it: outputs with the hexadecimal digits of their bytes, or how it failed. The models are the
identities id_DATATYPE and `simple` of the conformance models.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable
from typing import Any

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput

VALUES = {
    "BOOL": np.array([True, False]),
    "UINT8": np.array([0, 255], np.uint8),
    "UINT16": np.array([0, 65535], np.uint16),
    "UINT32": np.array([0, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 2**53 + 1, 2**64 - 1], np.uint64),
    "INT8": np.array([-128, 127], np.int8),
    "INT16": np.array([-32768, 32767], np.int16),
    "INT32": np.array([-(2**31), 2**31 - 1], np.int32),
    "INT64": np.array([-(2**63), 2**53 + 1, 2**63 - 1], np.int64),
    "FP16": np.array([1.5, -0.0], np.float16),
    "FP32": np.array([0.1, -0.0, 3.4e38], np.float32),
    "FP64": np.array([0.1, 1e-308], np.float64),
    "BYTES": np.array([b"a", b"", "é".encode()], np.object_),
}
SIXTEEN = np.arange(16, dtype=np.int32)[None]
TIMEOUT_S = 20


def tensor(name: str, datatype: str, value: Any, binary: bool) -> InferInput:
    found = InferInput(name, list(value.shape), datatype)
    found.set_data_from_numpy(value, binary_data=binary)
    return found


def requests(binary: bool, binary_out: bool | None) -> list[tuple[str, InferRequest]]:
    """The name of each case and its request; `binary_out` None: the protocol knows no such question."""

    def outputs(*names: str) -> list[RequestedOutput] | None:
        return (
            None if binary_out is None else [RequestedOutput(n, {"binary_data": binary_out}) for n in names]
        )

    def request(model: str, inputs: list[InferInput], *wanted: str) -> InferRequest:
        return InferRequest(model, inputs, request_id="k1", request_outputs=outputs(*wanted))

    found = [
        (datatype, request(f"id_{datatype.lower()}", [tensor("INPUT0", datatype, value, binary)], "OUTPUT0"))
        for datatype, value in VALUES.items()
    ]
    pair = [tensor("INPUT0", "INT32", SIXTEEN, binary), tensor("INPUT1", "INT32", SIXTEEN[:, ::-1], binary)]
    empty = [tensor("INPUT0", "FP32", np.zeros(0, np.float32), binary)]
    wrong = [tensor("INPUT0", "INT32", SIXTEEN[0], binary)]
    found += [
        ("two outputs", request("simple", pair, "OUTPUT1", "OUTPUT0")),
        ("nothing", request("id_fp32", empty, "OUTPUT0")),
        ("another datatype", request("id_fp32", wrong, "OUTPUT0")),
        ("unknown model", request("nobody", wrong, "OUTPUT0")),
    ]
    return found


async def outcome(call: Awaitable[Any]) -> Any:
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return {"status": error.code().name, "error": error.details()}
    except httpx.HTTPStatusError as error:
        return {"status": error.response.status_code, "error": error.response.json()["error"]}
    except Exception as error:
        return {"client": type(error).__name__}
    if isinstance(answer, bool):
        return answer
    return {
        "model": [answer.model_name, answer.model_version, answer.id],
        "outputs": [[o.name, o.datatype, list(o.shape), digits(o.as_numpy())] for o in answer.outputs],
    }


def digits(value: Any) -> list[str] | str:
    if value.dtype == np.object_:
        items = value.ravel().tolist()
        return [(item.encode() if isinstance(item, str) else item).hex() for item in items]
    return np.ascontiguousarray(value).tobytes().hex()


async def main(http: str, grpc_address: str) -> None:
    found: dict[str, Any] = {}
    url = f"http://{http}"
    async with InferenceGRPCClient(grpc_address, timeout=TIMEOUT_S) as over_grpc:
        for name, request in requests(True, None):
            found[f"grpc {name}"] = await outcome(over_grpc.infer(request))
        found["grpc live"] = await outcome(over_grpc.is_server_live())
        found["grpc ready"] = await outcome(over_grpc.is_server_ready())
        found["grpc model ready"] = await outcome(over_grpc.is_model_ready("simple"))
        found["grpc no model ready"] = await outcome(over_grpc.is_model_ready("nobody"))
    async with InferenceRESTClient(RESTConfig(protocol="v2", timeout=TIMEOUT_S)) as over_http:
        for form in ("json", "binary"):
            binary = form == "binary"
            for name, request in requests(binary, binary):
                call = over_http.infer(url, request, model_name=request.model_name)
                found[f"{form} {name}"] = await outcome(call)
        found["http live"] = await outcome(over_http.is_server_live(url))
        found["http ready"] = await outcome(over_http.is_server_ready(url))
        found["http model ready"] = await outcome(over_http.is_model_ready(url, "simple"))
    print(json.dumps(found))


if __name__ == "__main__":
    logging.disable()
    asyncio.run(main(*sys.argv[1:3]))
