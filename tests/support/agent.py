"""The agent in a process of its own, as people start it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import source_env

STOP_S = 30.0
OWN_MODELS = ("-m", "edge_agent.cli")
TINY_MODELS = (
    "-c",
    "from edge_agent import cli; from tests.support.tiny_models import tiny_models; "
    "cli._models = tiny_models; cli.main()",
)
"""With `tests.support.tiny_models` in place of real ones."""


@dataclass
class AgentProcess:
    """A running agent. `device` and `site` are None before enrolment; addresses are HOST:PORT."""

    process: subprocess.Popen[str]
    device: str | None
    site: str | None
    http: str
    grpc: str
    pid: int
    log: Path

    def stop(self) -> int:
        """End it as an operator does; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)


@contextlib.contextmanager
def running_agent(
    state: Path,
    hub: str,
    *flags: str,
    program: Sequence[str] = OWN_MODELS,
    environ: Mapping[str, str] | None = None,
) -> Iterator[AgentProcess]:
    """An agent that is ready, on free ports. Its log is beside its state folder."""
    log = state.with_name(f"{state.name}.log")
    command = [sys.executable, *program, "run", "--hub", hub, "--state", str(state), "--json"]
    command += ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *flags]
    with log.open("a") as sink:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=sink, text=True, env={**source_env(), **(environ or {})}
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"the agent did not start: {log.read_text()[-4000:]}"
        yield AgentProcess(process, **json.loads(line), log=log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
