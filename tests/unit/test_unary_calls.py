"""Calls that are left end at the server, and what waits for them within gRPC ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.backends._unary import answer_of, leave
from tests.support.waiting import until


class Server(grpc.GenericRpcHandler):
    """Gives back what it gets, but for `wait`, which is never answered, and `fail`."""

    def __init__(self) -> None:
        self.waits = self.cancelled = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(self.answer)

    async def answer(self, body: bytes, context: grpc.aio.ServicerContext) -> bytes:
        if body == b"fail":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no")
        try:
            while body == b"wait":
                self.waits += 1
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return body


@pytest.fixture
async def served() -> AsyncIterator[tuple[Server, Any]]:
    handler = Server()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield handler, channel.unary_unary("/a/b")
    await server.stop(0)


async def test_an_answer_and_a_failure_are_grpcs(served: tuple[Server, Any]):
    _, ask = served
    call = ask(b"x", timeout=10)
    assert await answer_of(call) == b"x"
    leave(call)
    assert await call.code() is grpc.StatusCode.OK
    with pytest.raises(grpc.aio.AioRpcError, match="no"):
        await answer_of(ask(b"fail", timeout=10))
    with pytest.raises(TypeError):
        await answer_of(ask(b"x", metadata=(("a", 7),)))


async def test_a_call_that_is_left_ends_on_both_sides_and_is_waited_for_to_its_end(
    served: tuple[Server, Any],
):
    """Within gRPC nothing is cancelled: what is would never be freed."""
    handler, ask = served
    call = ask(b"wait", timeout=60)
    waiting = asyncio.create_task(answer_of(call))
    await until(lambda: handler.waits == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not call.done()
    leave(call)
    await until(lambda: handler.cancelled == 1)
    assert await call.code() is grpc.StatusCode.CANCELLED
    inner = call._call_response
    await asyncio.wait((inner,), timeout=10)
    assert inner.done()
    assert inner.cancelling() == 0


async def test_a_call_of_another_kind_is_cancelled_as_usual():
    class Other(asyncio.Future[bytes]):
        pass

    call = Other()
    leave(call)
    assert call.cancelled()
