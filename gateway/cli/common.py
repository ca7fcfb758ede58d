"""What several commands share: one-line errors, the configuration file, the operator API."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gateway.core.config import Config
    from gateway.core.config.load import Loaded
    from gateway.core.config.problems import Finding, Problem


HERE = "http://127.0.0.1:8080"
Url = Annotated[str, typer.Option(envvar="TIDEGATE_URL", help="the gateway")]
AsJson = Annotated[bool, typer.Option("--json", help="print what the operator API says")]
UPLOAD_S = 150.0
PIECE_BYTES = 256 * 1024
BACKENDS = "gateway.backends"
"""The package that holds the endpoint kinds."""


def fail(message: str, code: int) -> NoReturn:
    """One line on stderr, then exit: 1 for what failed, 2 for bad input."""
    print(f"tidegate: {message}", file=sys.stderr)
    raise SystemExit(code)


def load(file: Path, *, warn: bool = False) -> tuple[Config, str]:
    """The configuration and its revision; ends the command with the file's errors, each with its line.
    With `warn` what can never happen under it is told on stderr, as by `tidegate check`."""
    from gateway.core.config.load import revision_of
    from gateway.core.config.problems import ConfigError

    try:
        loaded = read_checked(file)
    except ConfigError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    if warn:
        tell_warnings(loaded)
    return loaded.config, revision_of(loaded.config)


def read_checked(file: Path) -> Loaded:
    """The configuration, of which privacy leaves every part something. Raises ConfigError."""
    from gateway.core.config.load import kinds_in, read
    from gateway.core.config.problems import ConfigError
    from gateway.policy.upkeep import objections

    loaded = read(file, kinds_in(BACKENDS), os.environ)
    found = [loaded.at(finding) for finding in objections(loaded.config)]
    if found:
        raise ConfigError(found)
    return loaded


def tell_warnings(loaded: Loaded, more: Iterable[Finding] = ()) -> list[Problem]:
    """What can never happen under a configuration, and `more`, told on stderr and returned, by line."""
    from gateway.cli.advice import warnings_of

    warnings = sorted(loaded.at(finding) for finding in (*warnings_of(loaded.config), *more))
    for warning in warnings:
        print(warning._replace(message=f"warning: {warning.message}"), file=sys.stderr)
    return warnings


class OperatorError(Exception):
    """A call of the operator API failed. `code` is the exit status that it means for a command."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def call_operator(url: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """One call of the operator API; ends the command with the gateway's own words when it refuses."""
    try:
        return ask_operator(url, method, path, body)
    except OperatorError as error:
        fail(str(error), error.code)


def ask_operator(url: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """One call of the operator API. Raises OperatorError with the gateway's own words when it refuses."""
    return _ask(url, method, path, timeout=15, json=body)


def upload(url: str, path: str, content: bytes, sent: Callable[[int], None]) -> Any:
    """PUT raw bytes; `sent` hears how many of them are under way. Ends the command as `call_operator` does."""

    def pieces() -> Iterator[bytes]:
        for at in range(0, len(content), PIECE_BYTES):
            yield content[at : at + PIECE_BYTES]
            sent(min(at + PIECE_BYTES, len(content)))

    headers = {"content-length": str(len(content)), "content-type": "application/octet-stream"}
    try:
        return _ask(url, "PUT", path, timeout=UPLOAD_S, content=pieces(), headers=headers)
    except OperatorError as error:
        fail(str(error), error.code)


def clock(at: float | None = None) -> str:
    """An instant of the wall clock, or now, as people read it in their own time zone."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def date(at: float) -> str:
    """The same for what may be days ago."""
    return time.strftime("%m-%d %H:%M", time.localtime(at))


def draw(*parts: RenderableType) -> None:
    """Print what rich draws. In a file or a pipe no sentence is broken into lines."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str | Text) and not console.is_terminal)


def table(heads: tuple[str, ...] | None, rows: list[tuple[str, ...]]) -> None:
    """Print rows; without heads they are names and values."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(show_header=heads is not None)
    for head in heads or ("", ""):
        made.add_column(head, overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    Console().print(made)


def _ask(url: str, method: str, path: str, **options: Any) -> Any:
    import httpx

    if "://" not in url:
        url = f"http://{url}"
    try:
        response = httpx.request(method, url.rstrip("/") + path, **options)
        answer = response.json()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise OperatorError(
            f"no gateway at {url} ({type(error).__name__}): start one with `tidegate up`, or give its HTTP address by --url",
            1,
        ) from None
    except json.JSONDecodeError:
        raise OperatorError(f"{url} did not answer like a gateway: check --url", 1) from None
    if response.status_code != 200:
        message = answer.get("error") if isinstance(answer, dict) else None
        code = 2 if response.status_code in (400, 404) else 1
        raise OperatorError(message or f"HTTP {response.status_code}", code)
    return answer
