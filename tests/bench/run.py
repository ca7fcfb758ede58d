"""The matrix of paths and loads, its table and its JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.bench.backends import BACKENDS, Start
from tests.bench.load import Result, Spec
from tests.bench.paths import PATHS
from tests.bench.processes import ROOT, Cores, Served, environment, pin, python
from tests.bench.workload import PAYLOADS

INFLIGHT = (1, 8, 32)
PROTOCOLS = ("grpc", "http")
PEER = "ray-serve-proxy"
BAR = 16


@dataclass(frozen=True)
class Row:
    """One line of `build/bench.json`. Latencies are None when no answer was right; `cpu_us` is the
    path's CPU time per request, 0 where there is no path."""

    path: str
    protocol: str
    payload: str
    inflight: int
    rps: float
    p50_ms: float | None
    p99_ms: float | None
    cpu_us: float | None
    bad: int


Key = tuple[str, str, int]
"""Protocol, payload and requests in flight: what rows of different paths have in common."""


def measure(
    served: Served, protocol: str, payload: str, inflight: int, seconds: float, cores: Cores
) -> Result:
    """One load from a process of its own. Raises subprocess.CalledProcessError when that fails."""
    spec = Spec(served.addresses[protocol], protocol, payload, inflight, seconds, pids=served.pids)
    command = python("tests.bench.load", json.dumps(asdict(spec)))
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    if cores.load:
        pin([process.pid], cores.load)
    out, _ = process.communicate(timeout=seconds + 120)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Result(**json.loads(out))


def collect(
    paths: Sequence[str], start_backend: Start, seconds: float, work: Path, console: Console
) -> list[Row]:
    """Start, load and stop each path in turn before one backend."""
    cores = Cores.of_this_machine()
    rows: list[Row] = []
    cells = [(i, p) for p in PAYLOADS for i in INFLIGHT]
    with Progress(console=console, transient=True) as progress, start_backend(work, cores) as backend:
        task = progress.add_task("", total=len(paths))
        for path in paths:
            progress.update(task, description=f"{path}: starting")
            with PATHS[path](backend, work, cores) as served:
                loads = [
                    (protocol, *cell)
                    for protocol in PROTOCOLS
                    if protocol in served.addresses
                    for cell in cells
                ]
                for protocol, inflight, payload in loads:
                    progress.update(task, description=f"{path}: {protocol}, {payload}, {inflight} in flight")
                    seen = measure(served, protocol, payload, inflight, seconds, cores)
                    rows.append(
                        Row(
                            path=path,
                            protocol=protocol,
                            payload=payload,
                            inflight=inflight,
                            rps=round(seen.rps, 1),
                            p50_ms=_rounded(seen.p50_ms),
                            p99_ms=_rounded(seen.p99_ms),
                            cpu_us=_rounded(seen.cpu_us, 1),
                            bad=seen.bad,
                        )
                    )
                    progress.advance(task, 1 / len(loads))
    return rows


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)


def table(rows: Sequence[Row], backend: str) -> Table:
    """All rows, grouped by what they have in common, each beside its ratios within that group."""
    by_key: dict[Key, list[Row]] = {}
    for row in sorted(
        rows, key=lambda r: (PROTOCOLS.index(r.protocol), list(PAYLOADS).index(r.payload), r.inflight)
    ):
        by_key.setdefault((row.protocol, row.payload, row.inflight), []).append(row)
    shown = Table(title=f"Backend: {backend}. CPU: of everything between client and backend, per request")
    for name in ("protocol", "payload", "in flight", "path"):
        shown.add_column(name)
    for name in ("req/s", "p50 ms", "p99 ms", "CPU us", "bad", "p50 - direct", f"CPU : {PEER}"):
        shown.add_column(name, justify="right")
    shown.add_column("CPU us, to scale", min_width=BAR, no_wrap=True)
    most = max((row.cpu_us or 0 for row in rows), default=0)
    for key, group in by_key.items():
        added, share = ratios(group)
        for row in group:
            first = row is group[0]
            shown.add_row(
                *(str(part) if first else "" for part in key),
                row.path,
                f"{row.rps:,.0f}",
                _shown(row.p50_ms, 2),
                _shown(row.p99_ms, 2),
                _shown(row.cpu_us, 0),
                f"[red]{row.bad}[/red]" if row.bad else "0",
                _shown(added.get(row.path), 2, sign="+"),
                "" if row.path not in share else f"1 : {1 / share[row.path]:.1f}",
                "█" * round(BAR * (row.cpu_us or 0) / most) if most else "",
                end_section=row is group[-1],
            )
    return shown


def ratios(group: Sequence[Row]) -> tuple[dict[str, float], dict[str, float]]:
    """Of rows with one load: milliseconds of p50 over `direct`, and CPU per request as a share of
    Ray Serve's proxy, by path; only where both are known."""
    rows = {row.path: row for row in group}
    direct, peer = rows.get("direct"), rows.get(PEER)
    added = {
        path: row.p50_ms - direct.p50_ms
        for path, row in rows.items()
        if direct and direct.p50_ms is not None and row.p50_ms is not None and row is not direct
    }
    share = {
        path: row.cpu_us / peer.cpu_us
        for path, row in rows.items()
        if peer and peer.cpu_us and row.cpu_us and row is not peer
    }
    return added, share


def _shown(value: float | None, digits: int, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign},.{digits}f}"


def write(rows: Sequence[Row], output: Path) -> None:
    """The rows as a JSON list, in place of an older one only when complete."""
    output.parent.mkdir(parents=True, exist_ok=True)
    new = output.with_name(output.name + ".new")
    new.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    os.replace(new, output)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--paths", default=",".join(PATHS), help="which paths, a,b,c (default: all)")
    parser.add_argument("--backend", choices=list(BACKENDS), default="fixed", help="what answers")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each load")
    parser.add_argument("--output", type=Path, help="default: build/bench.json, or build/bench-triton.json")
    options = parser.parse_args(arguments)
    paths = options.paths.split(",")
    if unknown := set(paths) - set(PATHS):
        parser.error(f"no such path: {', '.join(sorted(unknown))}; there are {', '.join(PATHS)}")
    console = Console(width=None if sys.stdout.isatty() else 150)
    cores = Cores.of_this_machine()
    where = (
        f"load and backend on core {cores.load}, path on core {cores.path}"
        if cores.path
        else "one core, not pinned"
    )
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; {where}"
    )
    work = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    output = options.output or ROOT / "build" / (
        "bench.json" if options.backend == "fixed" else "bench-triton.json"
    )
    rows = collect(paths, BACKENDS[options.backend], options.seconds, work, console)
    write(rows, output)
    console.print(table(rows, options.backend))
    console.print(f"written to {output}")
    bad = sum(row.bad for row in rows)
    if bad or not all(row.p50_ms for row in rows):
        console.print(f"[red]{bad} answers were wrong or missing; logs under {work}[/red]")
        return 1
    shutil.rmtree(work)
    return 0
