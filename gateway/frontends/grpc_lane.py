"""The portable lane's gRPC listener: grpc.aio with raw bytes in and out.

Every OIP method is registered in the stream-to-unary shape, which is the same on the wire. It
leaves the request message on the connection until a handler reads it, so a refusal that follows
from the metadata goes out while the body is held back by flow control at the caller.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from urllib.parse import unquote

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from gateway.core.call import Binding, Call
from gateway.core.errors import AttemptError, Refusal, TidegateError
from gateway.core.held import BodyShare
from gateway.frontends.grpc_health import HEALTH_SERVICE, OIP_SERVICE, Health
from gateway.frontends.handlers import Handlers
from gateway.frontends.wiretext import header_value
from oip.reasons import Reason

_PREFIX = f"/{OIP_SERVICE}/"


class GrpcLane:
    """Listens on exactly `host:port` (port 0: a free one) and answers through `handlers`.

    A request message over `max_message_bytes` is refused with RESOURCE_EXHAUSTED. With
    `reuse_port` several processes may share the port; otherwise a port in use is an error.
    Everything must be called on the one loop that runs the lane.
    """

    def __init__(
        self, handlers: Handlers, host: str, port: int, *, max_message_bytes: int, reuse_port: bool = False
    ) -> None:
        self._handlers = handlers
        self._host = host
        self._port = port
        self._options = [
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", int(reuse_port)),
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
        server.add_generic_rpc_handlers((_Methods(self._handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((OIP_SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME), server)
        await server.start()
        self._server = server
        return port

    async def drain(self, grace_s: float) -> None:
        """Take no new calls, give those in progress `grace_s` seconds, cancel the rest, close."""
        if self._server is None or self._health is None:
            return
        self._health.leave()
        await self._server.stop(grace_s)
        self._server = None


class _Methods(grpc.GenericRpcHandler):
    """Every method of the OIP service, known or not, as raw bytes."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers
        self._known: dict[str, grpc.RpcMethodHandler] = {}

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
            return await _answer(self._handlers, method, context)

        return grpc.stream_unary_rpc_method_handler(answer)


async def _answer(handlers: Handlers, method: str, context: grpc.aio.ServicerContext) -> bytes:
    """One call. Its cancellation by the caller, or by the caller's deadline, is this task's."""
    received = time.monotonic()
    left = context.time_remaining()
    call = Call(
        binding=Binding.GRPC,
        method=method,
        metadata=[(key, value) for key, value in context.invocation_metadata() or ()],
        body=_Message(context),
        received=received,
        deadline=None if left is None else received + left,
        peer=_peer_address(context.peer()),
    )
    reply = await handlers.handle(call)
    if reply.metadata:
        await context.send_initial_metadata(_initial_metadata(reply.metadata))
    if reply.error is not None:
        await context.abort(_status_code(reply.error), reply.error.message)
    return reply.body


class _Message:
    """The call's one request message, taken off the connection when it is read."""

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self._context = context

    async def read(self, share: BodyShare | None = None) -> bytes:
        message = await self._context.read()
        if message is grpc.aio.EOF:  # pyright: ignore[reportAttributeAccessIssue]
            raise Refusal(Reason.MALFORMED, "the call ended without a request message")
        if share is not None:
            share.take(len(message))
        return message


def _initial_metadata(metadata: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple((key, header_value(value)) for key, value in metadata)


def _status_code(error: TidegateError) -> grpc.StatusCode:
    if isinstance(error, AttemptError) and error.grpc_status != "OK":
        code = grpc.StatusCode.__members__.get(error.grpc_status)
        if code is not None:
            return code
    return grpc.StatusCode[error.status.grpc]


def _peer_address(peer: str) -> str:
    """The IP address in gRPC's `ipv4:1.2.3.4:567` or `ipv6:%5B::1%5D:567`, "" for other kinds."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else ""
