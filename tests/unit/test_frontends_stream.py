"""A stream whose caller has left when it is answered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, cast

import grpc.aio
import pytest

from gateway.core.call import Binding, Call, Reply, Send
from gateway.frontends.grpc_stream import ClientStream
from tests.support.fakes import BytesBody


class Gone:
    """A call's context as it is once the caller has left: one message was read, and nothing can be written."""

    def __init__(self) -> None:
        self.messages: list[Any] = [b"\n\x01m", grpc.aio.EOF]

    async def read(self) -> Any:
        return self.messages.pop(0)

    async def send_initial_metadata(self, _: object) -> None:
        raise grpc.aio.InternalError("failed to execute a batch")

    write = send_initial_metadata


class Answering:
    """Handlers that answer everything with one part, and keep how that ended."""

    def __init__(self) -> None:
        self.ends: list[type[BaseException] | None] = []

    def admits(self, _: Call) -> bool:
        return True

    async def stream(self, _: Call, send: Send) -> Reply:
        try:
            await send((), b"")
        except BaseException as error:
            self.ends.append(type(error))
            raise
        return Reply()


async def test_an_answer_to_a_caller_who_has_left_is_no_fault_of_the_gateways(
    caplog: pytest.LogCaptureFixture,
):
    handlers, metadata = Answering(), cast(Sequence[tuple[str, str]], ())
    call = Call(Binding.GRPC, "ModelStreamInfer", metadata, BytesBody(b""), time.monotonic())
    with caplog.at_level(logging.DEBUG):
        stream = ClientStream(cast(Any, handlers), cast(Any, Gone()), call, asyncio.Event(), 2**20)
        async with asyncio.timeout(10):
            await stream.serve()
    assert handlers.ends == [asyncio.CancelledError]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
