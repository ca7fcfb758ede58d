"""Subprocesses that say when they are ready, on the cores they are given."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.load import family

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Served:
    """A started path or backend. `addresses` maps protocol ("grpc", "http") to host:port, for those it
    speaks; `pids` are the processes that a request passes through."""

    addresses: dict[str, str]
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Cores:
    """Who runs where; None: nothing is pinned, for there is one core only."""

    load: set[int] | None
    path: set[int] | None

    @classmethod
    def of_this_machine(cls) -> Cores:
        """The first usable core for load and backend, the second for the path."""
        usable = sorted(os.sched_getaffinity(0))
        if len(usable) < 2:
            return cls(None, None)
        return cls({usable[0]}, {usable[1]})


@contextmanager
def serving(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run a command that prints a JSON line with `"event": "ready"`; yield it and that line.

    The log gets all it prints. Ended by SIGTERM, then SIGKILL. Raises RuntimeError, with the log's
    name, when it ends or says nothing in time.
    """
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            env=environment() | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
        lines: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
        reader.start()
        try:
            yield process, _wait_ready(lines, log)
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                for member in family(process.pid):
                    member.kill()
                process.wait()
            reader.join()


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    """Take what it prints, so that it never waits for a reader."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    process.stdout.close()
    lines.put(None)


def _wait_ready(lines: queue.Queue[str | None], log: Path) -> dict[str, Any]:
    until = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            line = lines.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise RuntimeError(f"not ready after {START_TIMEOUT_S:g} s; see {log}") from None
        if line is None:
            raise RuntimeError(f"ended before it was ready; see {log}")
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict) and said.get("event") == "ready":
            return said


def environment() -> dict[str, str]:
    """This process's environment, with the project importable wherever it was started from."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "proto")])
    return os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def pin(pids: Sequence[int], cores: set[int]) -> None:
    """Keep the processes, their children and all their threads on these cores."""
    for pid in pids:
        for process in family(pid):
            for thread in process.threads():
                try:
                    os.sched_setaffinity(thread.id, cores)
                except ProcessLookupError:
                    continue
