"""The load generator, the fixed backend and the peer: what they count must be what happened."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.bench import backends, load, paths, run
from tests.bench.load import Spec
from tests.bench.processes import Cores, Served
from tests.bench.workload import PAYLOADS, pb

UNPINNED = Cores(None, None)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with backends.fixed_backend(tmp_path_factory.mktemp("bench"), UNPINNED) as served:
        yield served


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("payload", ["small", "large"])
async def test_every_answer_is_right_and_counted_once(backend: Served, protocol: str, payload: str):
    spec = Spec(backend.addresses[protocol], protocol, payload, inflight=4, seconds=20, max_requests=120)
    seen = await load.run(spec)
    assert seen.bad == 0
    assert seen.requests == 120
    assert seen.p50_ms is not None
    assert seen.p99_ms is not None
    assert 0 < seen.p50_ms <= seen.p99_ms
    assert seen.cpu_us == 0


async def test_a_load_ends_with_its_time(backend: Served):
    seen = await load.run(Spec(backend.addresses["http"], "http", "small", 1, seconds=0.2, warmup_s=0))
    assert seen.requests > 0
    assert seen.requests / seen.rps == pytest.approx(0.2, rel=1)


async def test_the_cpu_time_of_the_path_is_per_request(backend: Served):
    """Load and path are one process here, so each request costs it more than nothing and less than
    all the time it took."""
    spec = Spec(backend.addresses["http"], "http", "small", 1, seconds=1, pids=(os.getpid(),))
    seen = await load.run(spec)
    assert seen.cpu_us is not None
    assert 0 < seen.cpu_us <= 1.5 * 1e6 / seen.rps


@asynccontextmanager
async def answering(answer: bytes):
    """An HTTP server that says the same to everything."""

    handlers: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(load.content_length(head))
                writer.write(answer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*(handler for handler in handlers if handler))


RIGHT = PAYLOADS["small"].http_answer


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(RIGHT.replace(b"200 OK", b"503 Service Unavailable"), id="status"),
        pytest.param(RIGHT[:-1] + bytes([RIGHT[-1] ^ 1]), id="one bit of the tensor"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", id="empty"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", id="no length"),
    ],
)
async def test_a_wrong_answer_is_bad(answer: bytes):
    async with answering(answer) as address:
        seen = await load.run(Spec(address, "http", "small", 2, seconds=5, max_requests=6))
    assert seen.requests == 0
    assert seen.bad == 6
    assert seen.p50_ms is None


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_a_place_that_is_gone_is_bad(protocol: str):
    seen = await load.run(Spec("127.0.0.1:1", protocol, "small", 2, seconds=5, max_requests=6))
    assert (seen.requests, seen.bad) == (0, 6)


def test_the_two_bindings_carry_the_same_tensor():
    for payload in PAYLOADS.values():
        request = pb.ModelInferRequest.FromString(payload.grpc_request)
        answer = pb.ModelInferResponse.FromString(payload.grpc_answer)
        assert [*request.raw_input_contents] == [*answer.raw_output_contents] == [payload.tensor]
        assert payload.http_request.endswith(payload.tensor)
        assert payload.http_answer.endswith(payload.tensor)
    assert len(PAYLOADS["small"].tensor) == 16 * 4
    assert len(PAYLOADS["large"].tensor) == 3 * 224 * 224 * 4


def row(path: str, p50_ms: float | None, cpu_us: float | None) -> run.Row:
    return run.Row(path, "grpc", "small", 1, 100.0, p50_ms, 9.0, cpu_us, 0)


def test_ratios_are_to_the_rows_of_the_same_load():
    added, share = run.ratios(
        [row("direct", 0.5, 0.0), row("portable", 0.75, 50.0), row(run.PEER, 2.5, 500.0)]
    )
    assert added == {"portable": 0.25, run.PEER: 2.0}
    assert share == {"portable": 0.1}


def test_ratios_to_what_was_not_measured_are_left_out():
    assert run.ratios([row("portable", 0.75, 50.0)]) == ({}, {})
    assert run.ratios([row("direct", None, 0.0), row(run.PEER, None, None), row("portable", 1.0, 5.0)]) == (
        {},
        {},
    )


def test_the_file_holds_a_list_of_rows_as_the_contract_names_them(tmp_path: Path):
    output = tmp_path / "build" / "bench.json"
    run.write([row("direct", 0.5, 0.0)], output)
    assert json.loads(output.read_text()) == [
        {
            "path": "direct",
            "protocol": "grpc",
            "payload": "small",
            "inflight": 1,
            "rps": 100.0,
            "p50_ms": 0.5,
            "p99_ms": 9.0,
            "cpu_us": 0.0,
            "bad": 0,
        }
    ]
    assert [*output.parent.iterdir()] == [output]


@pytest.mark.parametrize("path", ["portable", "ray-serve-proxy"])
async def test_a_path_carries_requests_and_its_processes_are_seen_working(
    backend: Served, path: str, tmp_path: Path
):
    with paths.PATHS[path](backend, tmp_path, UNPINNED) as served:
        for protocol, address in served.addresses.items():
            spec = Spec(address, protocol, "small", 4, seconds=20, max_requests=150, pids=served.pids)
            seen = await load.run(spec)
            assert seen.bad == 0
            assert seen.cpu_us is not None
            assert seen.cpu_us > 0
