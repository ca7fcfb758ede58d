"""One gateway, three routes: the fixture models on a real Triton, on a pool and on a device.

A model has the same name on each; the caller's privacy class, which the header in `ROUTES` names, allows one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from gateway.demo.triton import TritonServer
from tests.conformance import device_models, pool_runtime
from tests.conformance.python_models import BATCHED, MODELS
from tests.support.agent import AgentProcess, running_agent
from tests.support.gateway import Gateway, running_gateway
from tests.support.processes import source_env

HEADER = "tidegate-privacy"
ROUTES = ("r1", "r2", "r3")
"""To Triton, to the pool, to the device: classes of the configuration."""
AGENT = ("-m", "tests.conformance.device_agent")
READY_S = 120.0
NOT_ON_TRITON = frozenset({"scalar_out"})
"""Triton's configuration cannot say a scalar, so that its variant would be another model."""

_CONFIG = """\
version: 1
gateway: {{name: gw, location: {{tier: cloud, region: here}}, limits: {{max_body_mb: 64}}}}
endpoints:
  - {{name: triton, kind: triton, url: "grpc://127.0.0.1:{port}", location: {{tier: cloud, region: far}}}}
  - name: pool
    kind: pool
    runtime: fixtures
    resources: {{CPU: 0.1}}
    replicas: {{min: 1, max: 1}}
    location: {{tier: regional, region: near}}
  - {{name: cameras, kind: edge, select: {{site: [plant]}}}}
privacy:
  default: any
  classes:
    any: {{allow: [{{tier: [device, site, regional, cloud]}}]}}
    r1: {{allow: [{{tier: [cloud]}}]}}
    r2: {{allow: [{{tier: [regional]}}, {{tier: [cloud], region: [here]}}]}}
    r3: {{allow: [{{tier: [device]}}, {{tier: [cloud], region: [here]}}]}}
policies: [{{name: default, match: {{}}, weights: {{latency: 1}}}}]
models:
"""


@dataclass(frozen=True, slots=True)
class Stage:
    gateway: Gateway
    triton: TritonServer
    agent: AgentProcess
    slow_logs: Mapping[str, Path]
    """Where slow_identity of each route writes what it did."""


@contextlib.contextmanager
def set_up(repository: Path, folder: Path, *, only: Collection[str] | None = None) -> Iterator[Stage]:
    """The stage, once every model of it answers. `only`: of the repository's models."""
    names = sorted(p.name for p in repository.iterdir() if p.is_dir())
    loaded = [name for name in names if only is None or name in only]
    logs = {route: folder / f"slow-{route}.jsonl" for route in ROUTES}
    search = source_env()["PYTHONPATH"]
    runtime = pool_runtime.installed(folder / "runtime")
    with contextlib.ExitStack() as stack:
        triton = TritonServer(repository, load=loaded, env={"SLOW_LOG": str(logs["r1"])})
        stack.callback(triton.stop)
        triton.start(READY_S)
        text = _CONFIG.format(port=triton.grpc_port) + "".join(_entry(folder, name) for name in loaded)
        environ = {"SLOW_LOG": str(logs["r2"]), "PYTHONPATH": f"{runtime}:{search}"}
        gateway = stack.enter_context(running_gateway(text, folder / "gw", environ))
        answer = httpx.post(f"http://{gateway.http}/api/v1/devices/tokens", json={"site": "plant"})
        assert gateway.edge is not None
        flags = (gateway.edge, "--token", answer.raise_for_status().json()["token"])
        environ = {"SLOW_LOG": str(logs["r3"])}
        agent = stack.enter_context(running_agent(folder / "cam", *flags, program=AGENT, environ=environ))
        gateway.wait_up("triton", "pool", "cameras", timeout_s=READY_S)
        yield Stage(gateway, triton, agent, logs)


def _entry(folder: Path, name: str) -> str:
    """A model of the configuration, on every route that has it."""
    batching = ", batching: {max_size: 8, delay_ms: 0}" if name in BATCHED else ""
    places = [] if name in NOT_ON_TRITON else ["{endpoint: triton}"]
    if name in MODELS:
        places.append(f"{{endpoint: pool, artifact: {pool_runtime.artifact(folder, name)}{batching}}}")
    if name in device_models.names():
        path = folder / f"{name}.tflite"
        path.write_bytes(device_models.artifact(name))
        places.append(f"{{endpoint: cameras, artifact: {path}{batching}}}")
    return f"  - {{name: {name}, privacy: any, variants: [{', '.join(places)}]}}\n"
