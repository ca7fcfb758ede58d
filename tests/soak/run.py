"""The runs, their figures and their verdict."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.soak.load import Load, Tally, until_enough
from tests.soak.stage import Stage, stage
from tests.soak.watch import INFLIGHT, Sample, Verdict, counted, drawing, judge, watch
from tests.support.processes import ROOT

CALLERS = 64
SECONDS = 120.0
REQUESTS = 100_000
LONGEST_S = 3600.0
"""Of a run that is counted in requests."""
SETTLES = 150
"""Looks, a tenth of a second apart, for what is still in flight."""


@dataclass
class Report:
    """One run. `left_in_flight`: what the gateway still counted as under way once all callers had gone;
    `failed_inside`: what it counts as its own faults."""

    run: str
    seconds: float
    tally: Tally
    triton_deaths: int
    left_in_flight: float
    failed_inside: float
    samples: list[Sample] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def good(self) -> bool:
        clean = not (self.tally.faults or self.left_in_flight or self.failed_inside)
        return clean and all(v.flat for v in self.verdicts)

    def told(self) -> dict[str, object]:
        tally = {**asdict(self.tally), "by_way": dict(self.tally.by_way)}
        verdicts = [{**asdict(v), "grew_percent": v.grew_percent, "flat": v.flat} for v in self.verdicts]
        rest = {"run": self.run, "good": self.good, "seconds": self.seconds}
        return rest | {
            "triton_deaths": self.triton_deaths,
            "left_in_flight": self.left_in_flight,
            "failed_inside": self.failed_inside,
            "tally": tally,
            "verdicts": verdicts,
        }


Show = Callable[[float], None]
"""Told how far a run is, 0 to 1."""


async def crosstalk(on: Stage, callers: int, seconds: float, show: Show = lambda share: None) -> Report:
    began = time.monotonic()

    def over() -> bool:
        show(min(1.0, (time.monotonic() - began) / seconds))
        return False

    return await _run("crosstalk", on, callers, over, seconds, None)


async def flat(
    on: Stage, callers: int, requests: int, every_s: float, show: Show = lambda share: None
) -> Report:
    tally: list[Tally] = []

    def over() -> bool:
        asked = tally[0].asked if tally else 0
        show(min(1.0, asked / requests))
        return asked >= requests

    return await _run("flat", on, callers, over, LONGEST_S, every_s, tally)


async def _run(
    name: str,
    on: Stage,
    callers: int,
    over: Callable[[], bool],
    limit_s: float,
    every_s: float | None,
    told: list[Tally] | None = None,
) -> Report:
    load = Load(on, callers)
    if told is not None:
        told.append(load.tally)
    samples: list[Sample] = []
    deaths, began = on.deaths, time.monotonic()
    beside = [asyncio.create_task(on.keep_triton())]
    if every_s is not None:
        watching = watch(on.processes, on.gateway.metrics, lambda: load.tally.asked, every_s, samples)
        beside.append(asyncio.create_task(watching))
    try:
        await until_enough(load, over, limit_s)
        seconds = time.monotonic() - began
        left, inside = await _left(on)
    finally:
        for task in beside:
            task.cancel()
        ended = await asyncio.gather(*beside, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error
    verdicts = judge(samples) if every_s is not None else []
    return Report(name, seconds, load.tally, on.deaths - deaths, left, inside, samples, verdicts)


async def _left(on: Stage) -> tuple[float, float]:
    """What is still in flight once there was time to end it, and what failed inside the gateway so far."""
    left = 0.0
    async with httpx.AsyncClient(timeout=30) as client:
        for _ in range(SETTLES):
            left = await counted(client, on.gateway.metrics, INFLIGHT)
            if not left:
                break
            await asyncio.sleep(0.1)
        return left, await counted(client, on.gateway.metrics, "tidegate_requests_total", 'code="internal"')


def show_report(report: Report, console: Console) -> None:
    tally = report.tally
    console.print(
        f"{report.run}: {tally.asked} requests in {report.seconds:.0f} s: {tally.right} right, {tally.left} left, "
        f"{tally.away} told that the Triton is away (it died {report.triton_deaths} times), {tally.wrong} wrong, "
        f"{report.left_in_flight:g} in flight afterwards, {report.failed_inside:g} faults of the gateway's own"
    )
    for fault in tally.faults:
        console.print(f"[red]{fault}[/red]")
    if report.verdicts:
        table = Table("process", "figure", "second quarter", "last quarter", "grew")
        for one in report.verdicts:
            grew = f"{one.grew_percent:+.1f} %"
            style = None if one.flat else "red"
            table.add_row(one.process, one.figure, f"{one.second:.1f}", f"{one.last:.1f}", grew, style=style)
        console.print(table)


@contextlib.contextmanager
def bar(what: str, hidden: bool) -> Iterator[Show]:
    with Progress(transient=True, disable=hidden or not sys.stdout.isatty()) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda share: progress.update(task, completed=share)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="The long runs.")
    parser.add_argument("--only", choices=["crosstalk", "flat"], help="default: both, one after the other")
    parser.add_argument("--callers", type=int, default=CALLERS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="length of crosstalk")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="length of flat")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two samples of flat")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 150)
    reports: list[Report] = []
    with tempfile.TemporaryDirectory(prefix="tidegate-soak-") as work, stage(Path(work)) as on:
        if given.only != "flat":
            with bar("crosstalk", given.json) as show:
                reports.append(asyncio.run(crosstalk(on, given.callers, given.seconds, show)))
        if given.only != "crosstalk":
            with bar("flat", given.json) as show:
                reports.append(asyncio.run(flat(on, given.callers, given.requests, given.every, show)))
            drawn = ROOT / "build" / "soak.svg"
            drawn.parent.mkdir(exist_ok=True)
            drawn.write_text(drawing(reports[-1].samples))
    if given.json:
        print(json.dumps([report.told() for report in reports], indent=1))
    else:
        for report in reports:
            show_report(report, console)
        if reports[-1].samples:
            console.print("drawn in build/soak.svg")
    return 0 if all(report.good for report in reports) else 1
