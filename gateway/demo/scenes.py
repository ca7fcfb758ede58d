"""The demo's rows in the cloud: each plays a situation against running servers and says whether it went as
it must."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np

from gateway.demo.caller import Answer, Caller, Tally, decision_record, why
from gateway.demo.relay import CountingRelay
from gateway.demo.row import Row, Tick
from gateway.demo.stage import CHEAP, DEAR, Stage

WARM_UP = 20
SETTLED_P95_MS = 25.0
SETTLE_AT_MOST_S = 20.0
CALLS = 30
TRAFFIC = 200
TRAFFIC_WORKERS = 8
KILL_AFTER = 60
LARGE_BYTES = 48 * 2**20
READ_AT_MOST = 4 * 2**20
"""Of the large body: what may be on its way in buffers when the refusal comes."""
TOLERANCE = 1e-4


CALLS_IN_ALL = WARM_UP + 4 * CALLS + 2 + TRAFFIC


def play(stage: Stage, tick: Tick) -> Iterator[Row]:
    """The six rows, in order. The last one kills the dear server."""
    caller = Caller(stage.grpc)
    try:
        _settle(stage, caller, tick)
        yield _choice(
            stage, caller, tick, "a", "cost first within 50 ms", {"tidegate-policy": "cost-50ms"}, DEAR
        )
        yield _choice(
            stage, caller, tick, "b", "cost first within 500 ms", {"tidegate-policy": "cost-500ms"}, CHEAP
        )
        yield _choice(stage, caller, tick, "c", "latency first", {"tidegate-policy": "fastest"}, DEAR)
        yield _choice(
            stage,
            caller,
            tick,
            "d",
            "a class that excludes us-east-1, cost first",
            {"tidegate-policy": "cost-500ms", "tidegate-privacy": "eu-only"},
            DEAR,
        )
        yield _refused_early(stage, tick)
        yield _killed(stage, caller, tick)
    finally:
        caller.close()


def _settle(stage: Stage, caller: Caller, tick: Tick) -> None:
    """Call the dear server until what the gateway measures of it has settled: what has just been
    started is still loading code and making connections, and its neighbours take the processor."""
    until = time.monotonic() + SETTLE_AT_MOST_S
    settled = False
    while not settled and time.monotonic() < until:
        for i in range(WARM_UP):
            caller.ask(stage.pixels[i : i + 1], {"tidegate-policy": "fastest"})
        views = {view["name"]: view for view in httpx.get(f"http://{stage.http}/api/v1/endpoints").json()}
        figure = views[DEAR]["models"][0]["latency"]
        settled = figure["source"] == "live" and figure["p95_ms"] < SETTLED_P95_MS
    tick(WARM_UP)


def _choice(
    stage: Stage, caller: Caller, tick: Tick, row: str, scene: str, options: dict[str, str], expected: str
) -> Row:
    """One after the other, every answer from the place expected, and right."""
    tally, wrong = Tally(), 0
    for i in range(CALLS):
        pixels = stage.pixels[i : i + 1]
        answer = caller.ask(pixels, options)
        wrong += not _right(stage, pixels, answer)
        tally.add(answer)
        tick(1)
    ok = tally.endpoints == [expected] and not tally.failed and not wrong
    got = f"{sum(a.endpoint == expected for a in tally.answers)} of {CALLS} from {expected}"
    if wrong or tally.failed:
        got += f", {wrong} wrong: {tally.failed[0].message if tally.failed else 'other values'}"
    reasons = why(decision_record(stage.http, tally.answers[-1].decision))
    chosen = ", ".join(tally.endpoints)
    return Row(row, scene, expected, got, chosen, tally.p50_ms, tally.cost_per_1k, reasons, ok)


def _refused_early(stage: Stage, tick: Tick) -> Row:
    """A class that excludes the gateway's own place: the answer comes, the body is never taken."""
    options = {"tidegate-privacy": "on-site"}
    host, port = stage.grpc.rsplit(":", 1)
    with CountingRelay(host, int(port)) as relay:
        caller = Caller(f"127.0.0.1:{relay.port}")
        over_grpc = caller.ask(np.zeros((LARGE_BYTES // 256, 64), np.float32), options)
        caller.close()
        taken_grpc = relay.sent
    tick(1)
    host, port = stage.http.rsplit(":", 1)
    with CountingRelay(host, int(port)) as relay:
        status, error = _post_large(relay.port, options)
        taken_http = relay.sent
    tick(1)
    ok = (
        over_grpc.status == "PERMISSION_DENIED"
        and status == 403
        and max(taken_grpc, taken_http) <= READ_AT_MOST
    )
    total = LARGE_BYTES / 2**20
    got = (
        f"HTTP {status} after {taken_http / 2**20:.1f} MiB and gRPC {over_grpc.status} after "
        f"{taken_grpc / 2**20:.1f} MiB of {total:.0f} MiB"
    )
    expected = "403 and PERMISSION_DENIED, body unread"
    return Row("e", "a class that excludes the gateway's place", expected, got, "", None, None, error, ok)


def _post_large(port: int, options: dict[str, str]) -> tuple[int, str]:
    """Send headers, then as much of a large body as the gateway takes before it answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest("POST", "/v2/models/digits/infer")
    for name, value in {**options, "Content-Length": str(LARGE_BYTES)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.sock is not None
    sock = connection.sock

    def pour() -> None:
        block = b" " * 65536
        try:
            for _ in range(LARGE_BYTES // len(block)):
                sock.sendall(block)
        except OSError:
            return  # the gateway has closed: that is what this scene is about

    pouring = threading.Thread(target=pour, daemon=True)
    pouring.start()
    response = connection.getresponse()
    message = json.load(response)["error"]
    connection.close()
    pouring.join(5)
    return response.status, message


def _killed(stage: Stage, caller: Caller, tick: Tick) -> Row:
    """The chosen server is killed under traffic; a model marked idempotent loses no request."""
    tally, wrong = Tally(), []
    due = threading.Event()

    def one(i: int) -> None:
        pixels = stage.pixels[i % len(stage.pixels)][None]
        answer = caller.ask(pixels, {"tidegate-policy": "steady"})
        tally.add(answer)
        if answer.status == "OK" and not _right(stage, pixels, answer):
            wrong.append(i)
        if len(tally.answers) >= KILL_AFTER:
            due.set()
        tick(1)

    def kill() -> None:
        due.wait(60)
        stage.servers[DEAR].kill()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with ThreadPoolExecutor(TRAFFIC_WORKERS) as pool:
        list(pool.map(one, range(TRAFFIC)))
    killer.join(60)
    failed = tally.failed
    moved = sum(a.attempts > 1 for a in tally.answers)
    got = f"{len(failed)} of {TRAFFIC} failed, {moved} answered on a second attempt"
    if wrong:
        got += f", {len(wrong)} wrong"
    reasons = failed[0].message if failed else why(decision_record(stage.http, tally.answers[-1].decision))
    ok = not failed and not wrong and tally.endpoints == [DEAR, CHEAP]
    return Row(
        "f",
        f"{DEAR} killed under traffic",
        f"0 failed, then {CHEAP}",
        got,
        " then ".join(tally.endpoints),
        tally.p50_ms,
        tally.cost_per_1k,
        reasons,
        ok,
    )


def _right(stage: Stage, pixels: np.ndarray, answer: Answer) -> bool:
    expected = stage.model.predict(pixels)
    return answer.probabilities is not None and np.allclose(answer.probabilities, expected, atol=TOLERANCE)
