"""A gateway in front of one OIP server, with callers of both bindings."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from gateway.core.config.load import kinds_in, parse_config
from gateway.demo.triton import Ports, _free_ports
from gateway.serve.runtime import Runtime
from gateway.serve.settings import Address, Listen, ReplicaSettings
from tests.support.oip_server import SERVICE
from tests.support.replica import _nobody

pb: Any = service_pb2
CONFIG = """
version: 1
gateway: {{name: gw, location: {{tier: cloud}}}}
endpoints:
  - {{name: s, kind: oip, url: "grpc://127.0.0.1:{port}", location: {{tier: cloud}}{discover}}}
models: [{models}]
privacy: {{default: any, classes: {{any: {{allow: [{{tier: cloud}}]}}}}}}
policies: [{{name: default, match: {{}}, weights: {{latency: 1}}}}]
"""


@dataclass
class Front:
    """The gateway, and a channel and a client to it."""

    runtime: Runtime
    channel: grpc.aio.Channel
    http: httpx.AsyncClient

    async def call(self, rpc: str, message: Any) -> bytes:
        return await self.channel.unary_unary(SERVICE + rpc)(message.SerializeToString(), timeout=10)

    async def infer(self, message: Any) -> Any:
        """The answer, whose data is in the one form."""
        answer = pb.ModelInferResponse.FromString(await self.call("ModelInfer", message))
        assert len(answer.raw_output_contents) == len(answer.outputs)
        assert not any(output.contents.ListFields() for output in answer.outputs)
        return answer

    async def refused(self, message: Any) -> tuple[str, str]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.infer(message)
        return caught.value.code().name, caught.value.details() or ""

    async def post(self, model: str, document: dict[str, Any]) -> tuple[int, Any]:
        answer = await self.http.post(f"/v2/models/{model}/infer", json=document)
        return answer.status_code, answer.json()


@asynccontextmanager
async def gateway_to(port: int, names: Sequence[str], folder: Path) -> AsyncIterator[Front]:
    """To a server on loopback, with these models; without any, with those that it has."""
    models = ", ".join(f"{{name: {name}, variants: [{{endpoint: s}}]}}" for name in names)
    discover = "" if names else ", discover: {privacy: any}"
    async with gateway_of(CONFIG.format(port=port, discover=discover, models=models), folder) as front:
        yield front


@asynccontextmanager
async def gateway_of(text: str, folder: Path) -> AsyncIterator[Front]:
    """From the text of a configuration."""
    config = parse_config(text, "t.yaml", kinds_in("gateway.backends"), os.environ, folder)
    ports = _free_ports(Ports(0, 0, 0))
    listen = Listen(*(Address("127.0.0.1", port) for port in (ports.http, ports.grpc, ports.metrics)))
    runtime = Runtime(ReplicaSettings(config, "r", listen, folder), _nobody)
    await runtime.start()
    try:
        async with (
            grpc.aio.insecure_channel(
                str(listen.grpc), options=[("grpc.max_receive_message_length", -1)]
            ) as channel,
            httpx.AsyncClient(base_url=f"http://{listen.http}") as http,
        ):
            yield Front(runtime, channel, http)
    finally:
        await runtime.drain(2.0)


def request(model: str, values: np.ndarray[Any, Any], *, typed: bool = False) -> Any:
    message = pb.ModelInferRequest(model_name=model, id="7")
    datatype = {"float32": "FP32", "int32": "INT32", "int8": "INT8", "object": "BYTES"}[values.dtype.name]
    tensor = message.inputs.add(name="INPUT0", datatype=datatype, shape=values.shape)
    flat = values.ravel().tolist()
    if typed:
        field = {
            "FP32": "fp32_contents",
            "INT32": "int_contents",
            "INT8": "int_contents",
            "BYTES": "bytes_contents",
        }
        getattr(tensor.contents, field[datatype]).extend(flat)
    else:
        raw = (
            b"".join(len(x).to_bytes(4, "little") + x for x in flat)
            if datatype == "BYTES"
            else values.tobytes()
        )
        message.raw_input_contents.append(raw)
    return message
