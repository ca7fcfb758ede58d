"""How a command ends when it cannot do what was asked."""

from __future__ import annotations

from typing import NoReturn

import typer

FAILED = 1
USAGE = 2


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Say one line on stderr and end the command with `code`."""
    typer.echo(message, err=True)
    raise typer.Exit(code)
