"""Other people's servers of the Open Inference Protocol, each in an environment of its own.

MLServer and KServe's Python server pin what this project does not. Their environments are large and take
minutes to make, so the tests that want them run only with `TIDEGATE_SERVERS=1`. They are kept under
`build/servers`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from gateway.demo.triton import Ports, _free_ports
from tests.support.oip_server import SERVICE
from tests.support.processes import ROOT
from tests.support.waiting import until_true

WANTED = "TIDEGATE_SERVERS"
SERVERS = ROOT / "build" / "servers"
REQUIREMENTS = {
    "mlserver": ("mlserver==1.7.1",),
    "kserve": ("kserve==0.21.0",),
}
INSTALL_S = 1200
START_S = 60.0
FOREIGN = Path(__file__).with_name("foreign")


class ServerMissing(Exception):
    """An environment that cannot be had here; the text says why."""


def wanted() -> bool:
    return os.environ.get(WANTED, "") not in ("", "0")


def python_of(server: str) -> Path:
    """The interpreter of a server's environment, which is made if it is not there. Raises ServerMissing."""
    requirements = REQUIREMENTS[server]
    tag = hashlib.sha256(repr((requirements, sys.version_info[:2])).encode()).hexdigest()[:12]
    place = SERVERS / f"{server}-{tag}"
    SERVERS.mkdir(parents=True, exist_ok=True)
    with (SERVERS / f"{server}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "installed").exists():
            shutil.rmtree(place, ignore_errors=True)
            _run([sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, str(place)])
            python = str(place / "bin" / "python")
            _run([sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, *requirements])
            (place / "installed").touch()
    return place / "bin" / "python"


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise ServerMissing(f"{command[3]} took more than {INSTALL_S} s") from None
    if done.returncode:
        raise ServerMissing(f"{' '.join(command[2:5])} failed: {done.stderr.strip()[-500:]}")


@contextlib.contextmanager
def running(server: str, folder: Path) -> Iterator[int]:
    """The server with its models on loopback, and its gRPC port. Raises ServerMissing."""
    python = python_of(server)
    ports = _free_ports(Ports(0, 0, 0))
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if server == "mlserver":
        _write_models(folder, ports)
        command = [str(python.with_name("mlserver")), "start", str(folder)]
        environ["PYTHONPATH"] = str(FOREIGN)
    else:
        command = [str(python), str(FOREIGN / "kserve_server.py"), str(ports.grpc)]
    log = folder / "server.log"
    with log.open("w") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, env=environ, cwd=folder)
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
