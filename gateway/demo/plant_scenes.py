"""The demo's rows at plant-7: what stays on the site, whom a relay may ask, and what goes on when
something is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from gateway.demo.caller import Answer, Caller, Tally, decision_record, why
from gateway.demo.plant import FAR, NEAR, NEAR_TOO, wait_devices, wait_endpoints, wait_until
from gateway.demo.row import Row, Tick
from gateway.demo.stage import Stage

CALLS = 30
TRAFFIC = 200
TRAFFIC_WORKERS = 8
KILL_AFTER = 60
COLD_DEADLINE_MS = 60_000
INT8_TOLERANCE = 0.15
"""Of a probability: what eight bits for weights and activations may change."""
FP32_TOLERANCE = 1e-3
CALLS_IN_ALL = CALLS + 2 + 3 + 3 * CALLS + CALLS + TRAFFIC
PERSONAL = {"tidegate-privacy": "personal", "tidegate-policy": "thrifty"}


def play(stage: Stage, tick: Tick) -> Iterator[Row]:
    """Rows (g) to (k), in order. The last one kills a device."""
    caller = Caller(stage.plant.gateway.grpc)
    try:
        yield _stays_on_site(stage, caller, tick)
        yield _relay(stage, caller, tick)
        yield _cut_off(stage, caller, tick)
        yield _from_zero(stage, caller, tick)
        yield _device_killed(stage, caller, tick)
    finally:
        caller.close()


def _stays_on_site(stage: Stage, caller: Caller, tick: Tick) -> Row:
    """`personal` data is answered by a device of the plant, and the line to the cloud never carries a byte
    of it. One public request shows that the tap would have seen it."""
    rng = np.random.default_rng()
    tally, wrong, payloads = Tally(), 0, []
    for i in range(CALLS):
        pixels = _marked(stage.pixels[i : i + 1], rng)
        payloads.append(pixels.tobytes())
        answer = caller.ask(pixels, PERSONAL)
        wrong += not _right(stage, pixels, answer, INT8_TOLERANCE)
        tally.add(answer)
        tick(1)
    third_party = _wake_word(stage)
    shown = _marked(stage.pixels[:1], rng)
    public = caller.ask(shown, {"tidegate-privacy": "in-the-cloud"})
    tick(2)
    taps = (stage.plant.outward, stage.plant.inward)
    left = sum(tap.payload_seen(payload) for tap in taps for payload in payloads)
    seen = stage.plant.outward.payload_seen(shown.tobytes())
    devices = _devices(stage, tally)
    ok = (
        tally.endpoints == ["cameras"]
        and devices <= {NEAR, NEAR_TOO}
        and not (tally.failed or wrong or left)
        and public.endpoint == "gw-cloud"
        and _right(stage, shown, public, FP32_TOLERANCE)
        and seen == len(shown.tobytes())
        and third_party
    )
    got = (
        f"{CALLS - len(tally.failed) - wrong} of {CALLS} right, from {_names(devices)}; {left} of "
        f"{sum(map(len, payloads))} payload bytes left the site (of a public request {seen} of "
        f"{len(shown.tobytes())}); hey-mycroft {'right' if third_party else 'WRONG'}"
    )
    return _row(
        stage, "g", "personal data at plant-7", "a device of plant-7, 0 bytes off the site", got, tally, ok
    )


def _relay(stage: Stage, caller: Caller, tick: Tick) -> Row:
    """A class that lets the site's gateway relay and the same device answer: with the device there, and
    away. And `secret`, which no gateway may see, at the device's own agent."""
    agent = stage.plant.agents[NEAR_TOO]
    mine = {"authorization": f"Bearer {agent.credential()}", "tidegate-privacy": "own-device"}
    pixels = stage.pixels[:1]
    there = caller.ask(pixels, mine)
    agent.stop()
    _until_away(stage, NEAR_TOO)
    away = caller.ask(pixels, mine)
    tick(2)
    secret = {"tidegate-privacy": "secret"}
    here, answered_by = _ask_http(stage.plant.agents[NEAR].http, pixels, secret)
    gateways, _ = _ask_http(stage.plant.gateway.http, pixels, secret)
    tick(1)
    agent.start()
    wait_devices(stage.plant.gateway.http, {NEAR_TOO})
    tally = Tally([there])
    ok = (
        _right(stage, pixels, there, INT8_TOLERANCE)
        and _devices(stage, tally) == {NEAR_TOO}
        and away.status == "UNAVAILABLE"
        and NEAR_TOO in away.message
        and here == 200
        and answered_by == NEAR
        and gateways == 403
    )
    got = (
        f"there: {there.status} from {_names(_devices(stage, tally))}; away: {away.status}; secret: "
        f"{here} from {answered_by}'s own agent, {gateways} from the gateway"
    )
    expected = "the same device, or a refusal with the reason"
    return Row(
        "h",
        "plant-7 may relay, one device answer",
        expected,
        got,
        there.endpoint,
        None,
        None,
        away.message,
        ok,
    )


def _cut_off(stage: Stage, caller: Caller, tick: Tick) -> Row:
    """Without the line to the cloud, the site, each device and the other plant go on."""
    for tap in (stage.plant.outward, stage.plant.inward):
        tap.cut()
    _until_down(stage.plant.gateway.http, "gw-cloud")
    cloud = Caller(stage.cloud.grpc, "digits-at-the-edge")
    site, local, other = Tally(), 0, Tally()
    for i in range(CALLS):
        pixels = stage.pixels[i : i + 1]
        site.add(caller.ask(pixels, {"tidegate-policy": "thrifty"}))
        local += _ask_http(stage.plant.agents[NEAR].http, pixels, {})[0] == 200
        other.add(cloud.ask(pixels, {}))
        tick(3)
    cloud.close()
    for tap in (stage.plant.outward, stage.plant.inward):
        tap.mend()
    wait_endpoints(stage.plant.gateway.http, {"gw-cloud"})
    wait_endpoints(stage.cloud.http, {"gw-plant-7"})
    records = [decision_record(stage.http, answer.decision) for answer in other.answers]
    far = {record["attempts"][-1].get("device") for record in records}
    ok = (
        not site.failed
        and not other.failed
        and local == CALLS
        and site.endpoints == ["cameras"]
        and far == {FAR}
    )
    got = (
        f"site {CALLS - len(site.failed)} of {CALLS}, {NEAR} itself {local} of {CALLS}, plant-9 through the "
        f"cloud {CALLS - len(other.failed)} of {CALLS}"
    )
    return _row(
        stage, "i", "plant-7 cut off from the cloud", "no request fails on either side", got, site, ok
    )


def _from_zero(stage: Stage, caller: Caller, tick: Tick) -> Row:
    """The pool has no replica until somebody asks; the first request waits for it within its deadline."""
    options = {"tidegate-privacy": "in-the-server-room", "tidegate-deadline-ms": str(COLD_DEADLINE_MS)}
    before = _replicas(stage)
    started = time.perf_counter()
    first = caller.ask(stage.pixels[:1], options, timeout_s=COLD_DEADLINE_MS / 1000)
    waited_s = time.perf_counter() - started
    tick(1)
    tally, wrong = Tally([first]), 0
    for i in range(1, CALLS):
        pixels = stage.pixels[i : i + 1]
        answer = caller.ask(pixels, options)
        wrong += not _right(stage, pixels, answer, FP32_TOLERANCE)
        tally.add(answer)
        tick(1)
    wait_until(lambda: _replicas(stage) > 0, 10, "the pool's replica is not seen")
    after = _replicas(stage)
    ok = not tally.failed and not wrong and before == 0 < after and tally.endpoints == ["server-room"]
    got = (
        f"{before} replicas, the first answer after {waited_s:.1f} s, then {after}; "
        f"{CALLS - len(tally.failed) - wrong} of {CALLS} right"
    )
    return _row(
        stage, "j", "a pool of no replicas is asked", "the first request waits for one", got, tally, ok
    )


def _device_killed(stage: Stage, caller: Caller, tick: Tick) -> Row:
    """One of two devices is killed under traffic that only they may answer."""
    tally, wrong = Tally(), []
    due = threading.Event()

    def one(i: int) -> None:
        pixels = stage.pixels[i % len(stage.pixels)][None]
        answer = caller.ask(pixels, {"tidegate-privacy": "on-a-device", "tidegate-policy": "thrifty"})
        tally.add(answer)
        if answer.status == "OK" and not _right(stage, pixels, answer, INT8_TOLERANCE):
            wrong.append(i)
        if len(tally.answers) >= KILL_AFTER:
            due.set()
        tick(1)

    def kill() -> None:
        due.wait(60)
        stage.plant.agents[NEAR].kill()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with ThreadPoolExecutor(TRAFFIC_WORKERS) as pool:
        list(pool.map(one, range(TRAFFIC)))
    killer.join(60)
    moved = sum(a.attempts > 1 for a in tally.answers)
    got = f"{len(tally.failed)} of {TRAFFIC} failed, {moved} answered on a second attempt, {len(wrong)} wrong"
    ok = not tally.failed and not wrong and tally.endpoints == ["cameras"]
    return _row(stage, "k", f"{NEAR} killed under traffic", f"0 failed, {NEAR_TOO} goes on", got, tally, ok)


def _row(stage: Stage, row: str, scene: str, expected: str, got: str, tally: Tally, ok: bool) -> Row:
    last = (tally.failed or tally.answers)[-1]
    reasons = last.message or why(decision_record(stage.plant.gateway.http, last.decision))
    chosen = " then ".join(tally.endpoints)
    return Row(row, scene, expected, got, chosen, tally.p50_ms, tally.cost_per_1k, reasons, ok)


def _marked(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The same digit with a little noise, so that its bytes are like no other's."""
    return np.clip(pixels + rng.uniform(1e-4, 2e-3, pixels.shape), 0, 1).astype(np.float32)


def _right(stage: Stage, pixels: np.ndarray, answer: Answer, tolerance: float) -> bool:
    expected = stage.model.predict(pixels)
    return answer.probabilities is not None and np.allclose(answer.probabilities, expected, atol=tolerance)


def _wake_word(stage: Stage) -> bool:
    """The third-party model on the devices gives what its golden vectors say."""
    golden = np.load(Path(stage.plant.artifacts) / "hey_mycroft.tflite.golden.npz")
    names = {
        kind: next(n for n in golden.files if n.startswith(f"0/{kind}/")) for kind in ("input", "output")
    }
    value, expected = golden[names["input"]], golden[names["output"]]
    inputs = [
        {
            "name": names["input"].split("/", 2)[2],
            "datatype": value.dtype.name.upper(),
            "shape": list(value.shape),
            "data": value.ravel().tolist(),
        }
    ]
    url = f"http://{stage.plant.gateway.http}/v2/models/hey-mycroft/infer"
    answer = httpx.post(url, json={"inputs": inputs}, timeout=20)
    found = answer.json().get("outputs", [{}])[0].get("data", [])
    return answer.status_code == 200 and np.allclose(found, expected.ravel(), atol=float(golden["tolerance"]))


def _ask_http(address: str, pixels: np.ndarray, options: dict[str, str]) -> tuple[int, str]:
    """Status, and who answered."""
    tensor: dict[str, Any] = {"name": "pixels", "datatype": "FP32", "shape": list(pixels.shape)}
    body = {"inputs": [{**tensor, "data": pixels.ravel().tolist()}]}
    answer = httpx.post(f"http://{address}/v2/models/digits/infer", json=body, headers=options, timeout=20)
    return answer.status_code, answer.headers.get("tidegate-endpoint", "")


def _devices(stage: Stage, tally: Tally) -> set[str]:
    """Which devices gave the answers, from the decision records."""
    records = [decision_record(stage.plant.gateway.http, a.decision) for a in tally.answers if a.decision]
    return {r["attempts"][-1].get("device", r["attempts"][-1]["endpoint"]) for r in records if r["attempts"]}


def _names(devices: set[str]) -> str:
    return " and ".join(sorted(devices)) or "nobody"


def _replicas(stage: Stage) -> int:
    views = httpx.get(f"http://{stage.plant.gateway.http}/api/v1/endpoints", timeout=10).json()
    return next(v["replicas"]["running"] for v in views if v["name"] == "server-room")


def _until_away(stage: Stage, device: str, timeout_s: float = 20.0) -> None:
    url = f"http://{stage.plant.gateway.http}/api/v1/devices/{device}"
    wait_until(lambda: not httpx.get(url).json()["connected"], timeout_s, f"{device} is not seen as away")


def _until_down(http: str, endpoint: str, timeout_s: float = 20.0) -> None:
    def down() -> bool:
        views = httpx.get(f"http://{http}/api/v1/endpoints", timeout=10).json()
        return any(v["name"] == endpoint and not v["up"] for v in views)

    wait_until(down, timeout_s, f"{endpoint} is not seen as down")
