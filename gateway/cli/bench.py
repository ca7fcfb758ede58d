"""`tidegate bench`: measure every place that can serve a model, and store what was found."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.common import fail, load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.core.config import Config, ModelConfig, VariantConfig
    from gateway.core.decision import VariantKey
    from gateway.store.profiles import Profile

METADATA_TIMEOUT_S = 5.0


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
    as_json: Annotated[bool, typer.Option("--json", help="print the outcome as JSON")] = False,
) -> None:
    """Measure latency and capacity of a model on each of its endpoints, directly, and store them.

    A given request goes only where the model's privacy class allows; made-up data goes everywhere.
    """
    from gateway.store.profiles import ProfileError, ProfileStore

    config, _ = load(file)
    found = next((m for m in config.models if m.name == model), None)
    if found is None:
        fail(f"no model {model!r} in {file}: it has {', '.join(m.name for m in config.models)}", 2)
    wanted = _wanted(found, endpoints)
    request = None
    if input_file is not None:
        request = _given(input_file)
        _may_see(config, found, wanted)
    store = ProfileStore(state_dir)
    try:
        store.load()  # a file that cannot be added to is better known before the work than after
    except ProfileError as error:
        fail(str(error), 1)
    outcomes = asyncio.run(_measure_all(config, state_dir, found, wanted, request))
    try:
        store.save([o.profile for o in outcomes if o.profile is not None])
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
            outcomes.append(
                await _measure_one(
                    config,
                    state_dir,
                    declared[variant.endpoint],
                    key_of(model, variant),
                    request,
                    lambda share, task=task: bar.update(task, completed=share),
                )
            )
    return outcomes


async def _measure_one(
    config: Config,
    state_dir: Path,
    declared: Any,
    key: VariantKey,
    request: bytes | None,
    progress: Callable[[float], None],
) -> Outcome:
    import numpy as np

    from gateway.core.plugins import discover
    from gateway.core.ports import Surroundings
    from gateway.jobs.measure import MeasureError, measure
    from gateway.jobs.synthetic import synthetic_permit, synthetic_request
    from oip.codec import decode_infer
    from oip.errors import OipError

    endpoint: Any = discover("gateway.backends")[declared.kind](
        declared, Surroundings(config, state_dir, lambda name, group: None)
    )
    permit = synthetic_permit(declared.place, config.gateway.name)
    rng = np.random.default_rng()
    try:
        await endpoint.start()
        if request is None:
            metadata = await endpoint.model_metadata(key.model, key.version, METADATA_TIMEOUT_S)
            bodies = [synthetic_request(metadata, rng, version=key.version) for _ in range(16)]
        else:
            bodies = [decode_infer(key.model, key.version, {}, request)[0]]
        profile = await measure(
            endpoint,
            key,
            lambda i: bodies[i % len(bodies)],
            identity=declared.identity,
            permit=permit,
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
