"""The demo's real parts: two Triton servers, their measurement, the cloud's gateway before them, and a
plant with a gateway and devices of its own."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gateway.backends.triton import TritonEndpoint
from gateway.core.config.load import kinds_in, load_config
from gateway.core.decision import VariantKey
from gateway.core.ports import Surroundings
from gateway.demo.artifacts import export, wakeword
from gateway.demo.caller import infer_request
from gateway.demo.digits import DigitsModel, build_repository, sample, train_base
from gateway.demo.line import MODEL as LINE_DIGITS
from gateway.demo.line import Scenery
from gateway.demo.plant import Plant, plant_staged, wait_endpoints
from gateway.demo.processes import Serving, gateway
from gateway.demo.triton import TritonServer
from gateway.demo.wiretap import Wiretap
from gateway.jobs.measure import measure
from gateway.jobs.synthetic import synthetic_permit
from gateway.store.profiles import Profile, ProfileStore

CONFIG = Path(__file__).with_name("tidegate.yaml")
CHEAP, DEAR = "cheap-slow", "dear-fast"
CHEAP_DELAY_MS = 120.0
CHEAP_INSTANCES = 4
DEAR_INSTANCES = 1
START_TIMEOUT_S = 90.0

Step = Callable[[str], None]
"""Told what begins, for a progress bar."""


@dataclass(slots=True)
class Stage:
    """What is running. `pixels` are held-out digits, FP32 [N, 64]; `scenery` is what the assembly lines of
    the last rows show; `work` is the folder of everything."""

    servers: dict[str, TritonServer]
    model: DigitsModel
    pixels: np.ndarray
    profiles: tuple[Profile, ...]
    cloud: Serving
    plant: Plant
    scenery: Scenery
    work: Path

    @property
    def http(self) -> str:
        return self.cloud.http

    @property
    def grpc(self) -> str:
        return self.cloud.grpc

    @property
    def metrics(self) -> str:
        return self.cloud.metrics


@contextlib.contextmanager
def staged(work: Path, step: Step) -> Iterator[Stage]:
    """Train, start both Tritons, measure them directly, start the gateways and the devices; stop it all
    on leaving."""
    step("training the digits model")
    model = train_base()
    pixels, _ = sample(200)
    artifacts = work / "artifacts"
    export(artifacts, model)
    wakeword(artifacts)
    scenery, labels = Scenery(), work / "labels.csv"
    scenery.write_labels(labels)
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
        taps = {name: stack.enter_context(Wiretap()) for name in ("outward", "inward")}
        environment = {
            "TIDEGATE_DEMO_CHEAP": f"127.0.0.1:{servers[CHEAP].grpc_port}",
            "TIDEGATE_DEMO_DEAR": f"127.0.0.1:{servers[DEAR].grpc_port}",
            "TIDEGATE_DEMO_CLOUD": taps["outward"].address,
            "TIDEGATE_DEMO_PLANT": taps["inward"].address,
            "TIDEGATE_DEMO_TOKEN_CLOUD": secrets.token_urlsafe(32),
            "TIDEGATE_DEMO_TOKEN_PLANT": secrets.token_urlsafe(32),
            "TIDEGATE_DEMO_ARTIFACTS": str(artifacts),
            "TIDEGATE_DEMO_REPOSITORY": str(work / CHEAP),
            "TIDEGATE_DEMO_LABELS": str(labels),
        }
        profiles = asyncio.run(_measure_all(work, environment, pixels, step))
        ProfileStore(work / "cloud").save(profiles)
        step("starting the cloud's gateway on Ray Serve")
        cloud = stack.enter_context(gateway("cloud", CONFIG, work, environment))
        taps["outward"].target = cloud.grpc
        step("starting plant-7's gateway and the devices")
        plant = stack.enter_context(plant_staged(work, environment, cloud, **taps))
        wait_endpoints(cloud.http, {CHEAP, DEAR, "gw-plant-7", "cameras"})
        yield Stage(servers, model, pixels, profiles, cloud, plant, scenery, work)


def _server(work: Path, name: str, model: DigitsModel, delay_ms: float, instances: int) -> TritonServer:
    load = ["digits"] if name == DEAR else ["digits", LINE_DIGITS]
    for served in load:
        build_repository(work / name, model=model, name=served, delay_ms=delay_ms, instances=instances)
    return TritonServer(work / name, load=load, log=work / f"{name}.log")


async def _measure_all(
    work: Path, environment: dict[str, str], pixels: np.ndarray, step: Step
) -> tuple[Profile, ...]:
    """One after the other, so that they do not disturb each other; with no gateway in between."""
    config = load_config(CONFIG, kinds_in("gateway.backends"), environment)
    declared = {endpoint.name: endpoint for endpoint in config.endpoints}
    found: list[Profile] = []
    for name in (CHEAP, DEAR):
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
