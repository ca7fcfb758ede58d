"""A backend that answers at once: `python -m tests.bench.fixed`.

Serves the workload's models on both bindings from one loop, with answers made beforehand, so that a
table shows what a path costs and not what a model does. Prints one JSON line with its addresses
and runs until SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from tests.bench.workload import PAYLOADS, SERVICE, Payload, pb

BY_MODEL = {payload.model: payload for payload in PAYLOADS.values()}
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def answer_to(request: bytes) -> bytes:
    """The answer whose model is named at the request's beginning; no more of it is read."""
    for payload in PAYLOADS.values():
        if payload.model.encode() in request[:64]:
            return payload.grpc_answer
    raise KeyError("no such model")


def metadata(payload: Payload) -> Any:
    answer = pb.ModelMetadataResponse(name=payload.model, versions=["1"], platform="fixed")
    answer.inputs.add(name="INPUT0", datatype="FP32", shape=payload.shape)
    answer.outputs.add(name="OUTPUT0", datatype="FP32", shape=payload.shape)
    return answer


def config(payload: Payload) -> Any:
    answer = pb.ModelConfigResponse()
    answer.config.name = payload.model
    answer.config.input.add(name="INPUT0", data_type="TYPE_FP32", dims=payload.shape)
    answer.config.output.add(name="OUTPUT0", data_type="TYPE_FP32", dims=payload.shape)
    return answer


CONTROL: dict[str, Callable[[bytes], Any]] = {
    "ServerLive": lambda _: pb.ServerLiveResponse(live=True),
    "ServerReady": lambda _: pb.ServerReadyResponse(ready=True),
    "ServerMetadata": lambda _: pb.ServerMetadataResponse(name="fixed", version="1"),
    "ModelReady": lambda body: pb.ModelReadyResponse(
        ready=pb.ModelReadyRequest.FromString(body).name in BY_MODEL
    ),
    "ModelMetadata": lambda body: metadata(BY_MODEL[pb.ModelMetadataRequest.FromString(body).name]),
    "ModelConfig": lambda body: config(BY_MODEL[pb.ModelConfigRequest.FromString(body).name]),
    "ModelStatistics": lambda _: pb.ModelStatisticsResponse(),
}


class Handlers(grpc.GenericRpcHandler):
    """Bytes in and out; control calls are answered from the stubs, inference from what is ready."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        _, service, method = str(handler_call_details.method).split("/")
        if service != SERVICE:
            return None
        if method == "ModelInfer":
            return grpc.unary_unary_rpc_method_handler(self.infer)
        reply = CONTROL.get(method)
        if reply is None:
            return None

        async def control(body: bytes, _context: object) -> bytes:
            return reply(body).SerializeToString()

        return grpc.unary_unary_rpc_method_handler(control)

    async def infer(self, body: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        try:
            return answer_to(body)
        except KeyError:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such model")


async def serve_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Keep-alive HTTP/1.1, bodies by Content-Length; whatever names no model gets an empty 200."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(content_length(head))
            path = head.split(b" ", 2)[1].decode()
            payload = BY_MODEL.get(path.split("/")[3]) if path.startswith("/v2/models/") else None
            empty = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
            writer.write(payload.http_answer if payload else empty)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def content_length(head: bytes) -> int:
    """The value of Content-Length in a block of headers, 0 without one."""
    _, found, rest = head.lower().partition(b"\r\ncontent-length:")
    return int(rest.split(b"\r\n", 1)[0]) if found else 0


async def main() -> None:
    server = grpc.aio.server(options=UNLIMITED)
    server.add_generic_rpc_handlers((Handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    http = await asyncio.start_server(serve_http, "127.0.0.1", 0, limit=2**21)
    http_port = http.sockets[0].getsockname()[1]
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    ready = {"event": "ready", "grpc": f"127.0.0.1:{port}", "http": f"127.0.0.1:{http_port}"}
    print(json.dumps(ready), flush=True)
    await stop.wait()
    http.close()
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(main())
