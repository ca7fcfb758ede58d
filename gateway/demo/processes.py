"""The demo's gateways and agents, each a process of its own, as an operator would run them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STOP_TIMEOUT_S = 40.0
LOG_TAIL = 2000


@dataclass(frozen=True, slots=True)
class Serving:
    """Where a gateway listens, as IP:PORT; `edge` "" where it has no hub. `pids` by what runs there."""

    http: str
    grpc: str
    metrics: str
    edge: str = ""
    pids: dict[str, list[int]] = field(default_factory=dict[str, list[int]])


@contextlib.contextmanager
def gateway(name: str, config: Path, work: Path, environment: Mapping[str, str]) -> Iterator[Serving]:
    """`tidegate up` on free ports. Raises RuntimeError when it does not start."""
    listen = [part for flag in ("http", "grpc", "metrics", "edge") for part in (f"--{flag}", "127.0.0.1:0")]
    state = ["--state-dir", str(work / name)]
    command = [sys.executable, "-m", "gateway.cli.main", "up", "-f", str(config), "--json", *listen, *state]
    with _process(name, command, work, environment) as (process, serving):
        yield Serving(**{key: serving[key] for key in Serving.__slots__ if key in serving})
        process.send_signal(signal.SIGTERM)


class Agent:
    """`tidegate-agent run` for one device. It enrols with the token the first time it starts."""

    def __init__(self, device: str, hub: str, work: Path, token: str) -> None:
        self.device = device
        self.state = work / device
        self.http = self.grpc = ""
        self._command = [sys.executable, "-m", "edge_agent.cli", "run", "--json", "--hub", hub]
        self._command += ["--state", str(self.state)]
        self._command += ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
        # Everybody on the machine can read a command line.
        self._environment = {"TIDEGATE_ENROLMENT_TOKEN": token}
        self._work = work
        self._running = contextlib.ExitStack()
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Raises RuntimeError when it does not start."""
        self._running = contextlib.ExitStack()
        self._process, ready = self._running.enter_context(
            _process(self.device, self._command, self._work, self._environment)
        )
        self.http, self.grpc = ready["http"], ready["grpc"]

    def credential(self) -> str:
        """What the device shows as itself, as its agent keeps it."""
        return (self.state / "credential").read_text().strip()

    @property
    def pid(self) -> int:
        """Of the running agent. Raises RuntimeError when it does not run."""
        if self._process is None:
            raise RuntimeError(f"{self.device} does not run")
        return self._process.pid

    def kill(self) -> None:
        """As a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
        self._running.close()
        self._process = None


@contextlib.contextmanager
def _process(
    name: str, command: Sequence[str], work: Path, environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A process and the JSON line with which it says that it is ready. On leaving it is waited for, then
    killed."""
    path = work / f"{name}.log"
    with path.open("a") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # Ctrl-C is for the demo, which then lets each finish what runs
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"{name} did not start: {path.read_text()[-LOG_TAIL:]}")
            yield process, json.loads(line)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
