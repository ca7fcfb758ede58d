"""The ASGI application under /v2, with the operator's application passed on to beside it.

It stands on `PatientProtocol`: what is refused without its body leaves the body on the socket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

from gateway.core.call import Binding, Call, Reply
from gateway.core.errors import Refusal, TidegateError
from gateway.frontends.handlers import Handlers, unexpected
from gateway.frontends.http_body import HttpBody, Receive, next_part
from gateway.frontends.http_events import EVENTS, EventStream
from gateway.frontends.http_protocol import ARRIVAL, LINGER_S, Arrival
from oip.content_coding import coded_answer
from oip.errors import OipError, http_error
from oip.http_routes import find_route
from oip.reasons import Reason
from oip.wiretext import header_value

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

OPERATOR_PREFIXES = ("/api/v1", "/console")
OPERATOR_MAX_BODY_BYTES = 2**20
UPLOADS = ("PUT", b"/api/v1/artifacts")
"""The operator's call whose body may be as large as a request's."""


class HttpApp:
    """Routes requests to `handlers`, or to `operator_app` under its prefixes.

    Bodies are at most `max_body_bytes`, and may pause for `body_timeout_s`.
    """

    def __init__(
        self,
        handlers: Handlers,
        operator_app: AsgiApp | None,
        *,
        max_body_bytes: int,
        body_timeout_s: float,
    ) -> None:
        self._handlers = handlers
        self._operator_app = operator_app
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s
        self._running: set[asyncio.Task[Reply]] = set()
        self._draining = False
        self._closing = asyncio.Event()

    def drain(self) -> None:
        """From now on only liveness is answered; readiness is false and other calls are refused."""
        self._draining = True

    def cancel_running(self) -> None:
        """Ends the calls in progress; their callers get an error."""
        for handler in self._running:
            handler.cancel()

    def close(self) -> None:
        """No connection lingers any longer."""
        self._closing.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival: Arrival = scope["extensions"][ARRIVAL]
        # The parser leaves a value's trailing white space, which HTTP does not count as part of it.
        headers = [
            (name.decode("latin-1"), value.decode("latin-1").strip(" \t")) for name, value in scope["headers"]
        ]
        try:
            _check_framing(scope["http_version"], headers, arrival)
            if _is_operators(scope["raw_path"]):
                await self._pass_on(scope, headers, receive, send)
                return
            reply = await self._reply(scope, headers, arrival, receive, send)
        except TidegateError as error:
            reply = Reply(error=error)
        except OipError as error:
            reply = Reply(error=Refusal(error.reason, error.message))
        if reply is not None:
            await self._send(send, receive, arrival, reply)

    async def _reply(
        self,
        scope: Scope,
        headers: Sequence[tuple[str, str]],
        arrival: Arrival,
        receive: Receive,
        send: Send,
    ) -> Reply | None:
        """The answer to a request under /v2; None when its caller has left, or has it in parts."""
        route = find_route(scope["raw_path"])
        verb = scope["method"]
        if route.verbs and verb not in route.verbs:
            refusal = Refusal(Reason.METHOD_NOT_ALLOWED, f"this path takes {' and '.join(route.verbs)} only")
            return Reply(metadata=(("allow", ", ".join(route.verbs)),), error=refusal)
        in_parts = self._handlers.answers_in_parts(route.method)
        if in_parts and scope["http_version"] == "1.0":
            raise Refusal(
                Reason.NOT_SERVED, f"{route.method} needs HTTP/1.1: an older client can use generate"
            )
        if self._draining and route.method != "ServerLive":
            raise Refusal(Reason.DRAINING, "this gateway is shutting down: ask another or try again later")
        body = HttpBody(receive, headers, max_bytes=self._max_body_bytes, idle_s=self._body_timeout_s)
        if verb != "POST":
            body.skip(arrived=arrival.complete)
        call = Call(
            binding=Binding.HTTP,
            method=route.method,
            metadata=headers,
            body=body,
            received=time.monotonic(),
            model=route.model,
            version=route.version,
            client=(scope.get("client") or ("",))[0],
        )
        if not in_parts:
            return await self._handle(self._answer(call), body)
        events = EventStream(send)
        reply = await self._handle(self._handlers.stream(call, events.part), body)
        if reply is not None and reply.error is None and not events.begun:
            return Reply((*reply.metadata, EVENTS))
        if reply is None or not events.begun:
            return reply
        await events.end(reply)
        return None

    async def _handle(self, handling: Coroutine[Any, Any, Reply], body: HttpBody) -> Reply | None:
        """Runs a handler until it is done or the caller is gone, which cancels it."""
        handler = asyncio.create_task(handling)
        watch = asyncio.create_task(body.caller_left())
        self._running.add(handler)
        handler.add_done_callback(self._running.discard)
        try:
            await asyncio.wait((handler, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            left = watch.done()
            watch.cancel()
            if not handler.done():
                handler.cancel()
        await asyncio.wait((handler, watch))
        if left:
            return None
        if handler.cancelled():
            return Reply(error=Refusal(Reason.DRAINING, "this gateway shut down before the answer came"))
        return handler.result()

    async def _answer(self, call: Call) -> Reply:
        """The handler's answer, an inference's in the content coding that its caller wants. Others stay as
        they are, as from Triton: tritonclient's aio client asks for gzip and inflates inferences alone."""
        reply = await self._handlers.handle(call)
        if reply.error is not None or call.method != "ModelInfer":
            return reply
        return Reply(*await coded_answer(call.metadata, reply.metadata, reply.body, asyncio.to_thread))

    async def _send(self, send: Send, receive: Receive, arrival: Arrival, reply: Reply) -> None:
        status = 200
        body = reply.body
        headers = list(reply.metadata)
        if reply.error is not None:
            status, error_headers, body = http_error(reply.error)
            headers += error_headers
        headers.append(("content-length", str(len(body))))
        unread = not arrival.complete
        if unread or self._draining:
            headers.append(("connection", "close"))
        await send({"type": "http.response.start", "status": status, "headers": _encoded(headers)})
        await send({"type": "http.response.body", "body": body, "more_body": unread})
        if unread:
            await self._linger(receive, arrival)

    async def _linger(self, receive: Receive, arrival: Arrival) -> None:
        """Lets the caller take its answer, while the rest of its request stays on the socket."""
        if not arrival.gone:
            arrival.close_sending()
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await self._closing.wait()
        arrival.abort()
        while (await receive())["type"] != "http.disconnect":
            pass

    async def _pass_on(
        self, scope: Scope, headers: Sequence[tuple[str, str]], receive: Receive, send: Send
    ) -> None:
        """Hands a request to the operator's application, within the limits on its body."""
        if self._operator_app is None:
            raise Refusal(Reason.NOT_FOUND, "the operator API is not served on this address")
        if self._draining:
            raise Refusal(Reason.DRAINING, "this gateway is shutting down")
        is_upload = (scope["method"], scope["raw_path"]) == UPLOADS
        most = self._max_body_bytes if is_upload else OPERATOR_MAX_BODY_BYTES
        too_large = Refusal(Reason.TOO_LARGE, f"the body is larger than the limit of {most} bytes")
        if any(key == "content-length" and int(value) > most for key, value in headers):
            raise too_large
        size = 0
        more = True
        started = False

        async def limited_receive() -> MutableMapping[str, Any]:
            nonlocal size, more
            message = await (next_part(receive, self._body_timeout_s) if more else receive())
            size += len(message.get("body", b""))
            if size > most:
                raise too_large
            more = message.get("more_body", False)
            return message

        async def noted_send(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._operator_app(scope, limited_receive, noted_send)
        except TidegateError:
            raise
        except Exception as error:
            refusal = unexpected(error, "the operator API")
            if not started:
                raise refusal from None


def _check_framing(http_version: str, headers: Sequence[tuple[str, str]], arrival: Arrival) -> None:
    """What the parser lets through and HTTP/1.1 does not, or this server cannot undo."""
    names = [key for key, _ in headers]
    if http_version == "1.1" and names.count("host") != 1:
        raise Refusal(Reason.MALFORMED, "an HTTP/1.1 request needs exactly one Host header")
    for key, value in headers:
        if key == "transfer-encoding" and (http_version != "1.1" or value.lower() != "chunked"):
            raise Refusal(Reason.MALFORMED, "the only Transfer-Encoding served is chunked, over HTTP/1.1")


def _is_operators(raw_path: bytes) -> bool:
    path = raw_path.decode("latin-1")
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in OPERATOR_PREFIXES)


def _encoded(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(key.encode("ascii"), header_value(value).encode("ascii")) for key, value in headers]
