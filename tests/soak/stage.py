"""What is under load: a gateway before a Triton, a pool and a device, each with models that give back what they
get."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import psutil
from ai_edge_litert import schema_py_generated as schema

from gateway.demo.tflite import Graph
from gateway.demo.triton import TritonError, TritonServer
from tests.support import onnx_models
from tests.support.agent import AgentProcess, running_agent
from tests.support.gateway import Gateway, running_gateway
from tests.support.tflite_models import golden_file
from tests.support.triton import REPOSITORY

COLUMNS = 4
MODELS = ("id2d_fp32", "slow_identity", "repeat_int32")
"""Of the Triton."""
POOLED, ON_DEVICE = "pooled", "on_device"
"""FP32 [rows, COLUMNS], INPUT0 -> OUTPUT0, as id2d_fp32."""
CONFIG = """
version: 1
gateway: {{name: gw, location: {{tier: site, site: plant-7}}}}
endpoints:
  - {{name: t, kind: triton, url: "grpc://127.0.0.1:{port}", location: {{tier: site, site: plant-7}}}}
  - {{name: p, kind: pool, runtime: onnxruntime, replicas: {{min: 1, max: 1}}, location: {{tier: site, site: plant-7}}}}
  - {{name: d, kind: edge, select: {{site: [plant-7]}}}}
models:
{models}
  - {{name: pooled, variants: [{{endpoint: p, artifact: pooled.onnx}}]}}
  - {{name: on_device, variants: [{{endpoint: d, artifact: on_device.tflite}}]}}
privacy: {{default: any, classes: {{any: {{allow: [{{tier: [device, site]}}]}}}}}}
policies: [{{name: default, match: {{}}, weights: {{latency: 1}}}}]
"""
LOOK_S = 0.3


@dataclass
class Stage:
    """`deaths`: how often the Triton ended by itself and was started again."""

    triton: TritonServer
    gateway: Gateway
    agent: AgentProcess
    deaths: int = 0

    async def keep_triton(self) -> None:
        """Start it again whenever it has died, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not self.triton.running:
                self.deaths += 1
                # Under requests at once, it may die while it starts.
                with contextlib.suppress(TritonError):
                    await asyncio.to_thread(self.triton.start)

    def processes(self) -> dict[str, list[psutil.Process]]:
        """The processes of the gateway and of the agent by what they are, those of one kind together."""
        found: dict[str, list[psutil.Process]] = {}
        for name, pids in self.gateway.pids.items():
            found[name] = [psutil.Process(pid) for pid in pids]
        known = {pid for pids in self.gateway.pids.values() for pid in pids}
        for process in psutil.Process(self.gateway.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.pid not in known and "ServeReplica" in " ".join(process.cmdline()):
                    found.setdefault("pool", []).append(process)
        agent = psutil.Process(self.agent.pid)
        found["agent"] = [agent, *agent.children(recursive=True)]
        return found


@contextlib.contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    """Everything up and answering."""
    place = folder / "gateway"
    place.mkdir(parents=True)
    (place / f"{POOLED}.onnx").write_bytes(onnx_models.identity("rows", COLUMNS))
    (place / f"{ON_DEVICE}.tflite").write_bytes(_identity())
    some = np.arange(2 * COLUMNS, dtype=np.float32).reshape(2, COLUMNS)
    golden = golden_file(folder, [({"INPUT0": some}, {"OUTPUT0": some})], 1e-6)
    (place / f"{ON_DEVICE}.tflite.golden.npz").write_bytes(golden)
    models = "\n".join(f"  - {{name: {name}, variants: [{{endpoint: t}}]}}" for name in MODELS)
    with contextlib.ExitStack() as stack:
        triton = TritonServer(REPOSITORY, load=MODELS, log=folder / "triton.log")
        stack.callback(triton.kill)
        triton.start()
        config = CONFIG.format(port=triton.grpc_port, models=models)
        gateway = stack.enter_context(running_gateway(config, place))
        assert gateway.edge is not None
        url = f"http://{gateway.http}/api/v1/devices/tokens"
        token = (
            httpx.post(url, json={"site": "plant-7", "device": "cam-1"}).raise_for_status().json()["token"]
        )
        agent = stack.enter_context(running_agent(folder / "device", gateway.edge, "--token", token))
        gateway.wait_up("t", "p", timeout_s=120)
        gateway.wait(lambda: _answers(gateway), 120)
        yield Stage(triton, gateway, agent)


def _answers(gateway: Gateway) -> bool:
    answer = httpx.get(f"http://{gateway.http}/v2/models/{ON_DEVICE}/ready", timeout=10)
    return answer.status_code == 200


def _identity() -> bytes:
    graph = Graph("identity")
    given = graph.tensor("INPUT0", (-1, COLUMNS))
    out = graph.tensor("OUTPUT0", (-1, COLUMNS))
    nothing = graph.constant("nothing", np.zeros((1, COLUMNS), np.float32))
    graph.node("ADD", (given, nothing), (out,), schema.AddOptionsT())
    return graph.build({"INPUT0": given}, {"OUTPUT0": out})
