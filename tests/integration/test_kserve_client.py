"""KServe's own client, straight to a real Triton and through the gateway: the same answers. Only with
TIDEGATE_SERVERS=1: see tests/support/environments.py."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.demo.triton import TritonServer
from tests.support.environments import FOREIGN, WANTED, EnvironmentMissing, environ_of, python_of, wanted
from tests.support.gateway import Gateway, running_gateway
from tests.support.triton import REPOSITORY

pytestmark = pytest.mark.skipif(not wanted(), reason=f"makes a large environment: set {WANTED}=1")
DATATYPES = "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 fp16 fp32 fp64 bytes"
MODELS = ["simple", *(f"id_{datatype}" for datatype in DATATYPES.split())]
CONFIG = """
version: 1
gateway: {{name: gw, location: {{tier: cloud, region: eu}}}}
endpoints:
  - {{name: t, kind: triton, url: "grpc://127.0.0.1:{port}", location: {{tier: cloud, region: eu}}}}
models: [{models}]
privacy: {{default: any, classes: {{any: {{allow: [{{tier: [device, site, regional, cloud]}}]}}}}}}
policies: [{{name: default, match: {{}}, weights: {{latency: 1}}}}]
"""


@pytest.fixture(scope="module")
def triton() -> Iterator[TritonServer]:
    with TritonServer(REPOSITORY, load=MODELS) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(triton: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    models = ", ".join(f"{{name: {name}, variants: [{{endpoint: t}}]}}" for name in MODELS)
    config = CONFIG.format(port=triton.grpc_port, models=models)
    with running_gateway(config, tmp_path_factory.mktemp("gateway")) as found:
        found.wait_up("t")
        yield found


def outcomes(http: str, grpc: str) -> dict[str, Any]:
    try:
        python = python_of("kserve")
    except EnvironmentMissing as missing:
        pytest.skip(f"kserve cannot be had here: {missing}")
    command = [str(python), str(FOREIGN / "kserve_calls.py"), http, grpc]
    done = subprocess.run(command, env=environ_of(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def known(outcome: Any) -> Any:
    """Without the words of an error, which from Triton begin with the request's id."""
    return outcome["status"] if isinstance(outcome, dict) and "status" in outcome else outcome


def test_its_answers_are_tritons(triton: TritonServer, gateway: Gateway):
    straight = outcomes(f"127.0.0.1:{triton.http_port}", f"127.0.0.1:{triton.grpc_port}")
    through = outcomes(gateway.http, gateway.grpc)
    assert {case: one for case, one in through.items() if known(one) != known(straight[case])} == {}
    assert through.keys() == straight.keys()
    # All but FP16 in JSON, which neither Triton nor the gateway takes.
    answered = {case for case, one in through.items() if isinstance(one, dict) and "outputs" in one}
    assert {
        f"{wire} {datatype.upper()}" for wire in ("grpc", "binary") for datatype in DATATYPES.split()
    } <= answered
    assert {f"json {datatype.upper()}" for datatype in DATATYPES.split() if datatype != "fp16"} <= answered
    assert {"grpc two outputs", "json two outputs", "binary two outputs"} <= answered
    assert (through["grpc live"], through["grpc ready"], through["grpc model ready"]) == (True, True, True)
