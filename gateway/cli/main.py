"""The `tidegate` command: its subcommands, and how the process ends."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated

import typer

import gateway
from gateway.cli.bench import bench
from gateway.cli.check import check
from gateway.cli.demo import demo
from gateway.cli.devices import devices
from gateway.cli.models import models
from gateway.cli.rollout import rollout
from gateway.cli.route import route
from gateway.cli.up import up
from gateway.cli.updates import updates

app = typer.Typer(
    name="tidegate",
    help="One Open Inference Protocol address for everything that can run a model, decided by policy.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("up")(up)
app.command("demo")(demo)
app.command("check")(check)
app.command("bench")(bench)
app.command("route")(route)
app.add_typer(devices, name="devices")
app.add_typer(models, name="models")
app.add_typer(rollout, name="rollout")
app.add_typer(updates, name="updates")

OWN = frozenset({"gateway", "oip", "edgewire"})
"""This project's packages: one of these that is missing is a fault, and no extra brings it."""


def _print_version(asked: bool) -> None:
    if asked:
        print(f"tidegate {gateway.__version__}")
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    pass


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit status; errors are on stderr by then. A command may
    also end by SystemExit."""
    try:
        status = app(args=arguments, prog_name="tidegate", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        command = getattr(getattr(error, "ctx", None), "command_path", "tidegate")
        print(f"{command}: {_one_line(error.format_message())}; try '{command} --help'", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in OWN:
            raise
        extra = "demo" if arguments[:1] == ["demo"] else "gateway"
        print(
            f"tidegate: {error.name} is not installed here; this command needs pip install 'tidegate[{extra}]'",
            file=sys.stderr,
        )
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        # The reader has gone, and the flush at exit would complain once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status if isinstance(status, int) else 0


def _one_line(message: str) -> str:
    return " ".join(message.split()).removesuffix(".")


def main() -> None:
    """Entry point of the `tidegate` script."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
