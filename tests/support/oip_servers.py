"""Other people's servers of the Open Inference Protocol, each in an environment of its own: see
tests/support/environments.py."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from gateway.demo.triton import Ports, _free_ports
from tests.support.environments import FOREIGN, environ_of, python_of
from tests.support.oip_server import SERVICE
from tests.support.waiting import until_true

START_S = 60.0


@contextlib.contextmanager
def running(server: str, folder: Path) -> Iterator[int]:
    """The server with its models on loopback, and its gRPC port. Raises EnvironmentMissing."""
    python = python_of(server)
    ports = _free_ports(Ports(0, 0, 0))
    if server == "mlserver":
        _write_models(folder, ports)
        command = [str(python.with_name("mlserver")), "start", str(folder)]
    else:
        command = [str(python), str(FOREIGN / "kserve_server.py"), str(ports.grpc)]
    log = folder / "server.log"
    with log.open("w") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, env=environ_of(), cwd=folder)
    try:
        until_true(lambda: _is_live(ports.grpc, process, log), START_S)
        yield ports.grpc
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _write_models(folder: Path, ports: Ports) -> None:
    """MLServer's settings and model repository."""
    settings = {
        "host": "127.0.0.1",
        "grpc_port": ports.grpc,
        "http_port": ports.http,
        "metrics_endpoint": None,
        "parallel_workers": 0,
        "grpc_max_message_length": 64 * 2**20,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    for name, datatype in (
        ("id2d_fp32", "FP32"),
        ("typed_bytes", "BYTES"),
        ("untold_fp32", None),
        ("boom", "FP32"),
    ):
        model: dict[str, Any] = {"name": name, "implementation": "mlserver_models.Identity"}
        if datatype is not None:
            for kind, tensor in (("inputs", "INPUT0"), ("outputs", "OUTPUT0")):
                model[kind] = [{"name": tensor, "datatype": datatype, "shape": [-1, -1]}]
        (folder / name).mkdir()
        (folder / name / "model-settings.json").write_text(json.dumps(model))


def _is_live(port: int, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, f"the server ended: {log.read_text()[-2000:]}"
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            return bool(channel.unary_unary(f"{SERVICE}ServerLive")(b"", timeout=2))
        except grpc.RpcError:
            return False
