"""Whatever is sent as a call other than an inference: an answer or the caller's mistake, never ours."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from gateway.core.call import Binding, Call
from oip.held import BodyShare
from tests.integration.lane_support import FakeService, handlers_of
from tests.support.log_levels import at_warning

RPCS = (
    "ModelReady",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "TraceSetting",
    "LogSettings",
)
KEYS = st.sampled_from(
    [
        "trace_level",
        "trace_rate",
        "log_info",
        "log_verbose_level",
        "log_file",
        "ready",
        "parameters",
        "config",
        "x",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(autouse=True, scope="module")
def levels() -> Iterator[None]:
    with at_warning():
        yield


class Held:
    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self, share: BodyShare | None = None) -> bytes:
        return self._data


def status(binding: Binding, method: str, body: bytes) -> int:
    """Of the reply as HTTP has it, 200 for an answer; an answer can be read."""
    http = binding is Binding.HTTP
    call = Call(
        binding, method, (), Held(body), time.monotonic(), "add_sub" if http else None, client="127.0.0.1"
    )
    if http and method == "TraceSetting":
        call = Call(binding, method, (), Held(body), time.monotonic(), client="127.0.0.1")
    reply = asyncio.run(handlers_of(FakeService()).handle(call))
    if reply.error is not None:
        return reply.error.status.http
    if not http:
        getattr(service_pb2, f"{method}Response").FromString(reply.body)
    elif reply.body:
        json.loads(reply.body)
    return 200


@given(st.sampled_from(RPCS), st.binary(max_size=60))
@example("RepositoryModelLoad", b"\x12\x01\xff")
@example("LogSettings", b"\x0a\x02\x12\x00")
def test_any_bytes_over_grpc(method: str, body: bytes):
    assert status(Binding.GRPC, method, body) in (200, 400, 404, 501)


@given(st.sampled_from(RPCS[4:]), st.binary(max_size=60) | VALUES.map(lambda v: json.dumps(v).encode()))
@example("TraceSetting", b'{"trace_rate": ["1"]}')
@example("LogSettings", b'{"log_verbose_level": 1e999}')
@example("RepositoryModelLoad", b'{"parameters": {"config": "\\ud800"}}')
def test_any_body_over_http(method: str, body: bytes):
    assert status(Binding.HTTP, method, body) in (200, 400, 501)
