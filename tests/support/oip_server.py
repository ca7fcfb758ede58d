"""A server of the Open Inference Protocol that behaves as MLServer or as KServe's Python server do, in what
makes them differ from Triton. `tests/integration/test_oip_servers.py` holds the real ones to the same.

Both know no configurations and no statistics, and speak KServe's dialect: a double or uint64 parameter
arrives without a value. `python -m tests.support.oip_server FLAVOUR PORT LOG` serves until it is killed and
prints `ready` once it does.

| | mlserver | kserve |
| --- | --- | --- |
| index of models | yes, states as `State.READY` | none |
| ready, of a model it has not | fails: UNKNOWN | NOT_FOUND |
| wrong input | INTERNAL, quoting the data | INVALID_ARGUMENT |
| raw data of a wrong length | INTERNAL | INTERNAL |
| model that raises | INTERNAL, quoting the data | INTERNAL |
| answers to raw requests | raw | raw; of `typed` models typed, of `mixed` both |
| answers to typed requests | typed | as to raw ones |
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from gateway.demo.triton import Ports, _free_ports
from tests.support.processes import ROOT

pb: Any = service_pb2
SERVICE = "/inference.GRPCInferenceService/"
NUMPY = {"FP32": np.float32, "INT32": np.int32, "INT8": np.int8}
TYPED = {"FP32": "fp32_contents", "INT32": "int_contents", "INT8": "int_contents", "BYTES": "bytes_contents"}
START_S = 30.0


class Refused(Exception):
    """How a call ends: a status and its text."""

    def __init__(self, status: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Model:
    """Gives its inputs back. `form`: how its data leaves KServe's server; `told`: whether it says what it takes."""

    datatype: str
    shape: tuple[int, ...]
    form: str = "raw"
    told: bool = True


MODELS = {
    "id2d_fp32": Model("FP32", (-1, -1)),
    "slow_identity": Model("INT32", (-1,)),
    "typed_fp32": Model("FP32", (-1, -1), form="typed"),
    "typed_int8": Model("INT8", (-1, -1), form="typed"),
    "typed_bytes": Model("BYTES", (-1, -1), form="typed"),
    "mixed_fp32": Model("FP32", (-1, -1), form="mixed"),
    "untold_fp32": Model("FP32", (-1, -1), told=False),
    "boom": Model("FP32", (-1, -1)),
}


class OipServer:
    """`flavour` is "mlserver" or "kserve". `parameters` are those of the last request, as its model sees them."""

    def __init__(self, flavour: str, log: Path | None = None) -> None:
        self.flavour = flavour
        self.models = dict(MODELS)
        self.index = [*MODELS]
        """Names in the index."""
        self.parameters: dict[str, object] = {}
        self._log = log

    def handlers(self) -> grpc.GenericRpcHandler:
        calls: dict[str, Callable[[bytes, Any], Awaitable[bytes]]] = {
            "ServerLive": self._live,
            "ModelReady": self._ready,
            "ModelMetadata": self._metadata,
            "ModelInfer": self._infer,
        }
        if self.flavour == "mlserver":
            calls["RepositoryIndex"] = self._index
        served = {
            SERVICE + name: grpc.unary_unary_rpc_method_handler(_ending(call)) for name, call in calls.items()
        }

        class Handlers(grpc.GenericRpcHandler):
            def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
                return served.get(handler_call_details.method)

        return Handlers()

    async def _live(self, body: bytes, context: Any) -> bytes:
        return pb.ServerLiveResponse(live=True).SerializeToString()

    async def _ready(self, body: bytes, context: Any) -> bytes:
        request = pb.ModelReadyRequest.FromString(body)
        if self.flavour == "mlserver":
            try:
                self._model(request.name, request.version)
            except Refused as missing:
                raise Refused(
                    grpc.StatusCode.UNKNOWN, f"Unexpected <class 'ModelNotFound'>: {missing}"
                ) from None
        self._model(request.name, request.version)
        return pb.ModelReadyResponse(ready=True).SerializeToString()

    async def _metadata(self, body: bytes, context: Any) -> bytes:
        request = pb.ModelMetadataRequest.FromString(body)
        model = self._model(request.name, request.version)
        response = pb.ModelMetadataResponse(name=request.name)
        if model.told:
            response.inputs.add(name="INPUT0", datatype=model.datatype, shape=model.shape)
            response.outputs.add(name="OUTPUT0", datatype=model.datatype, shape=model.shape)
            if model.form == "mixed":
                response.outputs.add(name="COUNT", datatype="INT32", shape=[1])
        return response.SerializeToString()

    async def _index(self, body: bytes, context: Any) -> bytes:
        response = pb.RepositoryIndexResponse()
        for name in self.index:
            response.models.add(
                name=name, state="State.READY" if name in self.models else "State.UNAVAILABLE"
            )
        return response.SerializeToString()

    async def _infer(self, body: bytes, context: Any) -> bytes:
        try:
            request = pb.ModelInferRequest.FromString(body)
        except DecodeError as error:
            raise Refused(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}") from None
        model = self._model(request.model_name, request.model_version)
        self.parameters = {key: _value(parameter) for key, parameter in request.parameters.items()}
        if request.model_name == "slow_identity":
            await self._sleep(request)
        (given,) = request.inputs
        data = _data(given, request.raw_input_contents)
        if request.model_name == "boom":
            raise self._exception(f"cannot take {data}")
        if given.datatype != model.datatype:
            if self.flavour == "mlserver":
                raise self._exception(f"cannot take {data}")
            text = f"got unexpected datatype {given.datatype} from numpy array, expected {model.datatype}"
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, text)
        if len(data) != int(np.prod(given.shape)):
            raise self._exception(f"cannot reshape {data}")
        return self._answer(request, model, data).SerializeToString()

    def _answer(self, request: Any, model: Model, data: list[Any]) -> Any:
        (given,) = request.inputs
        response = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
        raw = model.form != "typed" if self.flavour == "kserve" else bool(request.raw_input_contents)
        if model.form == "mixed":
            count = response.outputs.add(name="COUNT", datatype="INT32", shape=[1])
            count.contents.int_contents.append(len(data))
        output = response.outputs.add(name="OUTPUT0", datatype=given.datatype, shape=given.shape)
        if self.flavour == "kserve" and raw:
            output.parameters["binary_data_size"].int64_param = len(_packed(given.datatype, data))
        if raw:
            response.raw_output_contents.append(_packed(given.datatype, data))
        else:
            getattr(output.contents, TYPED[given.datatype]).extend(data)
        return response

    async def _sleep(self, request: Any) -> None:
        try:
            await asyncio.sleep(float(request.parameters["seconds"].string_param or 0))
        except asyncio.CancelledError:
            if self._log is not None:
                with self._log.open("a") as log:
                    log.write(json.dumps({"id": request.id, "cancelled": True}) + "\n")
            raise

    def _model(self, name: str, version: str) -> Model:
        if name not in self.models or version not in ("", "1"):
            raise Refused(grpc.StatusCode.NOT_FOUND, f"Model {name} with version {version} not found")
        return self.models[name]

    def _exception(self, text: str) -> Refused:
        return Refused(
            grpc.StatusCode.INTERNAL, text if self.flavour == "mlserver" else "Internal server error"
        )


def _ending(call: Callable[[bytes, Any], Awaitable[bytes]]) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def ended(body: bytes, context: Any) -> bytes:
        try:
            return await call(body, context)
        except Refused as refused:
            await context.abort(refused.status, str(refused))
            raise

    return ended


def _value(parameter: Any) -> object:
    """As KServe's dialect has it, which knows neither double_param nor uint64_param."""
    kind = parameter.WhichOneof("parameter_choice")
    return getattr(parameter, kind) if kind in ("bool_param", "int64_param", "string_param") else None


def _data(given: Any, raws: Any) -> list[Any]:
    if not raws:
        return list(getattr(given.contents, TYPED[given.datatype]))
    if given.datatype != "BYTES":
        size = np.dtype(NUMPY[given.datatype]).itemsize
        return np.frombuffer(raws[0][: len(raws[0]) // size * size], NUMPY[given.datatype]).tolist()
    found, raw = [], raws[0]
    while raw:
        size = int.from_bytes(raw[:4], "little")
        found.append(raw[4 : 4 + size])
        raw = raw[4 + size :]
    return found


def _packed(datatype: str, data: list[Any]) -> bytes:
    if datatype == "BYTES":
        return b"".join(len(item).to_bytes(4, "little") + item for item in data)
    return np.array(data, NUMPY[datatype]).tobytes()


async def start(server: OipServer, port: int = 0) -> tuple[grpc.aio.Server, int]:
    """Serving on loopback in this process, and the port."""
    running = grpc.aio.server(
        options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    )
    port = running.add_insecure_port(f"127.0.0.1:{port}")
    running.add_generic_rpc_handlers((server.handlers(),))
    await running.start()
    return running, port


class OipProcess:
    """Such a server in a process of its own, at one port."""

    def __init__(self, flavour: str, log: Path) -> None:
        self.port = _free_ports(Ports(0, 0, 0)).grpc
        self._command = [sys.executable, "-m", "tests.support.oip_server", flavour, str(self.port), str(log)]
        self._process: subprocess.Popen[str] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(START_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


async def main(flavour: str, port: int, log: Path) -> None:
    server, _ = await start(OipServer(flavour, log), port)
    print("ready", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
