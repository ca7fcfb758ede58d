"""A bounded, closed-loop load: `python -m tests.bench.load '<spec as JSON>'`.

Keeps a fixed number of requests in flight for a time or a number of answers, whichever ends first,
after a warm-up that is not counted. Checks every answer. Reads the CPU time of the path's processes
at both ends of the counted window, so that warm-up and start are not in it. Prints one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass

import grpc
import grpc.aio
import psutil

from tests.bench.fixed import UNLIMITED, content_length
from tests.bench.workload import PAYLOADS, SERVICE, Payload

REQUEST_TIMEOUT_S = 30.0
"""Long after which an answer counts as bad; it only ends requests that would never end."""

Ask = Callable[[], Awaitable[bool]]
"""Send one request and say whether its answer is right. Raises nothing."""


@dataclass(frozen=True)
class Spec:
    """One load. `address` is host:port, `protocol` "grpc" or "http", `payload` a name in PAYLOADS.
    `pids` are the processes whose CPU time counts, each with its children."""

    address: str
    protocol: str
    payload: str
    inflight: int
    seconds: float = 3.0
    warmup_s: float = 0.5
    max_requests: int = 100_000
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Result:
    """What the counted window saw. `cpu_us` is per request, over all of `pids`; None without any
    answer. `bad` are answers that were wrong, errors or missing; they are not in the latencies."""

    requests: int
    rps: float
    p50_ms: float | None
    p99_ms: float | None
    cpu_us: float | None
    bad: int


class Window:
    """Counts what ends while it is open, and closes when it has seen enough. `over`: ask no more."""

    def __init__(self, enough: int) -> None:
        self.latencies: list[float] = []
        self.bad = 0
        self.full = asyncio.Event()
        self.over = False
        self._enough = enough
        self._open = False

    def open(self) -> None:
        self._open = True

    def close(self) -> None:
        self._open = False

    def add(self, seconds: float, right: bool) -> None:
        if not self._open:
            return
        if right:
            self.latencies.append(seconds)
        else:
            self.bad += 1
        if len(self.latencies) + self.bad >= self._enough:
            self.close()
            self.full.set()


async def run(spec: Spec) -> Result:
    payload = PAYLOADS[spec.payload]
    async with AsyncExitStack() as stack:
        asks = await connect(spec, payload, stack)
        window = Window(spec.max_requests)
        workers = [asyncio.create_task(_ask_until_over(ask, window)) for ask in asks]
        await asyncio.sleep(spec.warmup_s)
        cpu, began = cpu_seconds(spec.pids), time.perf_counter()
        window.open()
        with suppress(TimeoutError):
            await asyncio.wait_for(window.full.wait(), spec.seconds)
        window.close()
        elapsed, cpu = time.perf_counter() - began, cpu_seconds(spec.pids) - cpu
        window.over = True
        await asyncio.gather(*workers)
    done = sorted(window.latencies)
    answers = len(done) + window.bad
    return Result(
        requests=len(done),
        rps=len(done) / elapsed,
        p50_ms=quantile(done, 0.50),
        p99_ms=quantile(done, 0.99),
        cpu_us=cpu / answers * 1e6 if answers else None,
        bad=window.bad,
    )


async def _ask_until_over(ask: Ask, window: Window) -> None:
    """Requests are never cancelled: that would be a load of its own, on the backend too."""
    while not window.over:
        began = time.perf_counter()
        right = await ask()
        window.add(time.perf_counter() - began, right)
        if not right:
            await asyncio.sleep(0.01)


async def connect(spec: Spec, payload: Payload, stack: AsyncExitStack) -> list[Ask]:
    """As many ways to ask as requests in flight; the stack closes what they need."""
    if spec.protocol == "grpc":
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(spec.address, options=UNLIMITED))
        return [_grpc_ask(channel, payload)] * spec.inflight
    connections = [HttpConnection(spec.address, payload) for _ in range(spec.inflight)]
    for connection in connections:
        stack.push_async_callback(connection.close)
    return [connection.ask for connection in connections]


def _grpc_ask(channel: grpc.aio.Channel, payload: Payload) -> Ask:
    infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
    request, tensor = payload.grpc_request, payload.tensor

    async def ask() -> bool:
        try:
            return (await infer(request, timeout=REQUEST_TIMEOUT_S)).endswith(tensor)
        except grpc.RpcError:
            return False

    return ask


class HttpConnection:
    """One keep-alive connection with one request on it at a time; reconnects after a failure."""

    def __init__(self, address: str, payload: Payload) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._request, self._tensor = payload.http_request, payload.tensor
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self) -> bool:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await self._ask()
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError):
            await self.close()
            return False

    async def _ask(self) -> bool:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=2**21)
        reader, writer = self._streams
        writer.write(self._request)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(content_length(head))
        return head.startswith(b"HTTP/1.1 200") and body.endswith(self._tensor)

    async def close(self) -> None:
        if self._streams is not None:
            _, writer = self._streams
            self._streams = None
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def quantile(ordered: list[float], q: float) -> float | None:
    """The value at or above a share `q` of the sorted seconds, in milliseconds; None of nothing."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1000


def cpu_seconds(pids: tuple[int, ...]) -> float:
    """User and system time that the processes and their children have used so far."""
    total = 0.0
    for process in {p for pid in pids for p in family(pid)}:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def family(pid: int) -> list[psutil.Process]:
    """A process and all its descendants; empty when it is gone."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def main() -> None:
    spec = Spec(**json.loads(sys.argv[1]))
    print(json.dumps(asdict(asyncio.run(run(spec)))), flush=True)


if __name__ == "__main__":
    main()
