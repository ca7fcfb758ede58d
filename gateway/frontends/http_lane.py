"""The portable lane's HTTP listener: uvicorn's server on the loop that starts it.

Nothing process-wide is touched: no signal handlers, no logging configuration, no access log.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import cast

import uvicorn

from gateway.frontends.handlers import Handlers
from gateway.frontends.http_app import AsgiApp, HttpApp
from gateway.frontends.http_protocol import PatientProtocol

KEEP_ALIVE_S = 75
"""Longer than client pools usually keep an idle connection, so that they close it first."""
_LAST_WORDS_S = 1.0
"""How long cancelled calls have to send their error, and connections to flush, once grace is over."""


class HttpLane:
    """Listens on exactly `host:port` (port 0: a free one) and answers through `handlers`;
    `operator_app` gets what is under /api/v1 and /console.

    `body_timeout_s` bounds how long a body may pause and a request's head may take. A port in use is an
    error, unless it is `shared` with lanes that share it too. Everything must be called on one loop.
    """

    def __init__(
        self,
        handlers: Handlers,
        operator_app: AsgiApp | None,
        host: str,
        port: int,
        *,
        max_body_bytes: int,
        body_timeout_s: float = 30.0,
        shared: bool = False,
    ) -> None:
        self._host = host
        self._port = port
        self._shared = shared
        self._body_timeout_s = body_timeout_s
        self._app = HttpApp(
            handlers, operator_app, max_body_bytes=max_body_bytes, body_timeout_s=body_timeout_s
        )
        self._server: uvicorn.Server | None = None
        self._ticker: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Serve; returns the bound port. Raises OSError when the address cannot be listened on."""
        listener = self._listener()

        class Protocol(PatientProtocol):
            head_timeout_s = self._body_timeout_s

        config = uvicorn.Config(
            self._app,  # type: ignore[arg-type]
            http=Protocol,
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

    async def drain(self, grace_s: float) -> None:
        """Accept nothing new, give requests in progress `grace_s` seconds, cancel the rest, close.

        A new request on a connection that is kept alive is refused with 503 meanwhile.
        """
        if self._server is None or self._ticker is None:
            return
        self._app.drain()
        for server in self._server.servers:
            server.close()
        for connection in self._connections():
            connection.last_answer()
        await self._until_idle(grace_s)
        self._app.cancel_running()
        self._app.close()
        await self._until_idle(_LAST_WORDS_S)
        connections = self._connections()
        for connection in connections:
            connection.transport.close()
        if connections:
            await asyncio.wait([connection.closed for connection in connections], timeout=_LAST_WORDS_S)
        for connection in self._connections():
            connection.transport.abort()
        self._ticker.cancel()
        await asyncio.wait((self._ticker,))
        self._server = None

    def _connections(self) -> list[PatientProtocol]:
        assert self._server is not None
        return cast("list[PatientProtocol]", list(self._server.server_state.connections))

    async def _until_idle(self, within_s: float) -> None:
        """Waits until no request is in progress, at most so long."""
        assert self._server is not None
        deadline = time.monotonic() + within_s
        while (tasks := set(self._server.server_state.tasks)) and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(tasks, timeout=left)

    def _listener(self) -> socket.socket:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, protocol)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if self._shared:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                listener.bind(address)
            except OSError:
                listener.close()
                raise
        except OSError as error:
            raise OSError(f"HTTP: cannot listen on {self._host}:{self._port}: {error.strerror}") from None
        listener.setblocking(False)
        return listener
