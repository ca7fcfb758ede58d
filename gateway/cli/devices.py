"""`tidegate devices`: tokens for edge devices, and the devices that are enrolled."""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Annotated, Any

import typer

from gateway.cli.common import HERE, AsJson, Url, call_operator, fail, table

devices = typer.Typer(help="Edge devices: enrol, look, drain, revoke.", no_args_is_help=True)

Device = Annotated[str, typer.Argument(help="the device's name")]
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@devices.command()
def token(
    site: Annotated[str, typer.Option(help="where the device is; its requests count as coming from there")],
    label: Annotated[list[str] | None, typer.Option(help="KEY=VALUE, any number of times")] = None,
    device: Annotated[str, typer.Option(help="the only name it can be redeemed for")] = "",
    ttl: Annotated[str, typer.Option(help="how long it can be redeemed: 90s, 30m, 1h, 7d")] = "1h",
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """Print a token that enrols one device once. It is shown now and never again."""
    query = {"site": site, "labels": _labels(label or []), "device": device, "ttl_s": _seconds(ttl)}
    issued = call_operator(url, "POST", "/api/v1/devices/tokens", query)
    if as_json:
        print(json.dumps(issued, indent=2))
        return
    print(issued["token"])
    until = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(issued["expires_at"]))
    whom = f"device {issued['device']}" if issued["device"] else "one device"
    print(f"enrols {whom} at {issued['site']} until {until}: tidegate-agent run --token ...", file=sys.stderr)


@devices.command("list")
def list_(url: Url = HERE, as_json: AsJson = False) -> None:
    """Every enrolled device and how it is doing."""
    found = call_operator(url, "GET", "/api/v1/devices")
    if as_json:
        print(json.dumps(found, indent=2))
        return
    if not found:
        print("no device is enrolled: `tidegate devices token --site SITE` makes a token for one")
        return
    rows = [
        (
            view["name"],
            view["site"],
            ", ".join(f"{key}={value}" for key, value in view["labels"].items()),
            state_of(view),
            _silence(view),
            "; ".join(_model(model) for model in view["models"]),
        )
        for view in found
    ]
    table(("device", "site", "labels", "state", "last heard", "models"), rows)


@devices.command()
def show(name: Device, url: Url = HERE, as_json: AsJson = False) -> None:
    """One device with its telemetry, facts and models."""
    view = call_operator(url, "GET", _path(name))
    if as_json:
        print(json.dumps(view, indent=2))
        return
    rows = [
        ("device", view["name"]),
        ("site", view["site"]),
        ("state", state_of(view)),
        ("last heard", _silence(view)),
        *((f"label {key}", value) for key, value in view["labels"].items()),
        *((key.replace("_", " "), _figure(value)) for key, value in view["telemetry"].items()),
        *((key, value) for key, value in view["facts"].items()),
    ]
    table(None, rows)
    if view["models"]:
        heads = ("model", "version", "state", "serves", "delegate", "nodes", "why")
        table(heads, [_model_row(model) for model in view["models"]])


@devices.command()
def drain(
    name: Device,
    undo: Annotated[bool, typer.Option("--undo", help="let it have new requests again")] = False,
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """Keep new requests from a device; what it is doing it finishes."""
    view = call_operator(url, "POST", _path(name, "/drain"), {"drained": not undo})
    if as_json:
        print(json.dumps(view, indent=2))
    else:
        print(f"{view['name']} gets requests again" if undo else f"{view['name']} gets no new requests")


@devices.command()
def revoke(name: Device, url: Url = HERE, as_json: AsJson = False) -> None:
    """Shut a device out for good. Its name can be enrolled anew with a new token."""
    view = call_operator(url, "POST", _path(name, "/revoke"))
    print(json.dumps(view, indent=2) if as_json else f"{view['name']} is shut out")


def state_of(view: dict[str, Any]) -> str:
    """A device's state in one word or two."""
    if view["revoked"]:
        return "revoked"
    there = "connected" if view["connected"] else "away"
    return f"{there}, drained" if view["drained"] else there


def _path(name: str, call: str = "") -> str:
    from edgewire.places import is_name

    if not is_name(name):
        fail(f"no device {name!r} is enrolled: that is no name for one", 2)
    return f"/api/v1/devices/{name}{call}"


def _labels(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            fail(f"--label {text}: give it as KEY=VALUE", 2)
        if key in found:
            fail(f"--label {key} is given twice", 2)
        found[key] = value
    return found


def _seconds(text: str) -> float:
    matched = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd]?)", text)
    if matched is None or float(matched[1]) == 0:
        fail(f"--ttl {text}: give it as 90s, 30m, 1h or 7d", 2)
    return float(matched[1]) * _UNITS[matched[2]]


def _silence(view: dict[str, Any]) -> str:
    return "-" if view["silent_s"] is None else f"{view['silent_s']:.1f} s ago"


def _model(model: dict[str, Any]) -> str:
    serves = f"{model['model']} {model['active_version']}" if model["active_version"] else model["model"]
    return f"{serves} ({model['state']})"


def _model_row(model: dict[str, Any]) -> tuple[str, ...]:
    return (
        model["model"],
        model["version"],
        model["state"],
        model["active_version"] or "-",
        model["delegate"] or "-",
        f"{model['delegated_nodes']}/{model['nodes']}" if model["nodes"] else "-",
        "; ".join(text for text in (model["reason"], model["degraded"]) if text),
    )


def _figure(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
