"""The launcher: what it refuses, how it recovers a port, and that its server never outlives it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from gateway.demo import triton, triton_installation
from gateway.demo.triton import Ports, TritonError, TritonMissing, TritonServer
from tests.support.processes import source_env
from tests.support.triton import REPOSITORY
from tests.support.waiting import until


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, this test's own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def shared_memory(name: str) -> list[Path]:
    """The regions of the server whose temporary folder has that name."""
    return list(Path("/dev/shm").glob(f"{name}-*"))


def test_a_server_started_again_answers_at_the_same_ports_and_leaves_nothing(work: Path):
    server = TritonServer(REPOSITORY)
    assert not server.running
    with pytest.raises(RuntimeError, match="does not run"):
        _ = server.pid
    with server:
        ports, pid = (server.http_port, server.grpc_port, server.metrics_port), server.pid
        assert len(set(ports)) == 3
        with pytest.raises(RuntimeError, match="runs already"):
            server.start()
        assert server.running
        folder = only_entry(work)
    assert not server.running
    assert not psutil.pid_exists(pid)
    server.start()
    try:
        assert (server.http_port, server.grpc_port, server.metrics_port) == ports
        assert server.pid != pid
        os.kill(server.pid, signal.SIGKILL)
    finally:
        server.kill()
    server.start()
    server.kill()
    server.kill()
    assert list(work.iterdir()) == []
    assert shared_memory(folder.name) == []


def test_a_model_that_cannot_be_loaded_is_said_in_tritons_words(work: Path):
    server = TritonServer(REPOSITORY, load=["nope"])
    with pytest.raises(TritonError, match="'nope': model not found"):
        server.start()
    assert not server.running
    assert list(work.iterdir()) == []


def test_a_port_that_is_taken_is_an_error_if_asked_for_and_drawn_again_if_not(
    monkeypatch: pytest.MonkeyPatch,
):
    drawn: list[Ports] = []
    free_ports = triton._free_ports

    def unlucky_once(asked: Ports) -> Ports:
        ports = free_ports(asked)
        drawn.append(ports._replace(grpc=first.grpc_port) if not drawn else ports)
        return drawn[-1]

    with TritonServer(REPOSITORY) as first:
        with pytest.raises(TritonError, match="already in use"):
            TritonServer(REPOSITORY, http_port=first.http_port).start()
        monkeypatch.setattr(triton, "_free_ports", unlucky_once)
        with TritonServer(REPOSITORY) as second:
            assert len(drawn) == 2
            assert second.grpc_port != first.grpc_port


def test_a_server_that_is_not_ready_in_time_does_not_stay():
    server = TritonServer(REPOSITORY, load=["simple"])
    with pytest.raises(TritonError, match=r"not ready within 0\.01 s"):
        server.start(timeout_s=0.01)
    assert not server.running


LAUNCHER = """
import sys, time
from pathlib import Path
from gateway.demo.triton import TritonServer
server = TritonServer(Path(sys.argv[1]), load=["simple"])
server.start()
print(server.pid, flush=True)
time.sleep(600)
"""


def only_entry(folder: Path) -> Path:
    (entry,) = folder.iterdir()
    return entry


def launch() -> subprocess.Popen[str]:
    """Another process that has started a server; its first line is the server's pid."""
    command = [sys.executable, "-c", LAUNCHER, str(REPOSITORY)]
    return subprocess.Popen(command, env=source_env(), stdout=subprocess.PIPE, text=True)


async def test_the_server_ends_with_its_launcher_and_takes_everything_along(work: Path):
    launcher = launch()
    try:
        assert launcher.stdout is not None
        pid = int(launcher.stdout.readline())
        models = psutil.Process(pid).children()
        assert models
        folder = only_entry(work)
        assert shared_memory(folder.name)
    finally:
        launcher.send_signal(signal.SIGKILL)
        launcher.communicate()
    await until(lambda: not any(p.is_running() for p in models) and not psutil.pid_exists(pid))
    await until(lambda: not folder.exists() and not shared_memory(folder.name))


def test_numpy_2_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.1.0")
    with pytest.raises(TritonMissing, match=r"NumPy 2\.1\.0: .* pip install 'numpy<2'"):
        TritonServer(REPOSITORY).start()


def test_a_missing_wheel_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TritonMissing, match="no tritonserver in this environment: pip install"):
        TritonServer(REPOSITORY).start()


def test_a_python_without_its_library_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(triton_installation.sysconfig, "get_config_var", lambda name: "libpython.a")
    monkeypatch.setattr(triton_installation.ctypes.util, "find_library", lambda name: None)
    with pytest.raises(TritonMissing, match="--enable-shared"):
        TritonServer(REPOSITORY).start()
