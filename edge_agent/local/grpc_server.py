"""The device's gRPC listener: grpc.aio with raw bytes in and out.

Every method is registered in the stream-to-unary shape, which is the same on the wire and leaves the
message on the connection until a handler reads it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc

from edge_agent.local.handlers import Call, Handlers
from oip.errors import OipError
from oip.held import BodyShare
from oip.reasons import Reason
from oip.wiretext import header_value, status_message

MESSAGE_TIMEOUT_S = 60.0
_PREFIX = "/inference.GRPCInferenceService/"
_EOF: Any = grpc.aio.EOF  # pyright: ignore[reportAttributeAccessIssue]


class GrpcServer:
    """Listens on exactly `host:port` (port 0: a free one). A message has at most `max_message_bytes`."""

    def __init__(self, handlers: Handlers, host: str, port: int, *, max_message_bytes: int) -> None:
        self._methods = _Methods(handlers)
        self._host = host
        self._port = port
        self._options = [
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            # Without it an unread message stays behind 64 KiB at its caller.
            ("grpc.http2.bdp_probe", 0),
        ]
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Serve; returns the bound port. Raises OSError when the address cannot be listened on."""
        server = grpc.aio.server(options=self._options)
        host = f"[{self._host}]" if ":" in self._host else self._host
        try:
            port = server.add_insecure_port(f"{host}:{self._port}")
        except RuntimeError:
            raise OSError(f"gRPC: cannot listen on {host}:{self._port}; is the port in use?") from None
        server.add_generic_rpc_handlers((self._methods,))
        await server.start()
        self._server = server
        return port

    async def close(self, grace_s: float) -> None:
        """Take no new calls, give those in progress `grace_s` seconds, cancel the rest, close."""
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None


class _Methods(grpc.GenericRpcHandler):
    """Every method of the OIP service, known or not."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        path = handler_call_details.method
        if not path.startswith(_PREFIX):
            return None
        method = path.removeprefix(_PREFIX)

        async def answer(_: object, context: grpc.aio.ServicerContext) -> bytes:
            return await self._answer(method, context)

        return grpc.stream_unary_rpc_method_handler(answer)

    async def _answer(self, method: str, context: grpc.aio.ServicerContext) -> bytes:
        """One call. Its cancellation by the caller, or by the caller's deadline, is this task's."""
        received = time.monotonic()
        left = context.time_remaining()
        call = Call(
            method=method,
            metadata=[(key, value) for key, value in context.invocation_metadata() or ()],
            body=_Message(context),
            received=received,
            http=False,
            deadline=None if left is None else received + left,
        )
        reply = await self._handlers.handle(call)
        if reply.metadata:
            pairs = tuple((key, header_value(value)) for key, value in reply.metadata)
            await context.send_initial_metadata(pairs)
        if reply.error is not None:
            code = grpc.StatusCode[reply.error.status.grpc]
            await context.abort(code, status_message(reply.error.message))
        return reply.body


class _Message:
    """The call's one request message, taken off the connection when it is read."""

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self._context = context

    async def read(self, share: BodyShare | None = None) -> bytes:
        try:
            async with asyncio.timeout(MESSAGE_TIMEOUT_S):
                message = await self._context.read()
        except TimeoutError:
            raise OipError(
                Reason.BODY_TIMEOUT, f"the request message was not complete after {MESSAGE_TIMEOUT_S:g} s"
            ) from None
        if message is _EOF:
            raise OipError(Reason.MALFORMED, "the call ended without a request message")
        if share is not None:
            share.take(len(message))
        return message
