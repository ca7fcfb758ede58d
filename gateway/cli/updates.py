"""`tidegate updates`: drift, what it set off, and what came of it."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any
from urllib.parse import quote

import typer

from gateway.cli.common import HERE, AsJson, Url, call_operator, clock, draw, fail

updates = typer.Typer(help="Drift, and the updates that it sets off.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="the update's id")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="a model of the configuration's updates")]
FOLLOW_S = 1.0
GOOD_ENDS = ("recovered", "passed")


@updates.command("list")
def list_(url: Url = HERE, as_json: AsJson = False) -> None:
    """What is watched and how far each drifts, and every update, the newest first."""
    found = call_operator(url, "GET", "/api/v1/updates")
    if as_json:
        print(json.dumps(found, indent=2))
        return
    from gateway.cli import updates_drawing as drawing

    if not found["watches"]:
        print("no model is watched: add updates to the configuration file")
        return
    draw(drawing.watches(found["watches"]), *drawing.rests(found), *drawing.summaries(found["updates"]))


@updates.command()
def show(
    id: Id,
    follow: Annotated[
        bool, typer.Option("--follow", help="until it has ended; exit status 1 unless it recovered or passed")
    ] = False,
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """One update: the drift over time, its stages, the gate's rules, trials and the training run's log."""
    view = call_operator(url, "GET", _path(id))
    if not follow:
        _print(view, as_json)
        return
    told = ""
    while True:
        word = view["outcome"] or _doing(view)
        if as_json:
            print(json.dumps(view), flush=True)
        elif word != told and view["open"]:
            print(f"{clock()}  {view['phase']}: {word}", flush=True)
        told = word
        if not view["open"]:
            break
        time.sleep(FOLLOW_S)
        view = call_operator(url, "GET", _path(id))
    if not as_json:
        _print(view, False)
    if view["phase"] not in GOOD_ENDS:
        raise typer.Exit(1)


@updates.command()
def start(model: Model, url: Url = HERE, as_json: AsJson = False) -> None:
    """Begin an update now, whether the model drifts or not."""
    view = call_operator(url, "POST", "/api/v1/updates", {"model": model})
    _began(view, as_json)


@updates.command()
def cancel(id: Id, url: Url = HERE, as_json: AsJson = False) -> None:
    """End an update; a rollout of its that is under way is taken back first."""
    view = call_operator(url, "POST", _path(id, "/cancel"))
    if as_json:
        print(json.dumps(view, indent=2))
    elif view["open"]:
        print(f"{view['id']} ends as soon as {view['waits_for']}")
    else:
        print(f"{view['id']} has ended: {view['outcome']}")


@updates.command()
def retry(id: Id, url: Url = HERE, as_json: AsJson = False) -> None:
    """Begin an ended update anew, as an update of its own."""
    _began(call_operator(url, "POST", _path(id, "/retry")), as_json)


@updates.command()
def samples(model: Model, url: Url = HERE, as_json: AsJson = False) -> None:
    """The samples that are kept of a model: what a label file names. Never what is in them."""
    found = call_operator(url, "GET", f"/api/v1/updates/samples/{quote(model, safe='')}")
    if as_json:
        print(json.dumps(found, indent=2))
        return
    if not found:
        print(f"no samples of {model} are kept", file=sys.stderr)
        return
    # Lines that a label file can be made from, so no table.
    for one in found:
        told = one["labelled"] or "no label"
        print(f"{one['id']}  {one['confidence']:.3f}  {one['rows']} row{'s' * (one['rows'] != 1)}  "
              f"{one['site'] or '-'}  {told}")  # fmt: skip


def _path(id: str, call: str = "") -> str:
    if not id or not id.isalnum():
        fail(f"no update {id!r}: `tidegate updates list` has their ids", 2)
    return f"/api/v1/updates/{id}{call}"


def _began(view: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(view, indent=2))
    else:
        print(f"{view['id']} has begun: tidegate updates show {view['id']} --follow")


def _print(view: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(view, indent=2))
        return
    from gateway.cli import updates_drawing as drawing

    draw(*drawing.update(view))


def _doing(view: dict[str, Any]) -> str:
    """What it does or waits for, in a few words."""
    progress = view["progress"]
    if progress is not None:
        return f"{progress['share'] * 100:.0f} % {progress['words']}".strip()
    return view["waits_for"] or "under way"
