"""The `tidegate` command: its subcommands, and how the process ends."""

from __future__ import annotations

import errno
import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from gateway.cli.check import check
from gateway.cli.errors import FAILED

app = typer.Typer(
    name="tidegate",
    help="One Open Inference Protocol address for everything that can run a model, decided by policy.",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("check")(check)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tidegate {version('tidegate')}")
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit status; errors are on stderr by then."""
    try:
        status = app(args=arguments, prog_name="tidegate", standalone_mode=False)
    except typer.Abort:
        return 130
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        # The reader has gone; keep the interpreter's own flush at exit from complaining too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return status if isinstance(status, int) else 0


def main() -> None:
    """Entry point of the `tidegate` script."""
    sys.exit(run(sys.argv[1:]))
