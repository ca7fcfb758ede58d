"""One caller's ModelStreamInfer: each message on it is an inference of its own.

Requests run side by side, so that none holds up another; those of one sequence go one after the other,
in the order they came. Responses of all are written by one writer, as fast as the caller reads. A
request that fails gets its error inside the stream, which goes on; with the metadata
`triton_grpc_error: true` the stream ends with its status instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import grpc

from gateway.core.call import Call, Reply
from gateway.core.errors import AttemptError, Refusal, TidegateError
from gateway.frontends.handlers import Handlers, unexpected
from oip.held import BodyShare
from oip.reasons import Reason
from oip.streamed import REASON, Heading, read_heading, stream_error, stream_response
from oip.wiretext import header_value, status_message

MOST_REQUESTS = 64
"""Requests of one stream that run or wait for their turn; more are left on the connection."""
_BY_STATUS = ("triton_grpc_error", "true")
_NO_MODELS_DOING = frozenset({Reason.MALFORMED, Reason.UNKNOWN_MODEL, Reason.NOT_SERVED})


class ClientStream:
    """One stream, to be served once. `call` has what all of its requests share; `leaving` is set when the
    gateway shuts down. While requests of `most_bytes` together are under way, no more are read."""

    def __init__(
        self,
        handlers: Handlers,
        context: grpc.aio.ServicerContext,
        call: Call,
        leaving: asyncio.Event,
        most_bytes: int,
    ) -> None:
        self._handlers = handlers
        self._context = context
        self._call = call
        self._leaving = leaving
        self._most_bytes = most_bytes
        self._by_status = any((key, value) == _BY_STATUS for key, value in call.metadata)
        self._writing = asyncio.Lock()
        self._begun = False
        self._running: dict[asyncio.Task[None], int] = {}
        self._turns: dict[tuple[str, int | str], asyncio.Task[None]] = {}
        self._ended_by: Reply | None = None
        self._changed = asyncio.Event()
        """Set when a request ended, or the stream is to end."""

    async def serve(self) -> None:
        """Returns when the caller has sent everything and has every answer. Aborts the call otherwise."""
        if not self._handlers.admits(self._call):
            # What the metadata forbid is refused with the messages still on the connection.
            reply = await self._handlers.stream(self._call, self._send)
            if reply.error is not None:
                await self._abort(reply, reply.error)
        leaving = asyncio.create_task(self._leaving.wait())
        leaving.add_done_callback(lambda _: self._changed.set())
        try:
            half_closed = await self._read()
            while self._running and self._ended_by is None:
                await self._change()
        finally:
            running: list[asyncio.Task[Any]] = [leaving, *self._running]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        if self._ended_by is not None and self._ended_by.error is not None:
            await self._abort(self._ended_by, self._ended_by.error)
        if not half_closed:
            refusal = Refusal(Reason.DRAINING, "this gateway is shutting down; try another replica")
            await self._abort(Reply(), refusal)

    async def _read(self) -> bool:
        """Begin requests as they come, until the caller has sent its last: True, or the stream is to end."""
        while True:
            while self._running and self._is_full():
                if self._is_over():
                    return False
                await self._change()
            message = await self._next()
            if message is None:
                return False
            if message is grpc.aio.EOF:  # pyright: ignore[reportAttributeAccessIssue]
                return True
            self._begin(message)

    def _is_full(self) -> bool:
        return len(self._running) >= MOST_REQUESTS or sum(self._running.values()) >= self._most_bytes

    def _is_over(self) -> bool:
        return self._leaving.is_set() or self._ended_by is not None

    async def _next(self) -> bytes | None:
        """The next message or gRPC's EOF; None when the stream ends before there is one."""
        reading = asyncio.ensure_future(self._context.read())
        try:
            while not reading.done() and not self._is_over():
                changed = asyncio.create_task(self._change())
                try:
                    await asyncio.wait((reading, changed), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
            return reading.result() if reading.done() else None
        finally:
            reading.cancel()

    async def _change(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    def _begin(self, message: bytes) -> None:
        heading = read_heading(message)
        before = None if heading.sequence is None else self._turns.get(heading.sequence)
        task = asyncio.create_task(self._answer(message, heading, time.monotonic(), before))
        self._running[task] = len(message)
        if heading.sequence is not None:
            self._turns[heading.sequence] = task

        def ended(_: object) -> None:
            del self._running[task]
            if not task.cancelled() and (fault := task.exception()) is not None:
                self._ended_by = self._ended_by or Reply(error=unexpected(fault, self._call.method))
            if heading.sequence is not None and self._turns.get(heading.sequence) is task:
                del self._turns[heading.sequence]
            self._changed.set()

        task.add_done_callback(ended)

    async def _answer(
        self, message: bytes, heading: Heading, received: float, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait((before,))
        call = replace(self._call, body=_Held(message), received=received)
        reply = await self._handlers.stream(call, self._send)
        if reply.error is None:
            return
        if self._by_status:
            self._ended_by = self._ended_by or reply
            return
        model = heading.model if _was_a_models(reply.error) else ""
        reason = next((value for key, value in reply.metadata if key == REASON), "")
        await self._write(reply.metadata, stream_error(reply.error.message, heading.id, model, reason))

    async def _send(self, metadata: Sequence[tuple[str, str]], body: bytes) -> None:
        await self._write(metadata, stream_response(body))

    async def _write(self, metadata: Sequence[tuple[str, str]], message: bytes) -> None:
        async with self._writing:
            try:
                if not self._begun:
                    self._begun = True
                    await self._context.send_initial_metadata(wire_metadata(metadata))
                await self._context.write(message)
            except grpc.aio.InternalError:
                # The call is over, a moment before its task is told that the caller has left.
                raise asyncio.CancelledError from None

    async def _abort(self, reply: Reply, error: TidegateError) -> None:
        code = grpc.StatusCode[error.status.grpc]
        metadata = wire_metadata(reply.metadata)
        if not self._begun:
            await self._context.send_initial_metadata(metadata)
            metadata = ()
        await self._context.abort(code, status_message(error.message), metadata)


class _Held:
    """A message that was read already."""

    def __init__(self, message: bytes) -> None:
        self._message = message

    async def read(self, share: BodyShare | None = None) -> bytes:
        if share is not None:
            share.take(len(self._message))
        return self._message


def wire_metadata(metadata: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple((key, header_value(value)) for key, value in metadata)


def _was_a_models(error: TidegateError) -> bool:
    """Whether the request got as far as a model, as far as can be told."""
    return isinstance(error, AttemptError) and error.sent and error.reason not in _NO_MODELS_DOING
