"""Real processes killed under real traffic."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.demo.triton import TritonServer
from tests.support.gateway import Gateway, running_gateway

REPOSITORY = Path(__file__).parents[1] / "conformance" / "model_repository"
REQUESTS = 200
WORKERS = 8
DEADLINE_S = 8.0
SLACK_S = 1.0

CONFIG = """
version: 1
gateway: {{name: gw, location: {{tier: cloud, region: eu}}}}
endpoints:
  - {{name: first, kind: triton, url: "grpc://127.0.0.1:{first}", location: {{tier: cloud, region: eu}}}}
  - {{name: second, kind: triton, url: "grpc://127.0.0.1:{second}", location: {{tier: cloud, region: eu}}}}
models:
  - {{name: id_int32, idempotent: {idempotent}, variants: [{{endpoint: first, quality: 0.9}}, {{endpoint: second, quality: 0.1}}]}}
privacy: {{default: any, classes: {{any: {{allow: [{{tier: [device, site, regional, cloud]}}]}}}}}}
policies: [{{name: default, match: {{}}, weights: {{quality: 1}}, retry: {{num_retries: 1, budget_percent: 100, min_concurrent: 100}}}}]
"""


@dataclass(frozen=True)
class Seen:
    """One request's end: the status name, whether the values were its own, how long it took."""

    status: str
    right: bool
    took_s: float
    endpoint: str
    message: str


def ask(stub: service_pb2_grpc.GRPCInferenceServiceStub, number: int) -> Seen:
    values = np.arange(number, number + 16, dtype=np.int32)
    message = service_pb2.ModelInferRequest(model_name="id_int32", id=str(number))
    tensor = message.inputs.add(name="INPUT0", datatype="INT32")
    tensor.shape.append(16)
    message.raw_input_contents.append(values.tobytes())
    started = time.monotonic()
    try:
        answer, call = stub.ModelInfer.with_call(message, timeout=DEADLINE_S)
    except grpc.RpcError as error:
        return Seen(error.code().name, False, time.monotonic() - started, "", error.details() or "")
    right = answer.raw_output_contents[0] == values.tobytes() and answer.id == str(number)
    endpoint = dict(call.initial_metadata())["tidegate-endpoint"]
    return Seen("OK", right, time.monotonic() - started, endpoint, "")


def traffic(gateway: Gateway, at: int, event) -> list[Seen]:
    """200 requests, eight at a time; `event` happens once `at` of them have ended."""
    due = threading.Event()
    seen: list[Seen] = []
    with grpc.insecure_channel(gateway.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        def one(number: int) -> None:
            seen.append(ask(stub, number))
            if len(seen) >= at:
                due.set()

        def strike() -> None:
            assert due.wait(60)
            event()

        striking = threading.Thread(target=strike)
        striking.start()
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(one, range(REQUESTS)))
        striking.join()
    return seen


def data_planes(gateway: Gateway) -> set[int]:
    """Process ids of the data plane replicas there are."""
    found: set[int] = set()
    for process in psutil.Process(gateway.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "DataPlane" in " ".join(process.cmdline()):
                found.add(process.pid)
    return found


@pytest.fixture
def tritons(tmp_path: Path):
    servers = [TritonServer(REPOSITORY, load=["id_int32"], log=tmp_path / f"t{i}.log") for i in range(2)]
    for server in servers:
        server.start()
    yield servers
    for server in servers:
        server.stop()


def config(tritons: list[TritonServer], idempotent: bool) -> str:
    first, second = (t.grpc_port for t in tritons)
    return CONFIG.format(first=first, second=second, idempotent=str(idempotent).lower())


def test_killed_triton_loses_no_idempotent_request_and_comes_back(
    tritons: list[TritonServer], tmp_path: Path
):
    with running_gateway(config(tritons, True), tmp_path) as gateway:
        gateway.wait_up("first", "second")
        seen = traffic(gateway, 60, tritons[0].kill)
        assert Counter(s.status for s in seen) == {"OK": REQUESTS}, [s for s in seen if s.status != "OK"][:3]
        assert all(s.right for s in seen)
        assert {s.endpoint for s in seen} == {"first", "second"}
        assert max(s.took_s for s in seen) < DEADLINE_S + SLACK_S
        tritons[0].start()
        gateway.wait_up("first")
        with grpc.insecure_channel(gateway.grpc) as channel:
            assert ask(service_pb2_grpc.GRPCInferenceServiceStub(channel), 7).endpoint == "first"


def test_killed_triton_gives_others_a_right_answer_or_a_clear_error(
    tritons: list[TritonServer], tmp_path: Path
):
    with running_gateway(config(tritons, False), tmp_path) as gateway:
        gateway.wait_up("first", "second")
        seen = traffic(gateway, 60, tritons[0].kill)
        assert all(s.right for s in seen if s.status == "OK")
        assert {s.status for s in seen} <= {"OK", "UNAVAILABLE"}
        assert all(s.message for s in seen if s.status != "OK")
        assert sum(s.status != "OK" for s in seen) <= 3 * WORKERS
        assert max(s.took_s for s in seen) < DEADLINE_S + SLACK_S


def test_stopped_triton_is_left_within_the_deadline(tritons: list[TritonServer], tmp_path: Path):
    """SIGSTOP: the connection stays, nothing answers. Callers end by their deadline, later ones go elsewhere."""
    with running_gateway(config(tritons, True), tmp_path) as gateway:
        gateway.wait_up("first", "second")
        stopped = psutil.Process(tritons[0].pid)
        try:
            seen = traffic(gateway, 60, stopped.suspend)
            assert {s.status for s in seen} <= {"OK", "DEADLINE_EXCEEDED", "UNAVAILABLE"}
            assert all(s.right for s in seen if s.status == "OK")
            assert max(s.took_s for s in seen) < DEADLINE_S + SLACK_S
            gateway.wait(lambda: not gateway.get("/api/v1/endpoints")[0]["up"])
            with grpc.insecure_channel(gateway.grpc) as channel:
                after = ask(service_pb2_grpc.GRPCInferenceServiceStub(channel), 7)
            assert (after.status, after.endpoint) == ("OK", "second")
        finally:
            stopped.resume()


def test_killed_replica_comes_back_at_the_same_address(tritons: list[TritonServer], tmp_path: Path):
    with running_gateway(config(tritons, True), tmp_path) as gateway:
        gateway.wait_up("first", "second")
        (pid,) = gateway.pids["data_plane"]
        os.kill(pid, signal.SIGKILL)

        def back() -> bool:
            with grpc.insecure_channel(gateway.grpc) as channel:
                return ask(service_pb2_grpc.GRPCInferenceServiceStub(channel), 7).status == "OK"

        gateway.wait(back, 60.0)


def test_replica_that_finds_its_address_taken_comes_back_once_it_is_free(
    tritons: list[TritonServer], tmp_path: Path
):
    with running_gateway(config(tritons, True), tmp_path) as gateway:
        gateway.wait_up("first", "second")
        host, port = gateway.http.rsplit(":", 1)
        os.kill(gateway.pids["data_plane"][0], signal.SIGKILL)
        held: list[socket.socket] = []

        def taken() -> bool:
            with contextlib.suppress(OSError):
                held.append(socket.create_server((host, int(port))))
            return bool(held)

        gateway.wait(taken)
        seen = set(gateway.pids["data_plane"])

        def replaced_twice() -> bool:
            seen.update(data_planes(gateway))
            return len(seen) >= 3

        gateway.wait(replaced_twice, 90.0)
        held[0].close()

        def back() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"http://{gateway.http}/v2/health/ready").status_code == 200
            return False

        gateway.wait(back, 90.0)
