"""`tidegate route`: ask the gateway what it would decide."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from gateway.cli.common import call_operator

NARROW = 110
"""Columns of a terminal; with fewer the reasons stand below the table, where they are not cut to pieces."""


def route(
    model: Annotated[str, typer.Option("--model", help="the model's name at the gateway")],
    version: Annotated[str, typer.Option(help="a version of it")] = "",
    privacy: Annotated[str | None, typer.Option(help="the caller's privacy class")] = None,
    policy: Annotated[str | None, typer.Option(help="a policy by name")] = None,
    deadline_ms: Annotated[float | None, typer.Option(help="the caller's deadline")] = None,
    max_cost: Annotated[float | None, typer.Option(help="the most that the answer may cost")] = None,
    payload_bytes: Annotated[int, typer.Option(help="size of the request")] = 0,
    site: Annotated[str | None, typer.Option(help="the caller's site")] = None,
    device: Annotated[str | None, typer.Option(help="the caller's device")] = None,
    tenant: Annotated[str | None, typer.Option(help="on whose behalf")] = None,
    url: Annotated[str, typer.Option(envvar="TIDEGATE_URL", help="the gateway")] = "http://127.0.0.1:8080",
    as_json: Annotated[bool, typer.Option("--json", help="print the decision record")] = False,
) -> None:
    """Dry run: which place would answer, and why not the others. Sends nothing."""
    query: dict[str, Any] = {
        "model": model,
        "version": version,
        "privacy": privacy,
        "policy": policy,
        "deadline_ms": deadline_ms,
        "max_cost": max_cost,
        "payload_bytes": payload_bytes,
        "site": site,
        "device": device,
        "tenant": tenant,
    }
    record = call_operator(url, "POST", "/api/v1/route", query)
    if as_json:
        print(json.dumps(record, indent=2))
    else:
        show(record)
    if record["chosen"] is None:
        raise typer.Exit(1)


def show(record: dict[str, Any]) -> None:
    """The record as a table for people."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    applies = f"privacy {record['privacy']}, policy {record['policy'] or '(none)'}"
    if record["chosen"] is None:
        console.print(f"refused: {record['refused']['message']}", markup=False)
    else:
        console.print(f"{record['model']}: {record['chosen']} ({applies})", markup=False)
    if not record["candidates"]:
        return
    table, narrow = Table(), console.width < NARROW
    heads = ("endpoint", "tier", "verdict", "p50 ms", "p95 ms", "cost", "score", "why")
    for name in heads[:-1] if narrow else heads:
        table.add_column(name, overflow="fold")
    below: list[str] = []
    for candidate in record["candidates"]:
        predicted, score = candidate["predicted"], candidate["scores"].get("total")
        why = "; ".join(f"{r['rule']}: {r['detail']}" for r in candidate["reasons"])
        below.append(f"{candidate['endpoint']}: {why}")
        table.add_row(
            candidate["endpoint"],
            candidate["tier"],
            candidate["verdict"],
            _number(predicted["latency_p50_ms"], ".2f", "?"),
            _number(predicted["latency_p95_ms"], ".2f", "?"),
            _number(predicted["cost"], ".3g", "?"),
            _number(score, ".3f", "-"),
            *(() if narrow else (why,)),
        )
    console.print(table)
    for line in below if narrow else ():
        console.print(line, markup=False, highlight=False)


def _number(value: float | None, form: str, absent: str) -> str:
    return absent if value is None else format(value, form)
