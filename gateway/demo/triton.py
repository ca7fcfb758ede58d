"""A real Triton server on this machine, without Docker, from the nvidia-pytriton wheel.

The wheel carries the `tritonserver` binary, its libraries and the Python backend. What it leaves to
the caller is in `triton_installation`; the process that ties a server to its launcher is
`triton_keeper`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from gateway.demo.triton_installation import Installation, TritonError, TritonMissing, find_installation

HOST = "127.0.0.1"
__all__ = ["HOST", "Ports", "TritonError", "TritonMissing", "TritonServer", "trace_args"]

PORT_ATTEMPTS = 4
KEEPER = Path(__file__).with_name("triton_keeper.py")


class Ports(NamedTuple):
    """Loopback ports of one server."""

    http: int
    grpc: int
    metrics: int


class TritonServer:
    """One tritonserver process, listening on loopback only.

    `models` is a model repository. `load` names the models that must be ready when `start` returns;
    others of the repository can be loaded through the server's repository API. `env` is added to
    this process's environment. A port of 0 is picked free and then kept, so that a server started
    again after `kill` or `stop` answers at the same address. `log` receives the server's output
    (appended); without it the output is kept only until the server ends.

    The server ends with this process, however that ends, and so do its temporary files and its
    shared memory. Methods block and must not be called at the same time; from a coroutine use
    `asyncio.to_thread`.
    """

    def __init__(
        self,
        models: Path,
        *,
        load: Sequence[str] = (),
        log: Path | None = None,
        extra_args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        http_port: int = 0,
        grpc_port: int = 0,
        metrics_port: int = 0,
    ) -> None:
        self._models = models.resolve()
        self._load = tuple(load)
        self._log = log
        self._extra_args = tuple(extra_args)
        self._env = dict(env or {})
        self._asked = Ports(http_port, grpc_port, metrics_port)
        self._ports: Ports | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    def start(self, timeout_s: float = 60.0) -> Self:
        """Start the server and wait until it and the models of `load` are ready.

        Raises TritonError, TritonMissing, and RuntimeError when it runs already.
        """
        if self._keeper is not None and self._keeper.poll() is None:
            raise RuntimeError("this Triton runs already")
        self._close_keeper()  # of a server that ended by itself
        deadline = time.monotonic() + timeout_s
        installation = find_installation()
        keep = self._ports is not None or 0 not in self._asked
        for attempt in range(1, PORT_ATTEMPTS + 1):
            if not keep:
                self._ports = _free_ports(self._asked)
            elif self._ports is None:
                self._ports = self._asked
            self._launch(installation, self._ports)
            try:
                self._wait_ready(deadline, timeout_s)
                return self
            except _PortTaken:
                if keep or attempt == PORT_ATTEMPTS:
                    self._ports = self._ports if keep else None
                    raise
            except BaseException:
                self.kill()
                raise
        raise AssertionError("unreachable")

    def stop(self, grace_s: float = 10.0) -> None:
        """SIGTERM, and SIGKILL for whatever is left after `grace_s`. Harmless when it has ended."""
        self._finish(f"stop {grace_s}\n")

    def kill(self) -> None:
        """SIGKILL to the server and its model processes; returns when they are gone."""
        self._finish("kill\n")

    @property
    def pid(self) -> int:
        """The process id of tritonserver itself. Raises RuntimeError when it does not run."""
        if self._pid is None:
            raise RuntimeError("this Triton does not run")
        return self._pid

    @property
    def running(self) -> bool:
        return self._pid is not None and self._keeper is not None and self._keeper.poll() is None

    @property
    def http_port(self) -> int:
        return self._known_ports().http

    @property
    def grpc_port(self) -> int:
        return self._known_ports().grpc

    @property
    def metrics_port(self) -> int:
        return self._known_ports().metrics

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _known_ports(self) -> Ports:
        if self._ports is None:
            raise RuntimeError("this Triton was not started, so it has no ports")
        return self._ports

    def _launch(self, installation: Installation, ports: Ports) -> None:
        work = Path(tempfile.mkdtemp(prefix="tidegate-triton-"))
        try:
            shm_prefix = f"{work.name}-"
            spec = {
                "command": self._command(installation, work, shm_prefix, ports),
                "env": installation.environment() | self._env,
                "log": str((self._log or work / "server.log").absolute()),
                "work": str(work),
                "shm_prefix": shm_prefix,
            }
            keeper = subprocess.Popen(
                [sys.executable, "-I", str(KEEPER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        self._keeper = keeper
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        keeper.stdin.write(json.dumps(spec).encode() + b"\n")
        keeper.stdin.flush()
        first = keeper.stdout.readline()
        if not first:
            self._close_keeper()
            shutil.rmtree(work, ignore_errors=True)
            raise TritonError("the process that keeps tritonserver ended at once; its error is on stderr")
        self._pid = int(json.loads(first)["pid"])

    def _command(self, installation: Installation, work: Path, shm_prefix: str, ports: Ports) -> list[str]:
        command = [
            str(installation.binary(work)),
            f"--model-repository={self._models}",
            f"--backend-directory={installation.backends(work)}",
            f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
            f"--cache-directory={installation.root / 'caches'}",
            "--model-control-mode=explicit",
        ]
        for name, port in ports._asdict().items():
            command += [f"--{name}-address={HOST}", f"--{name}-port={port}"]
        command += [f"--load-model={model}" for model in self._load]
        return [*command, *self._extra_args]

    def _wait_ready(self, deadline: float, timeout_s: float) -> None:
        ports = self._known_ports()
        waiting = [f"/v2/models/{model}/ready" for model in self._load]
        while waiting or not _listens(self.pid, ports):
            if self._keeper is None or self._keeper.poll() is not None:
                raise self._ended()
            if time.monotonic() > deadline:
                what = waiting[0] if waiting else "its listeners"
                raise TritonError(f"tritonserver was not ready within {timeout_s:g} s: {what}")
            waiting = [path for path in waiting if not _answers(ports.http, path)]
            time.sleep(0.03)

    def _ended(self) -> TritonError:
        """What to raise for a server that ended by itself."""
        said = self._close_keeper()
        lines = said.get("tail", "").splitlines()
        taken = [line for line in lines if "failed to start" in line and "already in use" in line]
        faults = (
            taken or [line for line in lines if "failed to" in line or line.startswith("error:")] or lines
        )
        message = f"tritonserver ended with {said.get('exit')}: " + " | ".join(
            re.sub(r"^[EWI]\d{4} .*?\] ", "", line)[:400] for line in faults[-3:]
        )
        return _PortTaken(message) if taken else TritonError(message)

    def _finish(self, order: str) -> None:
        if self._keeper is None:
            return
        with contextlib.suppress(BrokenPipeError, ValueError):
            assert self._keeper.stdin is not None
            self._keeper.stdin.write(order.encode())
            self._keeper.stdin.flush()
        self._close_keeper()

    def _close_keeper(self) -> dict[str, str]:
        """Wait for the keeper's end; what it said last."""
        keeper, self._keeper, self._pid = self._keeper, None, None
        if keeper is None:
            return {}
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        said = keeper.stdout.read()
        with contextlib.suppress(BrokenPipeError):
            keeper.stdin.close()
        keeper.stdout.close()
        keeper.wait()
        return json.loads(said) if said else {}


class _PortTaken(TritonError):
    """A port was taken between its choice and the server's bind."""


def trace_args(traces_url: str, *, service: str = "triton") -> list[str]:
    """Arguments that make the server export a span tree of every request to an OTLP/HTTP receiver.

    `traces_url` is the full address, e.g. http://127.0.0.1:4318/v1/traces. A request's W3C
    `traceparent` becomes the parent of its spans. Raises ValueError for anything but http(s).
    """
    if urlsplit(traces_url).scheme not in ("http", "https"):
        raise ValueError(f"{traces_url!r} is not an http:// address of an OTLP receiver")
    settings = [
        "mode=opentelemetry",
        "level=TIMESTAMPS",
        "rate=1",
        f"opentelemetry,url={traces_url}",
        f"opentelemetry,resource=service.name={service}",
    ]
    return [f"--trace-config={setting}" for setting in settings]


def _free_ports(asked: Ports) -> Ports:
    """The ports asked for, with a free one for every 0.

    They are drawn below the range that the kernel gives to outgoing connections, so that neither a
    stranger's connection nor a client that keeps dialling a dead server can take one. All are held
    at once, so that they differ; the server binds right after they are let go.
    """
    with contextlib.ExitStack() as held:
        return Ports(*(port or held.enter_context(_held_port()).getsockname()[1] for port in asked))


def _held_port() -> socket.socket:
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    draw = random.SystemRandom()
    for _ in range(200):
        candidate = draw.randrange(max(1024, low - 12000), low) if low > 2048 else 0
        held = socket.socket()
        try:
            held.bind((HOST, candidate))
        except OSError:
            held.close()
            continue
        return held
    raise TritonError("no free port on loopback")


def _listens(pid: int, ports: Ports) -> bool:
    """Whether that process itself listens on all of the ports.

    An answer on a port is no proof: it may come from another server that took it first, and this
    one takes a moment to give up.
    """
    listening: dict[int, set[str]] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):  # gRPC listens on mapped IPv4 addresses
        for fields in map(str.split, Path(table).read_text().splitlines()[1:]):
            if fields[3] == "0A":
                port = int(fields[1].rpartition(":")[2], 16)
                listening.setdefault(port, set()).add(f"socket:[{fields[9]}]")
    own: set[str] = set()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                own.add(os.readlink(descriptor))
    return all(own & listening.get(port, set()) for port in ports)


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
