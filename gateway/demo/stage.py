"""The demo's real parts: two Triton servers, their measurement, and the gateway before them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

from gateway.backends.triton import TritonEndpoint
from gateway.core.config import Config
from gateway.core.config.load import kinds_in, load_config
from gateway.core.decision import VariantKey
from gateway.core.ports import Surroundings
from gateway.demo.caller import infer_request
from gateway.demo.digits import DigitsModel, build_repository, sample, train
from gateway.demo.triton import TritonServer
from gateway.jobs.measure import measure
from gateway.jobs.synthetic import synthetic_permit
from gateway.store.profiles import Profile, ProfileStore

CONFIG = Path(__file__).with_name("tidegate.yaml")
CHEAP, DEAR = "cheap-slow", "dear-fast"
CHEAP_DELAY_MS = 120.0
CHEAP_INSTANCES = 4
DEAR_INSTANCES = 1
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 40.0

Step = Callable[[str], None]
"""Told what begins, for a progress bar."""


@dataclass(slots=True)
class Stage:
    """What is running. `pixels` are held-out digits, FP32 [N, 64]."""

    servers: dict[str, TritonServer]
    model: DigitsModel
    pixels: np.ndarray
    profiles: tuple[Profile, ...]
    http: str = ""
    grpc: str = ""
    metrics: str = ""


@contextlib.contextmanager
def staged(work: Path, step: Step) -> Iterator[Stage]:
    """Train, start both Tritons, measure them directly, start the gateway; stop it all on leaving."""
    step("training the digits model")
    model = train()
    pixels, _ = sample(200)
    with contextlib.ExitStack() as stack:
        step("starting two Triton servers")
        servers = {
            CHEAP: _server(work, CHEAP, model, CHEAP_DELAY_MS, CHEAP_INSTANCES),
            DEAR: _server(work, DEAR, model, 0.0, DEAR_INSTANCES),
        }
        for server in servers.values():
            stack.callback(server.stop)
        with ThreadPoolExecutor() as pool:
            for started in [pool.submit(s.start, START_TIMEOUT_S) for s in servers.values()]:
                started.result()
        profiles = asyncio.run(_measure_all(work, servers, pixels, step))
        ProfileStore(work).save(profiles)
        stage = Stage(servers, model, pixels, profiles)
        step("starting the gateway on Ray Serve")
        stack.enter_context(_gateway(work, stage))
        yield stage


def _server(work: Path, name: str, model: DigitsModel, delay_ms: float, instances: int) -> TritonServer:
    repository = build_repository(work / name, model=model, delay_ms=delay_ms, instances=instances)
    return TritonServer(repository, load=["digits"], log=work / f"{name}.log")


async def _measure_all(
    work: Path, servers: dict[str, TritonServer], pixels: np.ndarray, step: Step
) -> tuple[Profile, ...]:
    """One after the other, so that they do not disturb each other; with no gateway in between."""
    config = _load(servers)
    declared = {endpoint.name: endpoint for endpoint in config.endpoints}
    found: list[Profile] = []
    for name in servers:
        step(f"measuring {name} directly: latency and saturation")
        endpoint = TritonEndpoint(declared[name], Surroundings(config, work, lambda group, devices: None))
        await endpoint.start()
        try:
            found.append(
                await measure(
                    endpoint,
                    VariantKey(name, "digits", ""),
                    lambda i: infer_request(pixels[i % len(pixels)][None]).SerializeToString(),
                    identity=declared[name].identity,
                    permit=synthetic_permit(declared[name].place, config.gateway.name),
                )
            )
        finally:
            await endpoint.close()
    return tuple(found)


def _load(servers: dict[str, TritonServer]) -> Config:
    return load_config(CONFIG, kinds_in("gateway.backends"), _environment(servers))


def _environment(servers: dict[str, TritonServer]) -> dict[str, str]:
    """What `tidegate.yaml` asks for."""
    return {
        "TIDEGATE_DEMO_CHEAP": f"127.0.0.1:{servers[CHEAP].grpc_port}",
        "TIDEGATE_DEMO_DEAR": f"127.0.0.1:{servers[DEAR].grpc_port}",
    }


@contextlib.contextmanager
def _gateway(work: Path, stage: Stage) -> Iterator[None]:
    """`tidegate up` as a process of its own, as an operator would run it."""
    environment = {**os.environ, **_environment(stage.servers)}
    listen = [part for flag in ("--http", "--grpc", "--metrics") for part in (flag, "127.0.0.1:0")]
    command = [sys.executable, "-m", "gateway.cli.main", "up", "-f", str(CONFIG), "--json"]
    log = (work / "gateway.log").open("w")
    process = subprocess.Popen(
        [*command, *listen, "--state-dir", str(work)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        start_new_session=True,  # Ctrl-C is for the demo, which then lets the gateway drain
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the gateway did not start: {(work / 'gateway.log').read_text()[-2000:]}")
        serving = json.loads(line)
        stage.http, stage.grpc, stage.metrics = serving["http"], serving["grpc"], serving["metrics"]
        wait_endpoints(stage, set(stage.servers))
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
        process.kill()
        process.wait()
        log.close()


def wait_endpoints(stage: Stage, up: set[str], timeout_s: float = 30.0) -> None:
    """Until the gateway itself says that these endpoints, and every variant on them, are ready."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        views = httpx.get(f"http://{stage.http}/api/v1/endpoints", timeout=10).json()
        ready = {v["name"] for v in views if v["up"] and all(m["ready"] for m in v["models"])}
        if up <= ready:
            return
        time.sleep(0.1)
    raise RuntimeError(f"the gateway does not see {', '.join(sorted(up))} as ready")
