"""`tidegate models`: released model files: push, look, and which devices can run them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from gateway.cli.common import HERE, AsJson, Url, call_operator, draw, fail, table, upload

models = typer.Typer(help="Signed model files: push, look, compare with devices.", no_args_is_help=True)

Model = Annotated[str, typer.Argument(metavar="MODEL", help="its name in the configuration")]
FORMATS = {".tflite": "tflite", ".onnx": "onnx"}
GOLDEN_SUFFIX = ".golden.npz"
PATIENCE_S = 2.0
"""Before that nobody wants to see a bar."""


@models.command()
def push(
    model: Model,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="a .tflite, a .onnx, or one of each")
    ],
    golden: Annotated[
        Path | None, typer.Option(help="the .tflite's golden vectors [default: FILE.golden.npz beside it]")
    ] = None,
    version: Annotated[
        str | None, typer.Option(help="a number that is not taken [default: the next]")
    ] = None,
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """Make files a new release of a model. It is a candidate: nothing serves it before it is rolled out."""
    contents = _read(files, golden)
    total = sum(len(content) for pair in contents.values() for content in pair if content is not None)
    query: dict[str, Any] = {"files": {}, "version": version}
    with _bar(total) as sent:
        before = 0
        for format, (content, vectors) in contents.items():
            entry: dict[str, Any] = {"format": format}
            for name, part in (("digest", content), ("golden", vectors)):
                if part is None:
                    continue
                at = before
                stored = upload(url, "/api/v1/artifacts", part, lambda count, at=at: sent(at + count))
                entry[name] = stored["digest"]
                before += len(part)
            query["files"][format] = entry
    made = call_operator(url, "POST", f"/api/v1/models/{quote(model, safe='')}/releases", query)
    print(json.dumps(made, indent=2) if as_json else f"{model} version {made['version']}: {made['stage']}")


@models.command("list")
def list_(url: Url = HERE, as_json: AsJson = False) -> None:
    """Every model's releases, and the models that were discovered, which have none."""
    found = call_operator(url, "GET", "/api/v1/models")
    if as_json:
        print(json.dumps(found, indent=2))
        return
    rows = [
        (
            view["name"],
            release["version"],
            release["stage"],
            "stands" if release["standing"] else "",
            release["source"],
            ", ".join(f"{slot} {_size(file['size'])}" for slot, file in release["files"].items()),
        )
        for view in found
        for release in view["releases"]
    ]
    rows += [
        (view["name"], "", "discovered", "", ", ".join(v["endpoint"] for v in view["variants"]), "")
        for view in found
        if view.get("discovered")
    ]
    if not rows:
        print("nothing is released: `tidegate models push MODEL FILE` releases a model's first file")
        return
    table(("model", "version", "stage", "", "from", "files"), rows)
    _tell_differences(found)


@models.command()
def show(model: Model, url: Url = HERE, as_json: AsJson = False) -> None:
    """One model with its releases: files, digests, figures, and what differs from the configuration."""
    found = call_operator(url, "GET", "/api/v1/models")
    view = next((one for one in found if one["name"] == model), None)
    if view is None:
        names = ", ".join(sorted(one["name"] for one in found))
        fail(f"there is no model {model!r}: the models are {names}", 2)
    if as_json:
        print(json.dumps(view, indent=2))
        return
    for release in view["releases"]:
        draw(*_lines(model, release))
    if view.get("discovered"):
        at = ", ".join(variant["endpoint"] for variant in view["variants"])
        print(f"{model} was discovered at {at} and is in class {view['privacy']}: it has no releases")
    elif not view["releases"]:
        print(f"nothing of {model} is released: `tidegate models push {model} FILE` releases its first file")
    _tell_differences([view])


@models.command()
def compat(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="one model; without it all")] = None,
    version: Annotated[str | None, typer.Option(help="of MODEL [default: the one that stands]")] = None,
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """Which devices can run a model's release, and what the others lack."""
    asked = {key: value for key, value in (("model", model), ("version", version)) if value is not None}
    found = call_operator(url, "GET", f"/api/v1/compat?{urlencode(asked)}")
    if as_json:
        print(json.dumps(found, indent=2))
        return
    if not found:
        print("no device is in a group that runs such a release")
        return
    rows = [
        (row["model"], row["version"], row["device"], row["site"], "ok" if row["ok"] else row["missing"])
        for row in found
    ]
    table(("model", "version", "device", "site", "can run it"), rows)


def _read(files: list[Path], golden: Path | None) -> dict[str, tuple[bytes, bytes | None]]:
    """Content and golden vectors by format; ends the command for what cannot be pushed."""
    found: dict[str, tuple[bytes, bytes | None]] = {}
    for file in files:
        format = FORMATS.get(file.suffix.lower())
        if format is None:
            fail(f"{file}: give a .tflite or .onnx file", 2)
        if format in found:
            fail(f"{file}: a release holds one {file.suffix} file", 2)
        content = _content(file)
        beside = file.with_name(file.name + GOLDEN_SUFFIX)
        vectors = golden if golden is not None and format == "tflite" else beside
        if vectors is beside and not beside.exists():
            if format == "tflite":
                fail(
                    f"{file}: it needs golden vectors: put them in {beside.name} beside it, or give --golden",
                    2,
                )
            found[format] = (content, None)
        else:
            found[format] = (content, _content(vectors))
    if golden is not None and "tflite" not in found:
        fail("--golden goes with a .tflite file", 2)
    return found


def _content(file: Path) -> bytes:
    try:
        content = file.read_bytes()
    except OSError as error:
        fail(f"{file} cannot be read: {(error.strerror or '').lower()}", 2)
    if not content:
        fail(f"{file} is empty", 2)
    return content


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, once the work has taken PATIENCE_S."""
    from rich.progress import Progress

    bar, began = Progress(transient=True, disable=not sys.stdout.isatty()), time.monotonic()
    task = bar.add_task("uploading", total=total)

    def sent(count: int) -> None:
        if not bar.live.is_started and time.monotonic() - began > PATIENCE_S:
            bar.start()
        bar.update(task, completed=count)

    try:
        yield sent
    finally:
        bar.stop()


def _lines(model: str, release: dict[str, Any]) -> Iterator[str]:
    stage = f"{release['stage']}, stands" if release["standing"] else release["stage"]
    yield f"{model} version {release['version']}: {stage}"
    yield f"  from       {release['source']}, order {release['order']}"
    yield f"  may go to  {release['places'] or 'anywhere'}"
    if release["metrics"]:
        yield f"  figures    {', '.join(f'{name} {value:.4g}' for name, value in release['metrics'].items())}"
    for slot, file in release["files"].items():
        golden = "with golden vectors" if file["golden"] else "without golden vectors"
        yield f"  {slot:<9}  {_size(file['size'])}, {golden}"
        yield f"             {file['digest']}"


def _tell_differences(found: list[dict[str, Any]]) -> None:
    for view in found:
        for difference in view["differences"]:
            print(f"{view['name']}: {difference['text']}", file=sys.stderr)


def _size(count: int) -> str:
    return (
        f"{count} B"
        if count < 1000
        else f"{count / 1000:.0f} kB"
        if count < 10**6
        else f"{count / 10**6:.1f} MB"
    )
