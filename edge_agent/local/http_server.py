"""The device's HTTP listener: uvicorn's server on the agent's loop, with h11's parser.

The parser's own errors are answered in JSON like all others, and offers to upgrade are declined by
answering in HTTP/1.1. Nothing process-wide is touched: no signal handlers, no logging configuration.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from edge_agent.local.handlers import Handlers
from edge_agent.local.http_app import HttpApp
from oip.errors import error_body

KEEP_ALIVE_S = 75
HEAD_TIMEOUT_S = 30.0
"""How long a new connection may take for its first request's head."""
MAX_CHUNK_BYTES = 2**63 - 1
_LAST_WORDS_S = 1.0
"""How long cancelled calls have to send their error."""


class JsonProtocol(H11Protocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # The parser takes every size of a chunk that twenty digits can say, and would wait for it.
        if getattr(self.conn._reader, "_bytes_in_chunk", 0) > MAX_CHUNK_BYTES:
            self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            # The fault is in the body of a request that is being answered: its application learns that
            # there is no more of it.
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
        body = error_body("the request is not well-formed HTTP/1.1")
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        )
        self.transport.write(head + body)
        self.transport.close()

    def _get_upgrade(self) -> bytes | None:
        return None

    def _head_is_late(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


class HttpServer:
    """Listens on exactly `host:port` (port 0: a free one). Bodies have at most `max_body_bytes`."""

    def __init__(self, handlers: Handlers, host: str, port: int, *, max_body_bytes: int) -> None:
        self._host = host
        self._port = port
        self._app = HttpApp(handlers, max_body_bytes=max_body_bytes)
        self._server: uvicorn.Server | None = None
        self._ticker: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Serve; returns the bound port. Raises OSError when the address cannot be listened on."""
        listener = self._listener()
        config = uvicorn.Config(
            cast("Any", self._app),
            http=JsonProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[listener])
        # Keeps the Date header.
        self._ticker = asyncio.create_task(self._server.main_loop())
        return listener.getsockname()[1]

    async def close(self, grace_s: float) -> None:
        """Accept nothing new, give requests in progress `grace_s` seconds, cancel the rest, close."""
        if self._server is None or self._ticker is None:
            return
        for server in self._server.servers:
            server.close()
        for connection in self._connections():
            connection.shutdown()
        await self._until_idle(grace_s)
        self._app.cancel_running()
        await self._until_idle(_LAST_WORDS_S)
        for connection in self._connections():
            connection.transport.abort()
        self._ticker.cancel()
        await asyncio.wait((self._ticker,))
        self._server = None

    def _connections(self) -> list[JsonProtocol]:
        assert self._server is not None
        return cast("list[JsonProtocol]", list(self._server.server_state.connections))

    async def _until_idle(self, within_s: float) -> None:
        assert self._server is not None
        deadline = time.monotonic() + within_s
        while (tasks := set(self._server.server_state.tasks)) and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(tasks, timeout=left)

    def _listener(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self._host, self._port))
        except OSError as error:
            listener.close()
            raise OSError(f"HTTP: cannot listen on {self._host}:{self._port}: {error.strerror}") from None
        listener.setblocking(False)
        return listener
