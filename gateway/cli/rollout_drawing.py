"""A rollout in a terminal: a bar a wave, and what was seen of both versions side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.cli.common import date

WIDTH = 32
SHOWN_FAILURES = 5
COLOURS = {"passed": "green", "skipped": "dim", "moving": "cyan", "soaking": "cyan", "stopped": "red"}


def drawing(view: dict[str, Any]) -> RenderableType:
    """`view` as the operator API has it."""
    return Group(*parts(view))


def summaries(views: Iterable[dict[str, Any]]) -> Iterator[RenderableType]:
    """Rollouts that have ended, each on a line, and why below."""
    for view in views:
        devices = view["devices"]
        yield Text.assemble(
            (f"{view['id']}  ", "bold"),
            f"{view['model']}: version {view['from'] or 'none'} to {view['to']}  ",
            (view["outcome"], "green" if view["outcome"] == "done" else "red"),
            f"  {date(view['seen_at'])}, ",
            f"devices that are back: {devices['returned']}"
            if devices["returned"]
            else f"{devices['confirmed']} of {devices['able']} devices serve it",
        )
        if view["cause"]:
            yield Text(f"    {view['cause']}")


def bar(part: int, whole: int, failed: int = 0) -> Text:
    """So much of a whole; the failed in red."""
    full = 0 if whole <= 0 else round(WIDTH * part / whole)
    # Something is never drawn as nothing, and not all never as all.
    full = max(full, 1) if part else 0
    full = min(full, WIDTH - 1) if part < whole else full
    red = 0 if not failed or whole <= 0 else min(WIDTH - full, max(1, round(WIDTH * failed / whole)))
    return Text.assemble(("█" * full, "green"), ("█" * red, "red"), ("░" * (WIDTH - full - red), "dim"))


def parts(view: dict[str, Any]) -> Iterator[RenderableType]:
    """Top to bottom."""
    word = view["state"].replace("_", " ")
    yield Text(
        f"{view['id']}  {view['model']}: version {view['from'] or 'none'} to {view['to']}  ({word})", "bold"
    )
    waves = Table.grid(padding=(0, 2))
    for wave in view["waves"]:
        colour = COLOURS.get(wave["state"], "")
        waves.add_row(
            Text(wave["wanted"], justify="right"),
            bar(wave["serving"], wave["size"], wave["failed"]),
            Text(f"{wave['serving']}/{wave['size']}", justify="right"),
            Text(wave["state"], colour),
        )
    yield waves
    yield Text(_devices(view["devices"]))
    evidence = list(_evidence(view["evidence"]))
    if evidence:
        table = Table.grid(padding=(0, 2))
        for row in evidence:
            table.add_row(*row)
        yield table
    for endpoint, why in sorted(view["followers"].items()):
        yield Text(f"{endpoint}: {why or 'serves it'}")
    for device, why in sorted(view["failures"].items())[:SHOWN_FAILURES]:
        yield Text(f"{device}: {why}", "red")
    if view["cause"]:
        yield Text(view["cause"], "red")
    if view["waits_for"]:
        yield Text(f"waits for {view['waits_for']}", "cyan")


def _devices(devices: dict[str, int]) -> str:
    told = [f"{devices['confirmed']} of {devices['able']} devices serve it"]
    words = {
        "moving": "on their way",
        "failed": "failed",
        "returned": "are back",
        "waiting": "not yet told",
        "excluded": "cannot take it",
    }
    told += [f"{devices[name]} {word}" for name, word in words.items() if devices[name]]
    return ", ".join(told)


def _evidence(seen: dict[str, Any]) -> Iterator[tuple[Text, Text, Text, Text]]:
    """Each figure as a bar a version, on one scale."""
    old, which = (seen["old"], "old") if seen["old"]["answered"] else (seen["before"], "before")
    for name, head, unit in (
        ("error_rate", "failed", "%"),
        ("p95_ms", "p95", "ms"),
        ("confidence", "confidence", ""),
    ):
        figures = [
            (word, one[name]) for word, one in (("new", seen["new"]), (which, old)) if one[name] is not None
        ]
        top = 1.0 if name == "confidence" else max((value for _, value in figures), default=0.0)
        for row, (word, value) in enumerate(figures):
            shown = f"{value * 100:.2f} %" if unit == "%" else f"{value:.3g} {unit}".strip()
            length = 0 if top <= 0 else round(WIDTH * value / top)
            line = Text("━" * length, "cyan" if word == "new" else "dim")
            line.pad_right(WIDTH - length)
            yield Text(head if row == 0 else ""), line, Text(shown), Text(word)
