"""The ASGI application under /v2. A body is taken from the connection only when it is wanted."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any

from edge_agent.local.handlers import Call, Handlers, Reply
from oip.content_coding import Inflater, body_coding, coded_answer
from oip.errors import OipError, http_error
from oip.held import BodyShare
from oip.http_routes import find_route
from oip.reasons import Reason
from oip.wiretext import header_value

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[str, str]]

BODY_IDLE_S = 30.0
LINGER_S = 2.0


class HttpApp:
    """Routes requests to `handlers`. Bodies have at most `max_body_bytes`, and may pause BODY_IDLE_S."""

    def __init__(self, handlers: Handlers, *, max_body_bytes: int) -> None:
        self._handlers = handlers
        self._max_body_bytes = max_body_bytes
        self._running: set[asyncio.Task[Reply]] = set()
        self._closing = False

    def cancel_running(self) -> None:
        """Ends the calls in progress; their callers get an error."""
        self._closing = True
        for handler in self._running:
            handler.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (name.decode("latin-1"), value.decode("latin-1").strip(" \t")) for name, value in scope["headers"]
        ]
        body = HttpBody(receive, headers, self._max_body_bytes)
        try:
            reply = await self._reply(scope, headers, body)
        except OipError as error:
            reply = Reply(error=error)
        if reply is not None:
            await self._send(send, body, reply)

    async def _reply(self, scope: Scope, headers: Headers, body: HttpBody) -> Reply | None:
        """The answer to a request; None when its caller has left."""
        _check_framing(scope["http_version"], headers)
        _check_caller(headers)
        route = find_route(scope["raw_path"])
        if route.verbs and scope["method"] not in route.verbs:
            refusal = OipError(Reason.METHOD_NOT_ALLOWED, f"this path takes {' and '.join(route.verbs)} only")
            return Reply((("allow", ", ".join(route.verbs)),), error=refusal)
        call = Call(
            method=route.method,
            metadata=headers,
            body=body,
            received=time.monotonic(),
            http=True,
            model=route.model or "",
            version=route.version or "",
        )
        return await self._handle(call, body)

    async def _handle(self, call: Call, body: HttpBody) -> Reply | None:
        """Runs the handler until it is done or the caller is gone, which cancels it."""
        handler = asyncio.create_task(self._answer(call))
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
            return Reply(error=OipError(Reason.DRAINING, "this device shut down before the answer came"))
        return handler.result()

    async def _answer(self, call: Call) -> Reply:
        """The handler's answer, an inference's in the content coding that its caller wants. Others stay as
        they are, as from Triton: tritonclient's aio client asks for gzip and inflates inferences alone."""
        reply = await self._handlers.handle(call)
        if reply.error is not None or call.method != "ModelInfer":
            return reply
        return Reply(*await coded_answer(call.metadata, reply.metadata, reply.body, asyncio.to_thread))

    async def _send(self, send: Send, body: HttpBody, reply: Reply) -> None:
        status, answer, headers = 200, reply.body, list(reply.metadata)
        if reply.error is not None:
            status, error_headers, answer = http_error(reply.error)
            headers += error_headers
        headers.append(("content-length", str(len(answer))))
        if body.unread or self._closing:
            headers.append(("connection", "close"))
        await send({"type": "http.response.start", "status": status, "headers": _encoded(headers)})
        await send({"type": "http.response.body", "body": answer, "more_body": body.unread})
        if body.unread:
            # Closing at once would reset the connection and could take the answer from a caller that
            # sends everything before it reads.
            await body.discard(LINGER_S)
            await send({"type": "http.response.body", "body": b""})


class HttpBody:
    """The body of one request."""

    def __init__(self, receive: Receive, headers: Headers, max_bytes: int) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._headers = headers
        self._taken = asyncio.Event()
        self.unread = any(
            key == "transfer-encoding" or (key == "content-length" and value != "0") for key, value in headers
        )
        """Whether some of it may still be on the connection."""
        if not self.unread:
            self._taken.set()

    async def read(self, share: BodyShare | None = None) -> bytes:
        """The whole body, inflated as it arrives. Raises OipError: UNSUPPORTED_CODING, TOO_LARGE and
        OVERLOADED before anything is read where the headers say so, and TOO_LARGE, OVERLOADED, MALFORMED,
        BODY_TIMEOUT and CANCELLED."""
        declared = self._declared()
        coding = body_coding(self._headers)
        inflater = None if coding is None else Inflater(coding, self._max_bytes)
        if share is not None:
            share.check(declared)
        chunks: list[bytes] = []
        size = 0
        more = self.unread

        def take(piece: bytes) -> None:
            if share is not None:
                share.take(len(piece))
            chunks.append(piece)

        while more:
            try:
                async with asyncio.timeout(BODY_IDLE_S):
                    message = await self._receive()
            except TimeoutError:
                raise OipError(
                    Reason.BODY_TIMEOUT, f"no more of the body arrived for {BODY_IDLE_S:g} s"
                ) from None
            if message["type"] == "http.disconnect":
                raise OipError(Reason.CANCELLED, "the connection closed before the body was complete")
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > self._max_bytes:
                self._too_large()
            more = message.get("more_body", False)
            if inflater is None:
                take(chunk)
            else:
                await inflater.inflate(chunk, asyncio.to_thread, take)
        if inflater is not None:
            inflater.finish()
        self.unread = False
        self._taken.set()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def discard(self, within_s: float) -> None:
        """Let what is left of the body pass by, for so long."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
        except TimeoutError:
            return

    async def caller_left(self) -> None:
        """Returns when the connection ends after the body was read."""
        await self._taken.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def _declared(self) -> int:
        """Refuses what the headers alone rule out; the length they declare, 0 without one."""
        declared = 0
        for key, value in self._headers:
            if key == "content-length":
                declared = int(value)
        if declared > self._max_bytes:
            self._too_large()
        return declared

    def _too_large(self) -> None:
        raise OipError(Reason.TOO_LARGE, f"the body is larger than the limit of {self._max_bytes} bytes")


def _check_framing(http_version: str, headers: Headers) -> None:
    """What the parser lets through and HTTP/1.1 does not, or this server cannot undo."""
    names = [key for key, _ in headers]
    if http_version == "1.1" and names.count("host") != 1:
        raise OipError(Reason.MALFORMED, "an HTTP/1.1 request needs exactly one Host header")
    if "transfer-encoding" in names and "content-length" in names:
        raise OipError(Reason.MALFORMED, "the request has both Content-Length and Transfer-Encoding")
    for key, value in headers:
        if key == "transfer-encoding" and (http_version != "1.1" or value.lower() != "chunked"):
            raise OipError(Reason.MALFORMED, "the only Transfer-Encoding served is chunked, over HTTP/1.1")


def _check_caller(headers: Headers) -> None:
    """Loopback keeps other machines out, and not the pages of a browser on this one. A page's request to
    another server has its Origin; a name that a stranger's DNS has turned to loopback has a dot."""
    for key, value in headers:
        if key == "origin":
            raise OipError(Reason.FORBIDDEN, "web pages are not served: this is for programs on the device")
        if key == "host" and not _is_local(value):
            raise OipError(Reason.FORBIDDEN, "the Host is not this device: ask for 127.0.0.1 or localhost")


def _is_local(host: str) -> bool:
    """Whether a Host header is an address, or a name that no public DNS has."""
    name = host.rpartition("]")[0].removeprefix("[") or host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.lower().endswith(".localhost")
    return True


def _encoded(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(key.encode("ascii"), header_value(value).encode("ascii")) for key, value in headers]
