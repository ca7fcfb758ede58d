"""A data plane replica in a process of its own: all of a gateway's request path, without Ray.

`python -m tests.support.replica FILE GRPC_PORT HTTP_PORT` serves a configuration file on loopback until
SIGTERM, and prints a line once it does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from gateway.core.config.load import kinds_in, load_config, revision_of
from gateway.demo.triton import Ports, _free_ports
from gateway.serve.runtime import Runtime
from gateway.serve.settings import Address, Listen, ReplicaSettings
from tests.support.processes import ROOT

START_S = 30.0


class Replica:
    """Ports and file stay the same over restarts. `pid` is that of the running process."""

    def __init__(self, config: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "tidegate.yaml"
        self.write(config)
        self.log = folder / "replica.log"
        self.grpc_port, self.http_port, _ = _free_ports(Ports(0, 0, 0))
        self._process: subprocess.Popen[str] | None = None

    def write(self, config: str) -> None:
        """Its configuration from the next start on."""
        self._file.write_text(config)

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        command = [sys.executable, "-m", "tests.support.replica", str(self._file)]
        with self.log.open("a") as sink:
            self._process = subprocess.Popen(
                [*command, str(self.grpc_port), str(self.http_port)],
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
                cwd=ROOT,
            )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said == "ready\n", f"the replica did not start: {self.log.read_text()[-3000:]}"
        return self

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM and the exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(how)
        status = self._process.wait(START_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status


async def serve(file: Path, grpc_port: int, http_port: int) -> None:
    config = load_config(file, kinds_in("gateway.backends"), os.environ)
    listen = Listen(
        http=Address("127.0.0.1", http_port),
        grpc=Address("127.0.0.1", grpc_port),
        metrics=Address("127.0.0.1", 0),
    )
    runtime = Runtime(ReplicaSettings(config, revision_of(config), listen, file.parent / "state"), _nobody)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await runtime.start()
    print("ready", flush=True)
    await stop.wait()
    await runtime.drain(5.0)


async def _nobody(method: str, target: str, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
    """There is no control here."""
    return 503, [], b""


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
