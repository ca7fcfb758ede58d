"""The digits model in real Tritons: it reads digits, its delay delays, and `tidegate bench` sees it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from gateway.core.decision import VariantKey
from gateway.demo import digits
from gateway.demo.triton import TritonServer
from gateway.jobs.measure import Effort, measure
from gateway.store.profiles import Profile, ProfileStore
from tests.support.permits import PERMIT
from tests.support.triton import triton_endpoint

DELAY_MS = 40.0
INSTANCES = 2


@pytest.fixture(scope="module")
def model() -> digits.DigitsModel:
    return digits.train_base()


@pytest.fixture(scope="module")
def tritons(
    model: digits.DigitsModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, TritonServer]]:
    work = tmp_path_factory.mktemp("digits")
    repositories = {
        "fast": digits.build_repository(work / "fast", model=model),
        "slow": digits.build_repository(
            work / "slow", model=model, delay_ms=DELAY_MS, instances=INSTANCES, version=3
        ),
    }
    servers = {name: TritonServer(path, load=["digits"]) for name, path in repositories.items()}
    try:
        for server in servers.values():
            server.start()
        yield servers
    finally:
        for server in servers.values():
            server.kill()


def request(pixels: np.ndarray) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="digits")
    message.inputs.add(name="pixels", datatype="FP32", shape=pixels.shape)
    message.raw_input_contents.append(pixels.tobytes())
    return message.SerializeToString()


async def test_both_read_the_digits_they_never_saw(
    model: digits.DigitsModel, tritons: dict[str, TritonServer]
):
    pixels, labels = digits.sample(digits.HELD_OUT)
    versions = {}
    for name, server in tritons.items():
        endpoint = triton_endpoint(server.grpc_port)
        await endpoint.start()
        answer = service_pb2.ModelInferResponse.FromString(
            await endpoint.infer(request(pixels), (), 10, PERMIT)
        )
        await endpoint.close()
        (output,) = answer.outputs
        assert (output.name, output.datatype, list(output.shape)) == ("probabilities", "FP32", [360, 10])
        found = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(360, 10)
        np.testing.assert_allclose(found, model.predict(pixels), atol=1e-5)
        assert (found.argmax(axis=1) == labels).mean() >= 0.95
        versions[name] = answer.model_version
    assert versions == {"fast": "1", "slow": "3"}


async def test_the_delay_delays_and_the_instances_bound_the_throughput(tritons: dict[str, TritonServer]):
    pixels, _ = digits.sample(8)
    profiles: dict[str, Profile] = {}
    for name, server in tritons.items():
        endpoint = triton_endpoint(server.grpc_port)
        await endpoint.start()
        profiles[name] = await measure(
            endpoint,
            VariantKey(name, "digits", ""),
            lambda i: request(pixels[i % 8][None]),
            identity="aa",
            permit=PERMIT,
            effort=Effort(samples=50, latency_s=0.8, step_s=0.4, max_inflight=8),
        )
        await endpoint.close()
    fast, slow = profiles["fast"], profiles["slow"]
    assert slow.latency_p50_ms >= DELAY_MS
    assert fast.latency_p50_ms < DELAY_MS
    one_instance = 1000 / DELAY_MS
    assert one_instance < slow.capacity_rps <= INSTANCES * one_instance
    assert fast.capacity_rps > slow.capacity_rps
    assert slow.payload_bytes == len(request(pixels[:1]))
    assert slow.response_bytes > 40


CONFIG = """
version: 1
gateway: {{name: gw, location: {{tier: site, site: plant}}}}
endpoints:
  - {{name: fast, kind: triton, url: "grpc://127.0.0.1:{fast}", location: {{tier: site, site: plant}}}}
  - {{name: slow, kind: triton, url: "grpc://127.0.0.1:{slow}", location: {{tier: cloud}}}}
  - {{name: gone, kind: triton, url: "grpc://127.0.0.1:1", location: {{tier: site, site: plant}}}}
models:
  - name: read
    variants: [{{endpoint: fast, model: digits}}, {{endpoint: slow, model: digits, version: "3"}}, {{endpoint: gone}}]
privacy: {{default: near, classes: {{near: {{allow: [{{tier: [site], same: [site]}}]}}}}}}
policies: [{{name: default, match: {{}}, weights: {{latency: 1}}}}]
"""


@dataclass(frozen=True)
class Done:
    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


@pytest.fixture
def run(tritons: dict[str, TritonServer], tmp_path: Path):
    """`tidegate bench` in a process of its own: gRPC serves one loop in a process well, not one a test."""
    file = tmp_path / "tidegate.yaml"
    file.write_text(CONFIG.format(**{name: server.grpc_port for name, server in tritons.items()}))
    command = [sys.executable, "-m", "gateway.cli.main", "bench", "-f", str(file)]
    state = ["--state-dir", str(tmp_path / "state")]

    def run(*arguments: str) -> Done:
        done = subprocess.run([*command, *state, *arguments], capture_output=True, text=True, timeout=120)
        return Done(done.returncode, done.stdout, done.stderr)

    return run


async def test_bench_measures_stores_and_says_what_failed(run, tmp_path: Path):
    done = await asyncio.to_thread(run, "read", "--json")
    assert done.exit_code == 1
    outcomes = {o["endpoint"]: o for o in json.loads(done.stdout)}
    assert "cannot be reached" in outcomes["gone"]["error"]
    assert "gone: " in done.stderr
    stored = {p.endpoint: p for p in ProfileStore(tmp_path / "state").load()}
    assert set(stored) == {"fast", "slow"}, done.output
    assert (stored["slow"].model, stored["slow"].version) == ("digits", "3")
    assert (stored["fast"].model, stored["fast"].version) == ("digits", "")
    assert stored["slow"].latency_p50_ms >= DELAY_MS
    assert outcomes["slow"]["profile"] == asdict(stored["slow"])


async def test_bench_of_chosen_endpoints_leaves_other_profiles_alone(run, tmp_path: Path):
    old = Profile("slow", "digits", "3", 1.0, 1.0, 1.0, 1.0, 1, 1.0, 1.0, "aa")
    ProfileStore(tmp_path / "state").save([old, replace(old, endpoint="fast", version="")])
    done = await asyncio.to_thread(run, "read", "--endpoints", "fast")
    assert done.exit_code == 0, done.output
    assert "fast" in done.stdout
    assert "stored" in done.stdout
    fast, slow = ProfileStore(tmp_path / "state").load()
    assert slow == old
    assert fast.measured_at > old.measured_at


async def test_bench_takes_a_given_request_only_where_its_class_may_go(run, tmp_path: Path):
    pixels, _ = digits.sample(1)
    given = {
        "inputs": [
            {"name": "pixels", "datatype": "FP32", "shape": [1, 64], "data": pixels[0].tolist()},
        ]
    }
    file = tmp_path / "request.json"
    file.write_text(json.dumps(given))
    refused = await asyncio.to_thread(run, "read", "--input", str(file))
    assert refused.exit_code == 2
    assert "class near of read forbids slow;" in refused.stderr
    assert not (tmp_path / "state").exists()
    done = await asyncio.to_thread(run, "read", "--endpoints", "fast", "--input", str(file))
    assert done.exit_code == 0
    (profile,) = ProfileStore(tmp_path / "state").load()
    assert profile.payload_bytes == len(request(pixels))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nope"], "no model 'nope' in"),
        (["read", "--endpoints", "fast,none"], "no variant on none; read has variants on fast, slow, gone"),
        (["read", "--endpoints", ","], "no endpoint named"),
        (["read", "--input", "/nowhere.json"], "--input /nowhere.json: No such file"),
    ],
)
def test_bench_says_what_to_give(run, arguments: list[str], says: str):
    done = run(*arguments)
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


async def test_bench_refuses_to_lose_what_it_cannot_read(run, tmp_path: Path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "profiles.json").write_text("{")
    done = await asyncio.to_thread(run, "read", "--endpoints", "fast")
    assert done.exit_code == 1
    assert "profiles.json" in done.stderr
    assert (tmp_path / "state" / "profiles.json").read_text() == "{"
