"""The homes of sequences as a data plane replica has them: from control, at every step.

While control is away a question waits for it, for as long as the request may and `WAIT_S` at most: Serve starts
control again, which has its homes from its journal. Every question may be asked twice. The inference that it is
asked for is not sent before there is an answer, so nothing of that is ever done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
from pathlib import Path
from typing import Any

from gateway.core.homes import Home
from oip.errors import OipError
from oip.reasons import Reason

WAIT_S = 15.0
"""How long control may be away before a step is refused for it."""
AGAIN_S = 0.05
CLOSE_S = 1.0
logger = logging.getLogger(__name__)


class _Lost(Exception):
    """Control went away before it answered."""


class AskedHomes:
    """A port `Homes` through the socket `path`. Lives on one loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._numbers = itertools.count()
        self._writer: asyncio.StreamWriter | None = None
        self._connecting = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[list[Any]]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._ends: set[asyncio.Task[None]] = set()

    async def begin(self, sequence: str, home: Home) -> None:
        await self._ask("begin", sequence, *home)

    async def find(self, sequence: str) -> Home | None:
        found = await self._ask("find", sequence)
        return None if found is None else Home(*found)

    def end(self, sequence: str, beginning: str) -> None:
        # Said at once where that can be, so that whoever asks next finds it ended.
        question = ("end", sequence, beginning)
        told = None if self._writer is None else self._send(self._writer, question)
        task = asyncio.create_task(self._end(question, told), name="end a sequence")
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    async def close(self) -> None:
        """Say what is left to say, if control hears it at once."""
        if self._ends:
            await asyncio.wait(self._ends, timeout=CLOSE_S)
        left = [*self._ends, *([] if self._reading is None else [self._reading])]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _end(self, question: tuple[str, ...], told: asyncio.Future[list[Any]] | None) -> None:
        try:
            if told is None:
                await self._ask(*question)
                return
            try:
                await told
            except _Lost:
                await self._ask(*question)
        except OipError as error:
            # A home that is left over: where the sequence has ended, its server says so.
            logger.debug("the end of a sequence was not told: %s", error.message)

    async def _ask(self, *question: str) -> Any:
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    try:
                        answer = await self._told(question)
                        break
                    except (_Lost, OSError):
                        await asyncio.sleep(AGAIN_S)
        except TimeoutError:
            text = "control is not available, which knows where sequences are; try again"
            raise OipError(Reason.UNAVAILABLE, text) from None
        if len(answer) > 1:
            raise OipError(Reason.UNAVAILABLE, f"{answer[1]}; try again")
        return answer[0]

    async def _told(self, question: tuple[str, ...]) -> list[Any]:
        """Raises OSError where control is not there, and _Lost where it goes."""
        return await self._send(self._writer or await self._connect(), question)

    def _send(self, writer: asyncio.StreamWriter, question: tuple[str, ...]) -> asyncio.Future[list[Any]]:
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._waiting.pop(number, None))
        if writer.is_closing():
            # Control has gone, and the reader has not heard of it yet. A closed transport of uvloop raises.
            answer.set_exception(_Lost())
        else:
            writer.write(json.dumps([number, *question]).encode() + b"\n")
        return answer

    async def _connect(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is None:
                reader, self._writer = await asyncio.open_unix_connection(self._path)
                self._reading = asyncio.create_task(
                    self._read(reader, self._writer), name="homes of sequences"
                )
            return self._writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, ValueError):
                while line := await reader.readline():
                    number, *answer = json.loads(line)
                    told = self._waiting.get(number)
                    if told is not None and not told.done():
                        told.set_result(answer)
        finally:
            self._writer = None
            writer.close()
            for told in [*self._waiting.values()]:
                if not told.done():
                    told.set_exception(_Lost())
