"""Checkers that other people wrote, over each route of the stage; what they find is shown by route.

    python -m tests.conformance.checkers --models REPOSITORY FOLDER

FOLDER has `http_cases.py` and `grpc_cases.py`, which speak to a running server and write their verdicts as JSON.
REPOSITORY is the Triton model repository that they ask for; what pools and devices have no fixture of is skipped
there. Exits with 1 when a check fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.conformance.stage import HEADER, ROUTES, Stage, set_up

BINDINGS = ("http", "grpc")
FATAL = frozenset({"B10"})
"""Cases that end a Triton of this version, straight too."""


@dataclass(frozen=True, slots=True)
class Found:
    """A checker on a route: how many of its checks have which verdict, and which of them fail and why."""

    route: str
    binding: str
    verdicts: dict[str, int]
    failed: dict[str, str]


def found_on(stage: Stage, folder: Path, binding: str, route: str, into: Path) -> Found:
    program = (sys.executable, f"{binding}_cases.py", "--http", stage.gateway.http)
    option = f"{HEADER}: {route}" if binding == "http" else f"{HEADER}={route}"
    own: Sequence[str] = ("--route", route, "--header", option)
    if binding == "grpc":
        program = (*program, "--grpc", stage.gateway.grpc)
        listed = subprocess.run([*program, "--list"], cwd=folder, capture_output=True, text=True, check=True)
        cases = [line.split()[0] for line in listed.stdout.splitlines()]
        only = ",".join(case for case in cases if route != "r1" or case not in FATAL)
        own = ("--route", route, "--metadata", option, "--skip-slow", "--only", only)
    subprocess.run([*program, *own, "--json", str(into)], cwd=folder, capture_output=True, check=False)
    outcomes = list(_outcomes(json.loads(into.read_text())))
    return Found(
        route,
        binding,
        dict(Counter(str(one["result"]) for one in outcomes)),
        {
            f"{one['case']} {one['check']}": str(one.get("why") or one.get("body", ""))
            for one in outcomes
            if one["result"] == "FAIL"
        },
    )


def _outcomes(document: Any) -> Iterator[dict[str, Any]]:
    """The list of verdicts, wherever the document has it."""
    lists = document.values() if isinstance(document, dict) else [document]
    yield from next(value for value in lists if isinstance(value, list))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    runs = [(binding, route) for binding in BINDINGS for route in ROUTES]
    found: list[Found] = []
    with tempfile.TemporaryDirectory() as work, set_up(given.models, Path(work)) as stage:
        for binding, route in track(runs, disable=given.json or not sys.stdout.isatty()):
            found.append(found_on(stage, given.folder, binding, route, Path(work) / "verdicts.json"))
    if given.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
    else:
        table = Table("route", "checker", "verdicts", "what fails")
        for one in found:
            verdicts = ", ".join(f"{count} {name}" for name, count in sorted(one.verdicts.items()))
            failed = "\n".join(f"{check}: {why}" for check, why in one.failed.items())
            table.add_row(one.route, one.binding, verdicts, failed, style="red" if one.failed else None)
        Console().print(table)
    return 1 if any(one.failed for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
