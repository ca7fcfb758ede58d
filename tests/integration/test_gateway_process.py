"""The gateway as a process: where it listens, how it starts, drains and ends."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.demo.triton import TritonServer
from tests.support.gateway import Gateway, running_gateway

UP = [sys.executable, "-m", "gateway.cli.main", "up"]
REPOSITORY = Path(__file__).parents[1] / "conformance" / "model_repository"
CONFIG = """
version: 1
gateway: {{name: gw, location: {{tier: site, site: plant-7}}}}
endpoints:
  - {{name: t, kind: triton, url: "grpc://127.0.0.1:{port}", location: {{tier: cloud, region: eu}}, price: {{per_request: 0.002}}}}
models:
  - {{name: slow_identity, idempotent: true, variants: [{{endpoint: t, quality: 0.9}}]}}
privacy:
  default: any
  classes:
    any: {{allow: [{{tier: [device, site, regional, cloud]}}]}}
    site-only: {{allow: [{{tier: [device, site]}}]}}
    device-only: {{allow: [{{tier: [device], same: [device]}}]}}
policies: [{{name: default, match: {{}}, weights: {{latency: 1}}}}]
"""


@pytest.fixture(scope="module")
def triton() -> Iterator[TritonServer]:
    server = TritonServer(REPOSITORY, load=["slow_identity"])
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def gateway(triton: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(CONFIG.format(port=triton.grpc_port), tmp_path_factory.mktemp("gw")) as found:
        found.wait_up("t")
        yield found


def slow(seconds: float) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name="slow_identity")
    tensor = message.inputs.add(name="INPUT0", datatype="INT32")
    tensor.shape.append(1)
    message.raw_input_contents.append(np.array([5], np.int32).tobytes())
    tensor = message.inputs.add(name="SECONDS", datatype="FP32")
    tensor.shape.append(1)
    message.raw_input_contents.append(np.array([seconds], np.float32).tobytes())
    return message


def test_every_listener_of_the_whole_tree_is_on_loopback(gateway: Gateway):
    root = psutil.Process(gateway.process.pid)
    listening = {
        (c.laddr.ip.removeprefix("::ffff:"), c.laddr.port)
        for process in (root, *root.children(recursive=True))
        for c in process.net_connections()
        if c.status == psutil.CONN_LISTEN
    }
    told = {
        (a.rsplit(":", 1)[0], int(a.rsplit(":", 1)[1])) for a in (gateway.http, gateway.grpc, gateway.metrics)
    }
    assert told <= listening
    assert {ip for ip, _ in listening} <= {"127.0.0.1", "::1"}


def test_no_ray_serve_proxy_runs(gateway: Gateway):
    root = psutil.Process(gateway.process.pid)
    names = " ".join(p.name() + " ".join(p.cmdline()) for p in root.children(recursive=True))
    assert "ServeReplica" in names
    assert "Proxy" not in names


def test_operator_api_shows_what_runs(gateway: Gateway):
    config = gateway.get("/api/v1/config")
    assert config["last_error"] is None
    assert re.fullmatch(r"[0-9a-f]{8,}", config["revision"])
    (endpoint,) = gateway.get("/api/v1/endpoints")
    assert (endpoint["name"], endpoint["kind"], endpoint["up"]) == ("t", "triton", True)
    assert endpoint["models"][0]["statistics"][0]["name"] == "slow_identity"
    (model,) = gateway.get("/api/v1/models")
    assert (model["name"], model["privacy"], model["variants"][0]["ready"]) == ("slow_identity", "any", True)
    paths = gateway.get("/api/v1/openapi.json")["paths"]
    assert {"/api/v1/route", "/api/v1/decisions/{decision_id}"} <= set(paths)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/v1/decisions/nope", None, 404),
        ("GET", "/api/v1/nope", None, 404),
        ("GET", "/api/v1/route", None, 405),
        ("GET", "/api/v1/costs", None, 501),
        ("POST", "/api/v1/route", {}, 400),
        ("POST", "/api/v1/route", {"model": "nope"}, 404),
        ("POST", "/api/v1/route", {"model": "slow_identity", "privacy": "nope"}, 400),
        ("POST", "/api/v1/route", {"model": "slow_identity", "bogus": 1}, 400),
        ("POST", "/api/v1/route", {"model": "slow_identity", "tenant": "x"}, 400),
    ],
)
def test_operator_mistakes_get_one_sentence(
    gateway: Gateway, method: str, path: str, body: object, status: int
):
    answer = httpx.request(method, f"http://{gateway.http}{path}", json=body)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/api/v1/decisions/" + '"' * 60_000, {}),
        ("/api/v1/route", {"content-type": b"application/json\xff"}),
        ("/api/v1/config/", {}),
    ],
)
def test_odd_operator_requests_are_the_callers_mistake(
    gateway: Gateway, path: str, headers: dict[str, bytes]
):
    host, port = gateway.http.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=15)
    connection.putrequest("GET", path)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert 400 <= answer.status < 500
    assert list(json.loads(text)) == ["error"]


def test_decision_behind_an_answer_can_be_asked_for(gateway: Gateway):
    with grpc.insecure_channel(gateway.grpc) as channel:
        _, call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer.with_call(
            slow(0.0), timeout=10
        )
    headers = dict(call.initial_metadata())
    assert float(headers["tidegate-cost"]) == 0.002
    record = gateway.decision(headers["tidegate-decision"])
    assert record["chosen"] == "t"
    assert record["policy_revision"] == gateway.get("/api/v1/config")["revision"]
    assert [(a["endpoint"], a["outcome"]) for a in record["attempts"]] == [("t", "ok")]


def test_refusals_have_a_record_too(gateway: Gateway):
    body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}]}
    answer = httpx.post(
        f"http://{gateway.http}/v2/models/slow_identity/infer",
        json=body,
        headers={"tidegate-privacy": "site-only"},
    )
    assert answer.status_code == 403
    record = gateway.decision(answer.headers["tidegate-decision"])
    assert record["chosen"] is None
    assert record["refused"]["reason"] == "privacy"
    assert [c["reasons"][0]["rule"] for c in record["candidates"]] == ["privacy"]


def test_tidegate_route_says_what_would_happen(gateway: Gateway):
    command = [sys.executable, "-m", "gateway.cli.main", "route", "--url", f"http://{gateway.http}"]
    allowed = subprocess.run([*command, "--model", "slow_identity"], capture_output=True, text=True)
    assert allowed.returncode == 0, allowed.stderr
    assert "slow_identity: t" in allowed.stdout
    forbidden = subprocess.run(
        [*command, "--model", "slow_identity", "--privacy", "site-only", "--json"],
        capture_output=True,
        text=True,
    )
    assert forbidden.returncode == 1
    assert '"chosen": null' in forbidden.stdout
    unknown = subprocess.run([*command, "--model", "nope"], capture_output=True, text=True)
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("tidegate: Request for unknown model")
    assert unknown.stderr.count("\n") == 1


def test_metrics_count_what_happened(gateway: Gateway):
    with grpc.insecure_channel(gateway.grpc) as channel:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(slow(0.0), timeout=10)
    text = httpx.get(f"http://{gateway.metrics}/metrics").text
    assert 'tidegate_requests_total{code="ok",model="slow_identity",policy="default",privacy="any"' in text
    assert 'tidegate_endpoint_up{endpoint="t"} 1.0' in text
    assert "tidegate_decision_duration_seconds_bucket" in text


def test_class_without_the_gateways_place_is_refused_with_word_of_who_may(gateway: Gateway):
    answer = httpx.post(
        f"http://{gateway.http}/v2/models/slow_identity/infer",
        content=b"{",
        headers={"tidegate-privacy": "device-only"},
    )
    assert answer.status_code == 403
    assert "device-only" in answer.json()["error"]
    assert "agent" in answer.json()["error"]


def test_sigterm_finishes_what_runs_and_ends_with_zero(triton: TritonServer, tmp_path: Path):
    with running_gateway(CONFIG.format(port=triton.grpc_port), tmp_path) as gateway:
        gateway.wait_up("t")
        outcome: list[bytes | grpc.StatusCode] = []

        def call() -> None:
            with grpc.insecure_channel(gateway.grpc) as channel:
                try:
                    answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(
                        slow(3.0), timeout=30
                    )
                    outcome.append(answer.raw_output_contents[0])
                except grpc.RpcError as error:
                    outcome.append(error.code())

        def running() -> bool:
            return "tidegate_inflight 1.0" in httpx.get(f"http://{gateway.metrics}/metrics").text

        caller = threading.Thread(target=call)
        caller.start()
        gateway.wait(running)
        tree = psutil.Process(gateway.process.pid).children(recursive=True)
        assert gateway.stop() == 0
        caller.join(30)
        assert outcome == [np.array([5], np.int32).tobytes()]
        _, alive = psutil.wait_procs(tree, timeout=20)
        assert not alive, [p.cmdline() for p in alive]


def test_taken_address_is_one_line_and_ends_with_one(tmp_path: Path):
    (tmp_path / "t.yaml").write_text(CONFIG.format(port=1))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [*UP, "-f", "t.yaml", "--http", address, "--grpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 1
    assert address in done.stderr
    assert "Traceback" not in done.stderr


def test_gateway_is_live_but_not_ready_before_its_endpoint_is(triton: TritonServer, tmp_path: Path):
    # A server keeps its port, which is one that no outgoing connection can take while it is away.
    late = TritonServer(REPOSITORY, load=["slow_identity"])
    late.start()
    late.stop()
    with running_gateway(CONFIG.format(port=late.grpc_port), tmp_path) as gateway:
        assert httpx.get(f"http://{gateway.http}/v2/health/live").status_code == 200
        assert httpx.get(f"http://{gateway.http}/v2/health/ready").status_code != 200
        answer = httpx.post(
            f"http://{gateway.http}/v2/models/slow_identity/infer",
            json={"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}]},
        )
        assert answer.status_code == 503
        late.start()
        try:
            gateway.wait_up("t")
            assert httpx.get(f"http://{gateway.http}/v2/health/ready").status_code == 200
        finally:
            late.stop()
