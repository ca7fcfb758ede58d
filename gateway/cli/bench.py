"""`tidegate bench`: measure every place that can serve a model, and store what was found."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.common import OperatorError, ask_operator, fail, load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.core.config import Config, ModelConfig, VariantConfig
    from gateway.core.decision import VariantKey
    from gateway.store.profiles import Profile

INSIDE = frozenset({"pool", "edge"})
"""Kinds that only the gateway itself reaches: it measures them when asked."""
ASK_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one variant: a profile, or why there is none."""

    key: VariantKey
    profile: Profile | None
    error: str | None


def bench(
    model: Annotated[str, typer.Argument(help="the model's name at the gateway")],
    file: Annotated[Path, typer.Option("-f", "--file", help="the configuration file")] = Path(
        "tidegate.yaml"
    ),
    endpoints: Annotated[
        str | None, typer.Option(help="measure only on these, as a,b; without it on every one that serves it")
    ] = None,
    input_file: Annotated[
        Path | None,
        typer.Option("--input", help="an inference request as JSON to send; without it the data is made up"),
    ] = None,
    state_dir: Annotated[Path, typer.Option(help="where the gateway keeps its state")] = Path(".tidegate"),
    url: Annotated[
        str,
        typer.Option(envvar="TIDEGATE_URL", help="the gateway, which measures its pools and devices itself"),
    ] = "http://127.0.0.1:8080",
    as_json: Annotated[bool, typer.Option("--json", help="print the outcome as JSON")] = False,
) -> None:
    """Measure latency and capacity of a model on each of its endpoints, directly, and store them.

    A given request goes only where the model's privacy class allows; made-up data goes everywhere. Pools
    and devices are measured by the running gateway, with made-up data. A model that the file does not name
    is measured on the endpoints that have discover.
    """
    from gateway.core.config.discovered import found_of, offer
    from gateway.store.profiles import ProfileError, ProfileStore

    config, _ = load(file)
    config = offer(config, {endpoint.name: found_of([model]) for endpoint in config.endpoints}).config
    found = next((m for m in config.models if m.name == model), None)
    if found is None:
        fail(f"no model {model!r} in {file}: it has {', '.join(m.name for m in config.models)}", 2)
    wanted = _wanted(found, endpoints)
    request = None
    if input_file is not None:
        request = _given(input_file)
        _may_see(config, found, wanted)
    kinds = {endpoint.name: endpoint.kind for endpoint in config.endpoints}
    store = ProfileStore(state_dir)
    try:
        store.load()  # a file that cannot be added to is better known before the work than after
    except ProfileError as error:
        fail(str(error), 1)
    outcomes = asyncio.run(_measure_all(config, state_dir, url, found, wanted, request))
    try:
        # The gateway stores what it measures itself.
        ours = [o.profile for o in outcomes if o.profile is not None and kinds[o.key.endpoint] not in INSIDE]
        if ours:
            store.save(ours)
    except (ProfileError, OSError) as error:
        fail(f"the profiles were not stored: {error}", 1)
    if as_json:
        print(json.dumps([_plain(outcome) for outcome in outcomes], indent=2))
    else:
        _show(outcomes)
    for outcome in outcomes:
        if outcome.error is not None:
            print(f"tidegate: {outcome.key.endpoint}: {outcome.error}", file=sys.stderr)
    if any(outcome.profile is None for outcome in outcomes):
        raise typer.Exit(1)


def _given(path: Path) -> bytes:
    from oip.codec import decode_infer
    from oip.errors import OipError

    try:
        request = path.read_bytes()
        decode_infer("", "", {}, request)
    except OSError as error:
        fail(f"--input {path}: {error.strerror}", 2)
    except OipError as error:
        fail(f"--input {path}: {error.message}", 2)
    return request


def _wanted(model: ModelConfig, endpoints: str | None) -> list[VariantConfig]:
    if endpoints is None:
        return list(model.variants)
    names = [name.strip() for name in endpoints.split(",") if name.strip()]
    have = [variant.endpoint for variant in model.variants]
    odd = [name for name in names if name not in have]
    if odd or not names:
        what = f"no variant on {', '.join(odd)}" if odd else "no endpoint named"
        fail(f"--endpoints: {what}; {model.name} has variants on {', '.join(have)}", 2)
    return [variant for variant in model.variants if variant.endpoint in names]


def _may_see(config: Config, model: ModelConfig, wanted: Sequence[VariantConfig]) -> None:
    """End the command unless the model's class lets its data go to all of these places."""
    inside = {endpoint.name for endpoint in config.endpoints if endpoint.kind in INSIDE}
    there = [variant.endpoint for variant in wanted if variant.endpoint in inside]
    if there:
        fail(
            f"--input: {', '.join(there)} can only be measured with made-up data: leave it out with --endpoints",
            2,
        )
    from gateway.core.request import Options
    from gateway.decide.tables import compiled
    from gateway.policy.privacy import origin_of

    name = model.privacy or config.privacy.default
    tables = compiled(config)
    wall = tables.wall((name,), origin_of(tables.gateway, Options()))
    closed = [variant.endpoint for variant in wanted if wall.endpoints[variant.endpoint]]
    if closed:
        fail(
            f"--input: class {name} of {model.name} forbids {', '.join(closed)}; "
            "leave them out with --endpoints, or measure with made-up data",
            2,
        )


async def _measure_all(
    config: Config,
    state_dir: Path,
    url: str,
    model: ModelConfig,
    wanted: Sequence[VariantConfig],
    request: bytes | None,
) -> list[Outcome]:
    """One after the other, so that places on one machine do not disturb each other."""
    from rich.progress import Progress

    from gateway.routing.predict import key_of

    declared = {endpoint.name: endpoint for endpoint in config.endpoints}
    outcomes: list[Outcome] = []
    with Progress(disable=not sys.stdout.isatty(), transient=True) as bar:
        for variant in wanted:
            task = bar.add_task(f"measuring {variant.endpoint}", total=1.0)
            key, endpoint = key_of(model, variant), declared[variant.endpoint]

            def progress(share: float, task: Any = task) -> None:
                bar.update(task, completed=share)

            if endpoint.kind in INSIDE:
                outcomes.append(await _measured_there(url, key, progress))
            else:
                outcomes.append(await _measure_one(config, state_dir, endpoint, key, request, progress))
    return outcomes


async def _measured_there(url: str, key: VariantKey, progress: Callable[[float], None]) -> Outcome:
    """Let the running gateway measure, and store what it finds."""
    from gateway.store.profiles import Profile

    path = "/api/v1/measurements"
    try:
        view = await asyncio.to_thread(ask_operator, url, "POST", path, key._asdict())
        while view["state"] == "running":
            progress(view["share"])
            await asyncio.sleep(ASK_EVERY_S)
            view = await asyncio.to_thread(ask_operator, url, "GET", f"{path}/{view['id']}")
    except OperatorError as error:
        return Outcome(key, None, str(error))
    profile = view["profile"]
    return Outcome(key, None if profile is None else Profile(**profile), view["error"])


async def _measure_one(
    config: Config,
    state_dir: Path,
    declared: Any,
    key: VariantKey,
    request: bytes | None,
    progress: Callable[[float], None],
) -> Outcome:
    from gateway.core.plugins import discover
    from gateway.core.ports import Surroundings
    from gateway.jobs.measure import MeasureError, measure, measure_with_made_up_data
    from gateway.jobs.synthetic import synthetic_permit
    from oip.codec import decode_infer
    from oip.errors import OipError

    endpoint: Any = discover("gateway.backends")[declared.kind](
        declared, Surroundings(config, state_dir, lambda name, group: None)
    )
    name = config.gateway.name
    try:
        await endpoint.start()
        if request is None:
            profile = await measure_with_made_up_data(
                endpoint, declared, key, gateway=name, progress=progress
            )
        else:
            body = decode_infer(key.model, key.version, {}, request)[0]
            profile = await measure(
                endpoint,
                key,
                lambda i: body,
                identity=declared.identity,
                permit=synthetic_permit(declared.place, name),
                progress=progress,
            )
        return Outcome(key, profile, None)
    except (MeasureError, OipError, ValueError) as error:
        return Outcome(key, None, str(error))
    finally:
        await endpoint.close()


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {
        **outcome.key._asdict(),
        "profile": None if outcome.profile is None else asdict(outcome.profile),
        "error": outcome.error,
    }


def _show(outcomes: Sequence[Outcome]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for head in ("endpoint", "model", "version", "p50 ms", "p95 ms", "capacity/s", "samples", "outcome"):
        table.add_column(head, overflow="fold")
    for outcome in outcomes:
        found = outcome.profile
        figures = ["-"] * 4
        if found is not None:
            figures = [
                f"{found.latency_p50_ms:.2f}",
                f"{found.latency_p95_ms:.2f}",
                f"{found.capacity_rps:.1f}",
                str(found.samples),
            ]
        ended = "stored" if found is not None else "failed"
        table.add_row(outcome.key.endpoint, outcome.key.model, outcome.key.version or "any", *figures, ended)
    Console().print(table)
