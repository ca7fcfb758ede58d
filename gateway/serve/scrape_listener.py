"""The listener that Prometheus scrapes."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import uvicorn

from gateway.serve.settings import Address
from gateway.telemetry import Render, metrics_app


class ScrapeListener:
    """Serves what `render` gives on one address, on the loop that starts it."""

    def __init__(self, render: Render, address: Address) -> None:
        self._address = address
        config = uvicorn.Config(metrics_app(render), lifespan="off", log_config=None, access_log=False)
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        self._ticker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises OSError when the address cannot be listened on."""
        try:
            listener = socket.create_server(self._address, family=self._address.family)
        except OSError as error:
            raise OSError(f"metrics: cannot listen on {self._address}: {error.strerror}") from None
        await self._server.startup(sockets=[listener])
        self._ticker = asyncio.create_task(self._server.main_loop())

    async def close(self) -> None:
        """At once: a scrape can be made again, and one that nobody reads must not hold a drain."""
        if self._ticker is None:
            return
        for server in self._server.servers:
            server.close()
        for connection in list(self._server.server_state.connections):
            cast("Any", connection).transport.abort()
        self._server.should_exit = True
        await self._ticker
