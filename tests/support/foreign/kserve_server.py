"""KServe's Python server with models for tests: `python kserve_server.py PORT`, in KServe's environment.

The gRPC half alone, on loopback alone: KServe itself listens on every address of the machine. It prints
`ready` once it serves.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc.aio
from kserve import InferInput, InferOutput, InferRequest, InferResponse, Model, ModelRepository
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.grpc.server import GRPCServer
from kserve.protocol.model_repository_extension import ModelRepositoryExtension

LIMIT = 64 * 2**20


class OnLoopback:
    """A server that listens on loopback, whatever address it is told, and says when it is ready."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def add_insecure_port(self, address: str) -> int:
        return self._server.add_insecure_port(f"127.0.0.1:{address.rpartition(':')[2]}")

    async def start(self) -> None:
        await self._server.start()
        print("ready", flush=True)


class Told(Model):
    """Says what it takes; OUTPUT0 is INPUT0, as an array (so raw) or, in `mixed`, a second as a list."""

    def __init__(self, name: str, datatype: str, kind: str) -> None:
        super().__init__(name)
        self._datatype, self._kind = datatype, kind
        self.ready = True

    def get_input_types(self) -> list[dict[str, Any]]:
        return [{"name": "INPUT0", "datatype": self._datatype, "shape": [-1, -1]}]

    def get_output_types(self) -> list[dict[str, Any]]:
        return [{"name": "OUTPUT0", "datatype": self._datatype, "shape": [-1, -1]}]

    def predict(
        self, payload: InferRequest, headers: Any = None, response_headers: Any = None
    ) -> InferResponse:
        given: InferInput = payload.inputs[0]
        array = given.as_numpy()
        outputs = [InferOutput("OUTPUT0", list(array.shape), self._datatype)]
        if self._kind == "typed":
            outputs[0].data = array.ravel().tolist()
        else:
            outputs[0].set_data_from_numpy(array, binary_data=True)
        if self._kind == "mixed":
            outputs.insert(0, InferOutput("COUNT", [1], "INT64", data=[array.size]))
        if self._kind == "boom":
            raise ValueError(f"cannot take {array.tolist()}")
        parameters = {key: _shown(value) for key, value in (payload.parameters or {}).items()}
        return InferResponse(payload.id, self.name, outputs, parameters=parameters)


def _shown(parameter: Any) -> str:
    """As KServe reads it: a parameter without a value is none that it knows."""
    kind = parameter.WhichOneof("parameter_choice")
    return repr(None if kind is None else getattr(parameter, kind))


class Untold(Told):
    """The same without a word on what it takes."""

    def get_input_types(self) -> list[dict[str, Any]]:
        return []

    def get_output_types(self) -> list[dict[str, Any]]:
        return []


async def main(port: int) -> None:
    make = grpc.aio.server
    grpc.aio.server = lambda *arguments, **options: OnLoopback(make(*arguments, **options))
    models = ModelRepository()
    for model in (
        Told("id2d_fp32", "FP32", "raw"),
        Told("typed_fp32", "FP32", "typed"),
        Told("typed_bytes", "BYTES", "typed"),
        Told("mixed_fp32", "FP32", "mixed"),
        Untold("untold_fp32", "FP32", "raw"),
        Told("boom", "FP32", "boom"),
    ):
        models.update(model)
    limits = {"grpc_max_send_message_length": LIMIT, "grpc_max_receive_message_length": LIMIT}
    server = GRPCServer(port, DataPlane(models), ModelRepositoryExtension(models), kwargs=limits)
    await server.start(4)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
