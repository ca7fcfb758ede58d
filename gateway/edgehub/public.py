"""The calls of devices: Enrol, Connect, Fetch, Metadata, Deliver."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from edgewire.v1 import edge_pb2, edge_pb2_grpc
from gateway.edgehub.admission import Admission
from gateway.edgehub.book import Book
from gateway.edgehub.deliveries import Busy, Deliveries
from gateway.edgehub.fleet import Fleet
from gateway.edgehub.orders import OrderBook
from gateway.edgehub.session import Terms
from gateway.edgehub.streams import Stream, Streams
from gateway.registry.devices import Enrolled
from gateway.store.blobs import BlobDamaged, BlobError, BlobStore
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
LATEST_ROOT = "root.json"
METADATA = re.compile(r"timestamp\.json|[1-9][0-9]{0,17}\.(root|snapshot|targets)\.json")
"""Names that devices ask for: The Update Framework's, with consistent snapshots."""


class DeviceCalls(edge_pb2_grpc.EdgeHubServicer):
    """Served to devices; everybody but an Enrol with a token must show an enrolled device's credential."""

    def __init__(
        self,
        terms: Terms,
        book: Book,
        streams: Streams,
        fleet: Fleet,
        orders: OrderBook,
        blobs: BlobStore,
        deliveries: Deliveries,
        clock: Callable[[], float],
    ) -> None:
        self._terms = terms
        self._book = book
        self._streams = streams
        self._fleet = fleet
        self._orders = orders
        self._blobs = blobs
        self._deliveries = deliveries
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
            # Before the token is spent: a device without the root would trust the first that comes.
            root = await self._blobs.metadata(LATEST_ROOT)
            enrolled = await self._book.enrol(request.token, request.device, request.credential_sha256)
        except OipError as error:
            await _abort(context, error.status.grpc, error.message)
        except BlobError as error:
            logger.warning("a device cannot be enrolled: %s", error)
            await _abort(context, "UNAVAILABLE", "The root of trust cannot be read at the moment; try again.")
        finally:
            self._enrolling -= 1
        return edge_pb2.EnrolReply(
            device=enrolled.name, site=enrolled.site, labels=enrolled.labels, root=root or b""
        )

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
        stream = Stream(enrolled, self._terms, self._fleet, self._clock, self._told)
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
        try:
            blob = self._orders.file_for(enrolled, self._fleet.told(enrolled.name), request.digest)
        except OipError as error:
            await _abort(context, error.status.grpc, error.message)
        if blob is None:
            await _abort(context, "NOT_FOUND", f"Device {enrolled.name} is to run no file of this digest.")
        if request.offset > blob.size:
            await _abort(context, "OUT_OF_RANGE", f"The file has {blob.size} bytes.")
        await self._send(enrolled.name, self._blobs.stream(blob, request.offset), context)

    async def Metadata(self, request: edge_pb2.MetadataRequest, context: Context) -> None:
        enrolled = await self._known(context)
        if METADATA.fullmatch(request.name) is None:
            await _abort(context, "NOT_FOUND", "There is no metadata of this name.")
        try:
            content = await self._blobs.metadata(request.name)
        except BlobError as error:
            logger.warning("metadata for device %s cannot be read: %s", enrolled.name, error)
            await _abort(context, "UNAVAILABLE", "The metadata cannot be read at the moment.")
        if content is None:
            await _abort(context, "NOT_FOUND", f"There is no metadata {request.name}.")
        await self._send(enrolled.name, _pieces(content), context)

    async def Deliver(self, request: edge_pb2.DeliverRequest, context: Context) -> edge_pb2.DeliverReply:
        enrolled = await self._known(context)
        try:
            return await self._deliveries.take(enrolled, request)
        except Busy as busy:
            hint = ((RETRY_KEY, str(busy.again_ms)),)
            await _abort(context, "RESOURCE_EXHAUSTED", str(busy), hint)
        except OipError as error:
            await _abort(context, error.status.grpc, error.message)

    async def _send(self, device: str, pieces: AsyncIterator[bytes], context: Context) -> None:
        """Write all of something to one device, which takes part in how many are sent at once."""
        if self._fetching[device] >= FETCHES_OF_ONE:
            await _abort(context, "RESOURCE_EXHAUSTED", f"Device {device} has downloads under way.")
        self._fetching[device] += 1
        try:
            async with self._fetches:
                async for piece in pieces:
                    async with asyncio.timeout(STALLED_S):
                        await context.write(edge_pb2.Chunk(piece=piece))
        except BlobDamaged as error:
            logger.error("a download of device %s ended: %s", device, error)
            await _abort(context, "DATA_LOSS", "The stored file is damaged: ask the gateway's operator.")
        except (BlobError, TimeoutError) as error:
            # TimeoutError: the device has stalled.
            logger.warning("a download of device %s ended: %s", device, str(error) or type(error).__name__)
            await _abort(context, "UNAVAILABLE", "The download cannot go on at the moment.")
        finally:
            self._fetching[device] -= 1
            if not self._fetching[device]:
                del self._fetching[device]

    def _told(self, stream: Stream) -> None:
        """A device has said something that what it is to do may depend on."""
        enrolled = self._book.get(stream.device)
        if enrolled is not None:
            self.direct(stream, enrolled)

    def direct(self, stream: Stream, enrolled: Enrolled) -> None:
        """Tell a device what it is to do, as far as that is known."""
        desired = self._orders.desired(enrolled, self._fleet.told(enrolled.name))
        if desired is not None:
            stream.desire(desired)

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


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), CHUNK_BYTES):
        yield content[at : at + CHUNK_BYTES]


def _authorization(context: Context) -> str:
    found = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    return found[0] if len(found) == 1 and isinstance(found[0], str) else ""


async def _abort(
    context: Context, status: str, text: str, trailing: tuple[tuple[str, str], ...] = ()
) -> NoReturn:
    await context.abort(grpc.StatusCode[status], text, trailing)
    raise AssertionError("abort raises")
