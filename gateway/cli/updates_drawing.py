"""How updates are drawn in a terminal: the score over time as a chart, the stages as bars on one time line."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.cli.common import clock, date

CHART_WIDTH = 60
CHART_HEIGHT = 6
LIST_WIDTH = 16
BAR_WIDTH = 32
_COLOURS = {
    "recovered": "green", "passed": "green", "steady": "green", "drifting": "red", "failed": "red",
    "refused": "red", "rolled back": "red", "not recovered": "red", "cancelled": "yellow",
}  # fmt: skip


def watches(views: Iterable[dict[str, Any]]) -> Table:
    """Each model that is watched, with its last scores."""
    table = _table("model", "signal", "drift", "score", "over time")
    for view in views:
        word = Text(view["phase"], _COLOURS.get(view["phase"], ""))
        if view["score"] is None:
            score = Text(f"{view['values']} of {view['min_samples']} values")
        else:
            score = Text(f"{view['score']:.3f} of {view['threshold']:g}")
        scores = [entry[1] for entry in view["history"]]
        (line,) = columns(scores, view["threshold"], LIST_WIDTH, 1)
        table.add_row(view["model"], view["signal"], word, score, line)
    return table


def rests(found: dict[str, Any]) -> list[RenderableType]:
    """Why nothing is done about the drift of a model."""
    open_ones = {view["model"] for view in found["updates"] if view["open"]}
    lines: list[RenderableType] = []
    for view in found["watches"]:
        if view["phase"] != "drifting" or view["model"] in open_ones:
            continue
        quiet = view["quiet_until"]
        if not view["trains"]:
            lines.append(Text(f"{view['model']} drifts, and has no `train` that would do something about it"))
        elif quiet is not None and quiet > time.time():
            lines.append(
                Text(
                    f"{view['model']} drifts; its last update has ended, and drift begins no other before"
                    f" {clock(quiet)}: `tidegate updates start {view['model']}` does"
                )
            )
    return lines


def summaries(views: Iterable[dict[str, Any]]) -> list[RenderableType]:
    """Each update on a line, what came of it or what it waits for below."""
    found: list[RenderableType] = []
    for view in views:
        version = f"version {view['version']}, " if view["version"] else ""
        found.append(
            Text.assemble(
                (f"{view['id']}  ", "bold"),
                f"{view['model']}  ",
                (view["phase"], _COLOURS.get(view["phase"], "yellow")),
                f"  {version}began {date(view['began_at'])} by {_cause(view)}",
            )
        )
        what = view["outcome"] or view["waits_for"]
        if what:
            found.append(Text(f"    {what}"))
    return found


def update(view: dict[str, Any]) -> list[RenderableType]:
    """Everything about one update, top to bottom."""
    head = Text.assemble(
        (f"{view['id']} ", "bold"),
        view["model"],
        "  ",
        (view["phase"], _COLOURS.get(view["phase"], "yellow")),
    )
    parts: list[RenderableType] = [head, Text(view["outcome"] or view["waits_for"] or "")]
    parts += [Text(f"set off by {_cause(view)}")]
    watch = view["watch"]
    if watch is not None and watch["history"]:
        parts += ["", Text(f"{watch['signal']} against its reference ({watch['detector']})"), chart(watch)]
    parts += ["", stages(view)]
    if view["loop_s"] is not None:
        parts.append(
            Text(f"from the first score over its threshold to the recovered model: {view['loop_s']:.1f} s")
        )
    if view["progress"] is not None:
        parts.append(_progress(view["progress"]))
    parts += [
        Text(f"attempt {number} failed: {why}", "red") for number, why in enumerate(view["failures"], 1)
    ]
    if view["rules"]:
        parts += ["", _rules(view["rules"])]
    if view["trials"]:
        parts += ["", _trials(view["trials"])]
    if view["rollout"]:
        parts.append(Text(f"rollout {view['rollout']}: tidegate rollout status {view['rollout']}"))
    if view["log"].strip():
        parts += ["", Text("log", "bold"), Text(view["log"].rstrip())]
    return parts


def chart(watch: dict[str, Any]) -> Group:
    """The score over time, with its threshold as a line; red where it is over."""
    history, threshold = watch["history"], watch["threshold"]
    scores = [entry[1] for entry in history]
    top = _top(scores, threshold)
    lines = columns(scores, threshold, CHART_WIDTH, CHART_HEIGHT)
    at = CHART_HEIGHT - 1 - min(CHART_HEIGHT - 1, int(threshold / top * CHART_HEIGHT))
    for number, line in enumerate(lines):
        label = f"{top:7.2f} " if number == 0 else f"{threshold:7.2f} " if number == at else "        "
        lines[number] = Text(label) + line
        if number == at:
            lines[number].append(" threshold")
    first, last = clock(history[0][0]), clock(history[-1][0])
    gap = min(len(history), CHART_WIDTH) - len(first) - len(last)
    return Group(*lines, Text(f"{'':8}{first}{' ' * max(gap, 1)}{last}"))


def columns(scores: Sequence[float], threshold: float, width: int, height: int) -> list[Text]:
    """Scores as columns of blocks, `height` lines, the top one first. Where there are more scores than
    columns, a column is the greatest of its share: no peak is lost."""
    blocks = _blocks()
    found = _resampled(scores, width)
    top = _top(scores, threshold)
    line_at = min(height - 1, int(threshold / top * height))
    lines: list[Text] = []
    for row in reversed(range(height)):
        line = Text()
        for score in found:
            filled = score / top * height - row
            step = min(len(blocks) - 1, max(0, round(filled * (len(blocks) - 1))))
            mark = blocks[step]
            if not step and row == line_at and height > 1:
                mark = "-"
            line.append(mark, "red" if step and score >= threshold else "green" if step else "dim")
        lines.append(line)
    return lines


def stages(view: dict[str, Any]) -> Table:
    """Each stage with how long it took and a bar where it lies in the whole."""
    found = view["stages"]
    began = found[0]["at"]
    until = found[-1]["at"] if not view["open"] else max(found[-1]["at"], time.time())
    whole = max(until - began, 1e-9)
    full = _blocks()[-1]
    table = _table("stage", "at", "took", "")
    instants = [*(stage["at"] for stage in found), until]
    for stage, (at, end) in zip(found, pairwise(instants), strict=True):
        left = round((at - began) / whole * BAR_WIDTH)
        long = max(round((end - at) / whole * BAR_WIDTH), 0 if stage["s"] is None else 1)
        colour = _COLOURS.get(stage["phase"], "cyan")
        bar = Text(" " * min(left, BAR_WIDTH - 1)) + Text(full * long, colour)
        took = "-" if stage["s"] is None else f"{stage['s']:.1f} s"
        table.add_row(Text(stage["phase"], colour), f"+{at - began:.1f} s", took, bar)
    return table


def _resampled(scores: Sequence[float], width: int) -> list[float]:
    if len(scores) <= width:
        return list(scores)
    bounds = [round(k * len(scores) / width) for k in range(width + 1)]
    return [max(scores[a:b]) for a, b in pairwise(bounds)]


def _top(scores: Sequence[float], threshold: float) -> float:
    return max([*scores, threshold * 1.5])


def _blocks() -> str:
    """From nothing to a full cell, in what the terminal can show."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    return " ▁▂▃▄▅▆▇█" if "utf" in encoding else " .:#"


def _cause(view: dict[str, Any]) -> str:
    cause = view["cause"]
    if cause["origin"] != "drift":
        return {"operator": "an operator", "push": "a pushed release"}[cause["origin"]]
    where = f" at {', '.join(site or 'no site' for site in cause['sites'])}" if cause["sites"] else ""
    return f"{cause['signal']} {cause['score']:.2f} of {cause['threshold']:g}{where}"


def _rules(rules: Iterable[dict[str, Any]]) -> Table:
    table = _table("gate", "", "what was found")
    for rule in rules:
        word, colour = {True: ("passes", "green"), False: ("refuses", "red"), None: ("-", "dim")}[
            rule["passed"]
        ]
        table.add_row(rule["name"], Text(word, colour), Text(rule["text"]))
    return table


def _trials(trials: Iterable[dict[str, Any]]) -> Table:
    table = _table("group", "device", "trial", "p50", "serves at", "why")
    for trial in trials:
        new, old = (f"{ms:.3g} ms" if ms else "-" for ms in (trial["p50_ms"], trial["active_p50_ms"]))
        word = trial["outcome"] or "under way"
        table.add_row(trial["group"], trial["device"], word, new, old, Text(trial["reason"] or ""))
    return table


def _progress(progress: dict[str, Any]) -> Text:
    full = _blocks()[-1]
    done = round(progress["share"] * BAR_WIDTH)
    words = f" {progress['share'] * 100:.0f} % {progress['words']} (attempt {progress['attempt']})"
    return Text(full * done, "cyan") + Text("-" * (BAR_WIDTH - done), "dim") + Text(words)


def _table(*heads: str) -> Table:
    table = Table()
    for head in heads:
        table.add_column(head, overflow="fold")
    return table
