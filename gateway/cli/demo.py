"""`tidegate demo`: the main job on real parts, as one table."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from gateway.demo.row import Row
    from gateway.demo.stage import Stage

SETTING_UP = 6
STEP_WEIGHT = 60
"""Calls that one step of the setting up counts for, so that the bar moves with the time it takes."""
NARROW = 160
WHO = (
    "In the cloud: gateway gw-cloud with two Tritons, cheap-slow and dear-fast. At plant-7: its own gateway, "
    "which asks cameras (the devices cam-7a and cam-7b), server-room (a pool) or gw-cloud. At plant-9: device "
    "cam-9a, which dials the cloud, as the cameras of two assembly lines at plant-3 and plant-4 do. hey-mycroft is "
    "somebody else's wake word model, on plant-7's devices."
)
NOTE = (
    "p50 is what the caller saw, its own work and the gateway's included; in (f) eight callers wait in line at "
    "cheap-slow once the other is gone. Costs are price per hour over measured capacity, in USD."
)


def demo(
    serve: Annotated[bool, typer.Option("--serve", help="stay up afterwards and print what to try")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the rows as JSON")] = False,
) -> None:
    """Two Triton servers behind a gateway in the cloud, a plant with a gateway, a pool and devices of its
    own; thirteen situations. Exit 1 if one does not go as it must."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from gateway.cli.common import fail
    from gateway.demo import loop_scenes, plant_scenes, scenes
    from gateway.demo.stage import staged

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what runs is stopped, however this ends
    talk = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-demo-") as folder,
        Progress(*columns, console=talk, disable=not talk.is_terminal, transient=True) as progress,
    ):
        parts = (scenes, plant_scenes, loop_scenes)
        total = SETTING_UP * STEP_WEIGHT + sum(part.CALLS_IN_ALL for part in parts)
        task = progress.add_task("starting", total=total)

        def step(what: str) -> None:
            progress.update(task, description=what, advance=STEP_WEIGHT)
            if not talk.is_terminal:
                talk.print(what)

        try:
            with staged(Path(folder), step) as stage:
                progress.update(task, description="playing the scenes")
                tick: Callable[[int], None] = lambda n: progress.advance(task, n)  # noqa: E731
                rows = [row for part in parts for row in part.play(stage, tick)]
                progress.stop()
                _print(rows, stage, as_json)
                if serve:
                    _serve(stage, as_json)
        except RuntimeError as error:
            progress.stop()
            fail(str(error), 1)
        except KeyboardInterrupt:
            progress.stop()
            talk.print("stopped")
            raise
    if not all(row.ok for row in rows):
        fail(f"not as expected: row {', '.join(r.row for r in rows if not r.ok)}", 1)


def _print(rows: list[Row], stage: Stage, as_json: bool) -> None:
    if as_json:
        profiles = {
            p.endpoint: {"p50_ms": p.latency_p50_ms, "capacity_rps": p.capacity_rps} for p in stage.profiles
        }
        print(json.dumps({"measured": profiles, "rows": [row.as_json() for row in rows]}, indent=2))
        return
    from rich.console import Console

    console = Console(width=None if os.isatty(1) else 200)
    for p in stage.profiles:
        console.print(
            f"measured directly: {p.endpoint} p50 {p.latency_p50_ms:.1f} ms, p95 {p.latency_p95_ms:.1f} ms, "
            f"saturates at {p.capacity_rps:.0f} requests/s",
            highlight=False,
        )
    if console.width < NARROW:
        _print_blocks(rows, console)
    else:
        _print_table(rows, console)
    console.print(WHO, highlight=False)
    console.print(NOTE, highlight=False)


def _print_table(rows: list[Row], console: Console) -> None:
    from rich.table import Table

    table = Table()
    for name in ("", "scene", "expected", "got", "chosen", "p50 ms", "USD / 1k", "why"):
        table.add_column(name, overflow="fold", justify="right" if name in ("p50 ms", "USD / 1k") else "left")
    for row in rows:
        cost = "" if row.cost_per_1k is None else f"{row.cost_per_1k:.2g}"
        p50 = "" if row.p50_ms is None else f"{row.p50_ms:.1f}"
        table.add_row(_mark(row), row.scene, row.expected, row.got, row.chosen, p50, cost, row.why)
    console.print(table)


def _print_blocks(rows: list[Row], console: Console) -> None:
    """The same for a narrow terminal, where a table would break every word."""
    for row in rows:
        lines = [f"{_mark(row)}: {row.scene}", f"  expected {row.expected}; got {row.got}"]
        if row.p50_ms is not None and row.cost_per_1k is not None:
            lines.append(
                f"  {row.chosen}: p50 {row.p50_ms:.1f} ms, {row.cost_per_1k:.2g} USD per 1000 answers"
            )
        for line in (*lines, f"  why: {row.why}"):
            console.print(line, highlight=False, markup=False)


def _mark(row: Row) -> str:
    return f"({row.row}) {'ok' if row.ok else 'NOT OK'}"


def _serve(stage: Stage, as_json: bool) -> None:
    """Bring back what the scenes killed and stay up until Ctrl-C or SIGTERM."""
    from gateway.demo.plant import NEAR, wait_devices, wait_endpoints
    from gateway.demo.stage import DEAR

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    stage.servers[DEAR].start()
    stage.plant.agents[NEAR].start()
    wait_endpoints(stage.http, set(stage.servers))
    wait_devices(stage.plant.gateway.http, {NEAR})
    if as_json:
        agents = {
            name: {"pid": a.pid, "http": a.http, "grpc": a.grpc} for name, a in stage.plant.agents.items()
        }
        served = {"cloud": asdict(stage.cloud), "plant": asdict(stage.plant.gateway), "agents": agents}
        print(json.dumps(served), flush=True)
    print(
        f"serving HTTP on {stage.http}, gRPC on {stage.grpc}, metrics on {stage.metrics}; plant-7 on "
        f"{stage.plant.gateway.http}; {DEAR} and {NEAR} are back. Try:"
    )
    for line in curl_lines(stage):
        print(line)
    print("Ctrl-C ends it.", flush=True)
    stop.wait()


def curl_lines(stage: Stage) -> list[str]:
    """Lines to try: an answer with its reasons, a refusal, a dry run, a device's answer at the plant."""
    pixels = json.dumps([round(float(v), 4) for v in stage.pixels[0]])
    body = f'{{"inputs": [{{"name": "pixels", "shape": [1, 64], "datatype": "FP32", "data": {pixels}}}]}}'
    infer = f"http://{stage.http}/v2/models/digits/infer"
    return [
        f"curl -i {infer} -H 'tidegate-policy: cost-500ms' -d '{body}'",
        f"curl -i {infer} -H 'tidegate-privacy: on-site' -d '{{}}'",
        f"curl -s http://{stage.http}/api/v1/route -H 'content-type: application/json' "
        f'-d \'{{"model": "digits", "privacy": "eu-only"}}\'',
        f"curl -i http://{stage.plant.gateway.http}/v2/models/digits/infer -H 'tidegate-privacy: personal' "
        f"-d '{body}'",
    ]
