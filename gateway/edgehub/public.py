"""The calls of devices: Enrol, Connect, Fetch."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import grpc
import grpc.aio

from edgewire.v1 import edge_pb2, edge_pb2_grpc
from gateway.edgehub.admission import Admission
from gateway.edgehub.book import Book
from gateway.edgehub.fleet import Fleet
from gateway.edgehub.session import Terms
from gateway.edgehub.streams import Stream, Streams
from gateway.registry.devices import Enrolled
from oip.errors import OipError
from oip.reasons import Reason

CHUNK_BYTES = 256 * 1024
FETCHES = 32
"""Downloads at once; a device waits for its turn."""
FETCHES_OF_ONE = 4
RECONNECTS_PER_S = 1.0
RECONNECTS_AT_ONCE = 10
"""Of one device: whoever dials faster takes its own turns, and not those of the others."""
ENROLMENTS = 16
"""Tokens that are looked up at once: anybody may ask, and each asks the registry."""
STALLED_S = 60.0
"""A device that takes not one chunk in so long has given up its download."""
RETRY_KEY = "retry-after-ms"
logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext
_EOF: Any = getattr(grpc.aio, "EOF")  # noqa: B009  # the stubs do not name it
Files = Callable[[Enrolled], Mapping[str, tuple[Path, int]]]
"""The files that a device may fetch: path and size by digest."""
Desire = Callable[[Enrolled], tuple[edge_pb2.DesiredModel, ...]]


class DeviceCalls(edge_pb2_grpc.EdgeHubServicer):
    """Served to devices; everybody but an Enrol with a token must show an enrolled device's credential."""

    def __init__(
        self,
        terms: Terms,
        book: Book,
        streams: Streams,
        fleet: Fleet,
        desire: Desire,
        files: Files,
        clock: Callable[[], float],
    ) -> None:
        self._terms = terms
        self._book = book
        self._streams = streams
        self._fleet = fleet
        self._desire = desire
        self._files = files
        self._clock = clock
        self._admission = Admission()
        self._paces: dict[str, Admission] = {}
        self._enrolling = 0
        self._fetches = asyncio.Semaphore(FETCHES)
        self._fetching: Counter[str] = Counter()
        self._closing = False

    def close(self) -> None:
        """Let nobody in any more, and end every stream."""
        self._closing = True
        for stream in self._streams:
            stream.end("UNAVAILABLE", "The hub is stopping.")

    async def Enrol(self, request: edge_pb2.EnrolRequest, context: Context) -> edge_pb2.EnrolReply:
        if self._enrolling >= ENROLMENTS:
            hint = ((RETRY_KEY, "1000"),)
            await _abort(context, "RESOURCE_EXHAUSTED", "Too many devices enrol at once.", hint)
        self._enrolling += 1
        try:
            enrolled = await self._book.enrol(request.token, request.device, request.credential_sha256)
        except OipError as error:
            await _abort(context, error.status.grpc, error.message)
        finally:
            self._enrolling -= 1
        return edge_pb2.EnrolReply(device=enrolled.name, site=enrolled.site, labels=enrolled.labels)

    async def Connect(self, request_iterator: object, context: Context) -> None:
        """Reads and writes side by side until one of them, or the session, is at its end."""
        enrolled = await self._known(context)
        pace = self._paces.setdefault(enrolled.name, Admission(RECONNECTS_PER_S, RECONNECTS_AT_ONCE))
        wait_s = pace.ask(self._clock()) or self._admission.ask(self._clock())
        if wait_s > 0:
            hint = ((RETRY_KEY, str(round(wait_s * 1000))),)
            await _abort(context, "RESOURCE_EXHAUSTED", "Too many devices connect at once.", hint)
        if self._closing:
            await _abort(context, "UNAVAILABLE", "The hub is stopping.")
        stream = Stream(enrolled, self._terms, self._fleet, self._clock)
        stream.session.desire(self._desire(enrolled))
        self._streams.join(stream)
        logger.info("device %s connects", enrolled.name)
        tasks = [
            asyncio.create_task(work, name=f"{what} {enrolled.name}")
            for what, work in (
                ("read", _read(context, stream)),
                ("write", _write(context, stream)),
                ("wait for", stream.over.wait()),
            )
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # A device that closes its side after its last answer has said all that it had to say.
            left = tasks[0].done() and not stream.over.is_set()
        finally:
            # Whatever ended the stream, those who wait for answers learn it before anything else is done.
            stream.end("UNAVAILABLE", "The stream ended.")
            self._streams.leave(stream)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        logger.info("device %s left: %s", enrolled.name, "it was done" if left else stream.closed.text)
        if not left:
            await _abort(context, stream.closed.status, stream.closed.text)

    async def Fetch(self, request: edge_pb2.FetchRequest, context: Context) -> None:
        enrolled = await self._known(context)
        found = self._files(enrolled).get(request.digest)
        if found is None:
            await _abort(context, "NOT_FOUND", f"Device {enrolled.name} is to run no file of this digest.")
        path, size = found
        if request.offset > size:
            await _abort(context, "OUT_OF_RANGE", f"The file has {size} bytes.")
        if self._fetching[enrolled.name] >= FETCHES_OF_ONE:
            await _abort(context, "RESOURCE_EXHAUSTED", f"Device {enrolled.name} has downloads under way.")
        self._fetching[enrolled.name] += 1
        try:
            async with self._fetches:
                await _send_file(context, path, size, request.offset)
        except OSError as error:
            # TimeoutError is one: the device has stalled.
            logger.warning("a download of device %s ended: %s", enrolled.name, error or type(error).__name__)
            await _abort(context, "UNAVAILABLE", "The download cannot go on at the moment.")
        except EOFError:
            text = "The file has changed since the gateway started: restart the gateway."
            await _abort(context, "DATA_LOSS", text)
        finally:
            self._fetching[enrolled.name] -= 1
            if not self._fetching[enrolled.name]:
                del self._fetching[enrolled.name]

    async def _known(self, context: Context) -> Enrolled:
        """The device that calls. Ends the call for anybody else."""
        scheme, _, credential = _authorization(context).partition(" ")
        if scheme.lower() != "bearer" or not credential:
            await _abort(
                context, "UNAUTHENTICATED", "Show the device's credential: authorization: Bearer ..."
            )
        try:
            return await self._book.holder(hashlib.sha256(credential.encode()).digest())
        except OipError as error:
            status = "UNAUTHENTICATED" if error.reason is Reason.NOT_FOUND else error.status.grpc
            await _abort(context, status, error.message)


async def _read(context: Context, stream: Stream) -> None:
    while True:
        message: Any = await context.read()
        if message is _EOF:
            return
        stream.receive(message)


async def _write(context: Context, stream: Stream) -> None:
    while True:
        stream.wake.clear()
        while (message := stream.session.take()) is not None:
            await context.write(message)
        await stream.wake.wait()


async def _send_file(context: Context, path: Path, size: int, offset: int) -> None:
    """Raises EOFError when the file is not as long as it was, OSError when it cannot be read or sent."""
    handle = await asyncio.to_thread(path.open, "rb")
    try:
        if os.fstat(handle.fileno()).st_size != size:
            raise EOFError
        handle.seek(offset)
        while offset < size:
            piece = await asyncio.to_thread(handle.read, CHUNK_BYTES)
            if not piece:
                raise EOFError
            offset += len(piece)
            async with asyncio.timeout(STALLED_S):
                await context.write(edge_pb2.Chunk(piece=piece))
    finally:
        handle.close()


def _authorization(context: Context) -> str:
    found = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    return found[0] if len(found) == 1 and isinstance(found[0], str) else ""


async def _abort(
    context: Context, status: str, text: str, trailing: tuple[tuple[str, str], ...] = ()
) -> NoReturn:
    await context.abort(grpc.StatusCode[status], text, trailing)
    raise AssertionError("abort raises")
