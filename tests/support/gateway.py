"""A gateway as an operator would run it: `tidegate up` in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

STOP_S = 45.0


@dataclass(slots=True)
class Gateway:
    """A running gateway. Addresses are IP:PORT, `edge` None without a group of devices; `pids` are those
    it told."""

    process: subprocess.Popen[str]
    http: str
    grpc: str
    metrics: str
    edge: str | None
    pids: dict[str, list[int]]
    endpoints: dict[str, str]
    log: Path

    def get(self, path: str) -> Any:
        answer = httpx.get(f"http://{self.http}{path}", timeout=15)
        answer.raise_for_status()
        return answer.json()

    def decision(self, decision_id: str) -> dict[str, Any]:
        return self.get(f"/api/v1/decisions/{decision_id}")

    def wait(self, condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
        until = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < until, f"not within {timeout_s} s; {self.log.read_text()[-2000:]}"
            time.sleep(0.05)

    def wait_up(self, *endpoints: str, timeout_s: float = 30.0) -> None:
        """Until the gateway sees every variant on these endpoints as ready."""

        def ready() -> bool:
            views = {v["name"]: v for v in self.get("/api/v1/endpoints")}
            return all(views[e]["up"] and all(m["ready"] for m in views[e]["models"]) for e in endpoints)

        self.wait(ready, timeout_s)

    def stop(self) -> int:
        """SIGTERM and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)


@contextlib.contextmanager
def running_gateway(
    config: str, folder: Path, environ: Mapping[str, str] | None = None, *flags: str
) -> Iterator[Gateway]:
    """Start a gateway from the text of a configuration on free ports; it is gone afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    file, log = folder / "tidegate.yaml", folder / "gateway.log"
    file.write_text(config)
    listen = [part for flag in ("--http", "--grpc", "--edge", "--metrics") for part in (flag, "127.0.0.1:0")]
    command = [sys.executable, "-m", "gateway.cli.main", "up", "-f", str(file), "--json", *listen]
    command += ["--state-dir", str(folder / "state"), *flags]
    with log.open("w") as sink:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=sink, text=True, env={**os.environ, **(environ or {})}
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"the gateway did not start: {log.read_text()[-4000:]}"
        said = json.loads(line)
        assert said.pop("event") == "ready"
        yield Gateway(process, **said, log=log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
