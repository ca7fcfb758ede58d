"""The portable lane's gRPC listener: grpc.aio with raw bytes in and out.

Every OIP method is registered in the stream-to-unary shape, which is the same on the wire. It
leaves the request message on the connection until a handler reads it, so a refusal that follows
from the metadata goes out while the body is held back by flow control at the caller.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from gateway.core.call import Binding, Call
from gateway.core.errors import Refusal
from gateway.frontends.grpc_health import HEALTH_SERVICE, OIP_SERVICE, Health
from gateway.frontends.grpc_stream import ClientStream, wire_metadata
from gateway.frontends.handlers import Handlers
from gateway.frontends.operators import grpc_client
from oip.held import BodyShare
from oip.reasons import Reason
from oip.wiretext import status_message

MESSAGE_TIMEOUT_S = 60.0
MAX_METADATA_BYTES = 16 * 1024
"""Of one call: a peer gateway's set of places, its hops and a trace state may come together."""
_PREFIX = f"/{OIP_SERVICE}/"
_CLOSING_S = 2.0
"""How long connections have to close once no call of ours is left on them: those whose callers speak
HTTP/2 and read do so by themselves."""


class GrpcLane:
    """Listens on exactly `host:port` (port 0: a free one) and answers through `handlers`.

    A request message over `max_message_bytes` is refused with RESOURCE_EXHAUSTED; one that is wanted
    must be there, as a whole, `message_timeout_s` later. A port in use is an error, unless it is `shared`
    with lanes that share it too. Everything must be called on the one loop that runs the lane.
    """

    def __init__(
        self,
        handlers: Handlers,
        host: str,
        port: int,
        *,
        max_message_bytes: int,
        message_timeout_s: float = MESSAGE_TIMEOUT_S,
        shared: bool = False,
    ) -> None:
        self._handlers = handlers
        self._methods = _Methods(handlers, message_timeout_s, max_message_bytes)
        self._host = host
        self._port = port
        self._options = [
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.so_reuseport", int(shared)),
            # Bandwidth probing opens a stream's window to megabytes before anyone reads it. Without
            # it an unread body stays behind 64 KiB, and a read one still gets a window of its size.
            ("grpc.http2.bdp_probe", 0),
        ]
        self._server: grpc.aio.Server | None = None
        self._health: Health | None = None

    async def start(self) -> int:
        """Serve; returns the bound port. Raises OSError when the address cannot be listened on."""
        server = grpc.aio.server(options=self._options)
        host = f"[{self._host}]" if ":" in self._host else self._host
        try:
            port = server.add_insecure_port(f"{host}:{self._port}")
        except RuntimeError:
            raise OSError(
                f"gRPC: cannot listen on {host}:{self._port}; is the port in use or the address not local?"
            ) from None
        self._health = Health(self._handlers.service.ready)
        server.add_generic_rpc_handlers((self._methods,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((OIP_SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME), server)
        await server.start()
        self._server = server
        return port

    async def drain(self, grace_s: float) -> None:
        """Take no new calls, give those in progress `grace_s` seconds, cancel the rest, close.

        Connections without a call of the service on them are not waited for.
        """
        if self._server is None or self._health is None:
            return
        self._health.leave()
        self._methods.leaving.set()
        stopping = asyncio.create_task(self._server.stop(grace_s))
        quiet = asyncio.create_task(self._methods.quiet(_CLOSING_S))
        await asyncio.wait((stopping, quiet), return_when=asyncio.FIRST_COMPLETED)
        # One after the other: a second stop beside the first may find the server freed under it.
        stopping.cancel()
        quiet.cancel()
        await asyncio.wait((stopping, quiet))
        await self._server.stop(None)
        self._server = None


class _Methods(grpc.GenericRpcHandler):
    """Every method of the OIP service, known or not, as raw bytes."""

    def __init__(self, handlers: Handlers, message_timeout_s: float, max_message_bytes: int) -> None:
        self._handlers = handlers
        self._message_timeout_s = message_timeout_s
        self._max_message_bytes = max_message_bytes
        self.leaving = asyncio.Event()
        """Set when streams are to end as soon as what runs on them has."""
        self._known: dict[str, grpc.RpcMethodHandler] = {}
        self._running = 0
        self._busy = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    async def quiet(self, for_s: float) -> None:
        """Returns when no call has run for so long, answers sent. A call that was accepted before a
        stop may begin shortly after it."""
        while True:
            await self._idle.wait()
            try:
                async with asyncio.timeout(for_s):
                    await self._busy.wait()
            except TimeoutError:
                return

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        path = handler_call_details.method
        if not path.startswith(_PREFIX):
            return None
        method = path.removeprefix(_PREFIX)
        if (known := self._known.get(method)) is not None:
            return known
        handler = self._handler(method)
        if method in self._handlers.methods:
            self._known[method] = handler
        return handler

    def _handler(self, method: str) -> grpc.RpcMethodHandler:
        async def answer(_: object, context: grpc.aio.ServicerContext) -> bytes:
            self._began(context)
            return await self._answer(method, context)

        async def stream(_: object, context: grpc.aio.ServicerContext) -> None:
            self._began(context)
            call = self._call(method, context)
            await ClientStream(self._handlers, context, call, self.leaving, self._max_message_bytes).serve()

        if self._handlers.answers_in_parts(method) and method in self._handlers.methods:
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.stream_unary_rpc_method_handler(answer)

    def _began(self, context: grpc.aio.ServicerContext) -> None:
        self._running += 1
        self._idle.clear()
        self._busy.set()
        context.add_done_callback(cast(Any, self._ended))

    def _ended(self, _: object) -> None:
        self._running -= 1
        if not self._running:
            self._busy.clear()
            self._idle.set()

    async def _answer(self, method: str, context: grpc.aio.ServicerContext) -> bytes:
        """One call. Its cancellation by the caller, or by the caller's deadline, is this task's."""
        reply = await self._handlers.handle(self._call(method, context))
        if reply.metadata:
            await context.send_initial_metadata(wire_metadata(reply.metadata))
        if reply.error is not None:
            code = grpc.StatusCode[reply.error.status.grpc]
            await context.abort(code, status_message(reply.error.message))
        return reply.body

    def _call(self, method: str, context: grpc.aio.ServicerContext) -> Call:
        received = time.monotonic()
        left = context.time_remaining()
        return Call(
            binding=Binding.GRPC,
            method=method,
            metadata=[(key, value) for key, value in context.invocation_metadata() or ()],
            body=_Message(context, self._message_timeout_s),
            received=received,
            deadline=None if left is None else received + left,
            client=grpc_client(context.peer()),
        )


class _Message:
    """The call's one request message, taken off the connection when it is read.

    gRPC hands over whole messages, so `timeout_s` bounds the whole, not a pause in it.
    """

    def __init__(self, context: grpc.aio.ServicerContext, timeout_s: float) -> None:
        self._context = context
        self._timeout_s = timeout_s

    async def read(self, share: BodyShare | None = None) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_s):
                message = await self._context.read()
        except TimeoutError:
            raise Refusal(
                Reason.BODY_TIMEOUT, f"the request message was not complete after {self._timeout_s:g} s"
            ) from None
        if message is grpc.aio.EOF:  # pyright: ignore[reportAttributeAccessIssue]
            raise Refusal(Reason.MALFORMED, "the call ended without a request message")
        if share is not None:
            share.take(len(message))
        return message
