"""Servers that speak gRPC but not as Triton does: every call still ends as an answer or an AttemptError."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

import grpc
import pytest

from gateway.backends._channel import MAX_METADATA_BYTES
from gateway.backends.triton import TritonEndpoint
from gateway.core.errors import AttemptError
from oip.reasons import Reason
from tests.support.permits import PERMIT
from tests.support.triton import slow_body, triton_endpoint


class Odd(grpc.GenericRpcHandler):
    """Every method answers by `stream`, so that it may send no message at all."""

    def __init__(self, stream: Callable[..., AsyncIterator[bytes]]) -> None:
        self._handler = grpc.unary_stream_rpc_method_handler(stream)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return self._handler


@contextlib.asynccontextmanager
async def endpoint_to(stream: Callable[..., AsyncIterator[bytes]]) -> AsyncIterator[TritonEndpoint]:
    server = grpc.aio.server(options=[("grpc.max_metadata_size", 16 * 2**20)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.add_generic_rpc_handlers((Odd(stream),))
    await server.start()
    endpoint = triton_endpoint(port)
    await endpoint.start()
    yield endpoint
    await endpoint.close()
    await server.stop(None)


async def failure(endpoint: TritonEndpoint) -> AttemptError:
    """How an inference fails once there is a connection."""
    while True:
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(slow_body(0), (), 5.0, PERMIT)
        if caught.value.sent:
            return caught.value


async def nothing(_: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
    for message in ():
        yield message


async def test_ok_without_a_message_is_a_failure_of_the_endpoint():
    async with endpoint_to(nothing) as endpoint:
        error = await failure(endpoint)
        assert (error.reason, error.retryable) == (Reason.ENDPOINT_FAILED, True)
        health = await endpoint.health([("m", "")], 5.0)
        assert not health.up
        with pytest.raises(AttemptError):
            await endpoint.model_metadata("m", "", 5.0)


@pytest.mark.parametrize("size", [100, 9_000, 20_000, 200_000, MAX_METADATA_BYTES + 1])
async def test_refusal_that_quotes_a_long_request_stays_a_refusal(size: int):
    async def refuse(_: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unexpected inference input " + "n" * size)
        yield b""

    async with endpoint_to(refuse) as endpoint:
        error = await failure(endpoint)
        assert (error.reason, error.retryable) == (Reason.MALFORMED, False)
        assert (error.retryable, len(error.message) <= 1000) == (False, True)
