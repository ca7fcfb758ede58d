"""Control's desk for the homes of sequences: a unix socket that data plane replicas ask.

Lines of JSON, `[number, question, arguments...]` and `[number, answer]`, many under way at once. An answer that
is an error is `[number, null, "why"]`. Everything is answered from memory, in the order it came.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.control.homes import KeptHomes
from gateway.core.homes import Home

JOURNAL = "homes.log"
TAKE_OVER_S = 0.1
"""How often it is tried to take the journal over from a process that has not ended yet."""
logger = logging.getLogger(__name__)


class HomesDesk:
    """Listens on the socket `path`, with the journal beside it. Lives on one loop."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._homes = KeptHomes(path.with_name(JOURNAL))
        self._clock = clock
        self._server: asyncio.Server | None = None
        self._opening: asyncio.Task[None] | None = None
        self._askers: set[asyncio.Transport] = set()

    async def start(self) -> None:
        """Begin to take the journal over; it is listened once that is done."""
        self._opening = asyncio.create_task(self._open(), name="open the homes of sequences")

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for transport in self._askers:
            transport.abort()
        self._homes.close()

    async def _open(self) -> None:
        while True:
            try:
                if self._homes.open(self._clock()):
                    loop = asyncio.get_running_loop()
                    self._server = await loop.create_unix_server(self._asker, str(self._path))
                    return
            except OSError as error:
                logger.error("the homes of sequences cannot be kept: %s", error.strerror)
            await asyncio.sleep(TAKE_OVER_S)

    def _asker(self) -> asyncio.Protocol:
        return _Asker(self._askers, self._answered)

    def _answered(self, line: bytes) -> bytes:
        number, question, *given = json.loads(line)
        try:
            answer = [number, self._answer(question, *given)]
        except OSError as error:
            answer = [number, None, f"the home of a sequence cannot be kept ({error.strerror})"]
        return json.dumps(answer).encode() + b"\n"

    def _answer(self, question: str, sequence: str, *given: str) -> Any:
        now = self._clock()
        if question == "begin":
            return self._homes.begin(sequence, Home(*given), now)
        if question == "find":
            return self._homes.find(sequence, now)
        return self._homes.end(sequence, *given)


class _Asker(asyncio.Protocol):
    """One replica's connection."""

    def __init__(self, askers: set[asyncio.Transport], answered: Callable[[bytes], bytes]) -> None:
        self._askers = askers
        self._answered = answered
        self._transport: Any = None
        self._begun = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._askers.add(self._transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        try:
            self._transport.write(b"".join(map(self._answered, lines)))
        except (ValueError, TypeError) as error:
            logger.error("who asks for sequences talks nonsense (%s) and is left", type(error).__name__)
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._askers.discard(self._transport)
