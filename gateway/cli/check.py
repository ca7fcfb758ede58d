"""`tidegate check`: is this file good, and what follows from it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gateway.cli.advice import MayGo
    from gateway.core.config import Config
    from gateway.core.config.problems import Problem


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="the configuration file")],
    matrix: Annotated[bool, typer.Option("--matrix", help="print which privacy class may go where")] = False,
    live: Annotated[bool, typer.Option("--live", help="not served by this version", hidden=True)] = False,
    state_dir: Annotated[
        Path, typer.Option(help="the gateway's, whose releases the file's artifacts are held against")
    ] = Path(".tidegate"),
    as_json: Annotated[bool, typer.Option("--json", help="print the outcome as JSON")] = False,
) -> None:
    """Validate a configuration file; errors as FILE:line:col: message, exit 2."""
    from gateway.cli.common import fail, read_checked, tell_warnings

    if live:
        fail("check --live is not served by this version: leave it out", 2)
    from gateway.cli.advice import matrix_of
    from gateway.cli.advice_releases import of_releases
    from gateway.core.config.load import revision_of
    from gateway.core.config.problems import ConfigError

    try:
        loaded = read_checked(file)
    except ConfigError as error:
        print(error, file=sys.stderr)
        if as_json:
            _print_json({"ok": False, "problems": [_plain(p) for p in error.problems]})
        raise typer.Exit(2) from None
    config = loaded.config
    warnings = tell_warnings(loaded, of_releases(config, state_dir))
    revision = revision_of(config)
    table = matrix_of(config)
    if as_json:
        outcome: dict[str, Any] = {
            "ok": True,
            "revision": revision,
            "warnings": [_plain(w) for w in warnings],
        }
        discovering = {e.name: e.discovers for e in config.endpoints if e.discovers is not None}
        if discovering:
            outcome["discover"] = discovering
        if matrix:
            outcome["matrix"] = {
                name: {
                    "gateway": row.gateway,
                    "endpoints": row.endpoints,
                    **({"groups": row.groups} if row.groups else {}),
                }
                for name, row in table.items()
            }
        _print_json(outcome)
        return
    counts = (
        (len(config.endpoints), "endpoint", "endpoints"),
        (len(config.models), "model", "models"),
        (len(config.privacy.classes), "privacy class", "privacy classes"),
        (len(config.policies), "policy", "policies"),
    )
    print(
        f"ok: {', '.join(f'{n} {one if n == 1 else many}' for n, one, many in counts)}; revision {revision}"
    )
    for endpoint in config.endpoints:
        if endpoint.discovers is not None:
            print(
                f"{endpoint.name} also offers every model it has that is not named here, in class {endpoint.discovers}"
            )
    if matrix:
        _print_matrix(config, table)


_COLOURS = {"yes": "green", "no": "red"}


def _plain(problem: Problem) -> dict[str, Any]:
    return problem._asdict()


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def _print_matrix(config: Config, matrix: dict[str, MayGo]) -> None:
    heads = ["class", f"{config.gateway.name} (gateway)", *(e.name for e in config.endpoints)]
    rows = [
        [
            name,
            "yes" if row.gateway else "no",
            *(row.groups.get(e.name) or ("yes" if row.endpoints[e.name] else "no") for e in config.endpoints),
        ]
        for name, row in matrix.items()
    ]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table()
        for head in heads:
            table.add_column(head, overflow="fold")
        for row in rows:
            table.add_row(row[0], *(f"[{_COLOURS.get(cell, 'yellow')}]{cell}[/]" for cell in row[1:]))
        Console().print(table)
        return
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    for row in [heads, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
