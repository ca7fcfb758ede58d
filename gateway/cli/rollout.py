"""`tidegate rollout`: bring a release to the devices in waves, and watch it."""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Annotated, Any

import typer

from gateway.cli.common import HERE, AsJson, Url, call_operator, clock, draw, fail

rollout = typer.Typer(help="Staged updates: begin, watch, pause, resume, abort.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="the rollout's id")]
FOLLOW_S = 1.0


@rollout.command()
def start(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="its name in the configuration")],
    version: Annotated[
        str, typer.Argument(metavar="VERSION", help="the release, as `tidegate models list` shows it")
    ],
    force: Annotated[bool, typer.Option("--force", help="even if its gate did not pass it")] = False,
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """Begin to roll a release out, in the waves that the configuration names."""
    query = {"model": model, "version": version, "force": force}
    view = call_operator(url, "POST", "/api/v1/rollouts", query)
    _done(view, as_json, f"{view['id']} has begun: tidegate rollout status {view['id']} --follow")


@rollout.command()
def status(
    id: Annotated[str, typer.Argument(metavar="[ID]", help="one rollout; without it all of them")] = "",
    follow: Annotated[
        bool, typer.Option("--follow", help="until it has ended; exit status 1 if it was rolled back")
    ] = False,
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """How far a rollout is: its waves, its devices, what was seen of both versions, and what it waits for."""
    if not id and not follow:
        views = call_operator(url, "GET", "/api/v1/rollouts")
        if as_json:
            print(json.dumps(views, indent=2))
        else:
            _all(views)
        return
    view = call_operator(url, "GET", _path(id or _newest(url)))
    if follow:
        view = _follow(url, view, as_json)
    elif as_json:
        print(json.dumps(view, indent=2))
    else:
        _draw(view)
    if follow and view["state"] != "done":
        raise typer.Exit(1)


@rollout.command()
def pause(id: Id, url: Url = HERE, as_json: AsJson = False) -> None:
    """Move nobody until it is resumed. What has moved is watched on, and still turns back on a fault."""
    view = call_operator(url, "POST", _path(id, "/pause"))
    _done(view, as_json, f"{view['id']} is paused: tidegate rollout resume {view['id']}")


@rollout.command()
def resume(id: Id, url: Url = HERE, as_json: AsJson = False) -> None:
    """Go on with a paused rollout."""
    view = call_operator(url, "POST", _path(id, "/resume"))
    _done(view, as_json, f"{view['id']} goes on")


@rollout.command()
def abort(id: Id, url: Url = HERE, as_json: AsJson = False) -> None:
    """Bring everything back to the old version. The new one is withdrawn for good."""
    view = call_operator(url, "POST", _path(id, "/abort"))
    old = f"version {view['from']}" if view["from"] else "nothing"
    _done(view, as_json, f"{view['id']} goes back to {old}: tidegate rollout status {view['id']} --follow")


def _follow(url: str, view: dict[str, Any], as_json: bool) -> dict[str, Any]:
    """On a terminal the drawing is renewed in place, elsewhere each event is a line."""
    path = _path(view["id"])
    if sys.stdout.isatty() and not as_json:
        from rich.live import Live

        from gateway.cli.rollout_drawing import drawing

        with Live(drawing(view), auto_refresh=False) as live:
            while view["open"]:
                time.sleep(FOLLOW_S)
                view = call_operator(url, "GET", path)
                live.update(drawing(view), refresh=True)
        return view
    told = 0.0
    while True:
        if as_json:
            print(json.dumps(view), flush=True)
        for event in view["events"]:
            if not as_json and event["at"] > told:
                print(f"{clock(event['at'])}  {event['text']}", flush=True)
        told = max((event["at"] for event in view["events"]), default=told)
        if not view["open"]:
            return view
        time.sleep(FOLLOW_S)
        view = call_operator(url, "GET", path)


def _newest(url: str) -> str:
    views = call_operator(url, "GET", "/api/v1/rollouts")
    if not views:
        fail("there is no rollout to follow: `tidegate rollout start MODEL VERSION` begins one", 2)
    return next((view["id"] for view in views if view["open"]), views[0]["id"])


def _all(views: list[dict[str, Any]]) -> None:
    if not views:
        print("nothing was rolled out yet: `tidegate rollout start MODEL VERSION` begins one")
        return
    for view in (view for view in views if view["open"]):
        _draw(view)
    from gateway.cli.rollout_drawing import summaries

    draw(*summaries(view for view in views if not view["open"]))


def _draw(view: dict[str, Any]) -> None:
    from gateway.cli.rollout_drawing import parts

    draw(*parts(view))


def _path(id: str, call: str = "") -> str:
    if re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", id) is None:
        fail(f"no rollout {id!r}: `tidegate rollout status` has their ids", 2)
    return f"/api/v1/rollouts/{id}{call}"


def _done(view: dict[str, Any], as_json: bool, text: str) -> None:
    print(json.dumps(view, indent=2) if as_json else text)
