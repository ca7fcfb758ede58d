"""Updates that may come to nothing, though they could come to something."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.core.config import Config, UpdateConfig, VariantConfig
from gateway.core.config.problems import Finding, Loc
from gateway.core.place import Origin
from gateway.policy.upkeep import reach_of


def of_updates(config: Config) -> Iterator[Finding]:
    for index, update in enumerate(config.updates):
        loc: Loc = ("updates", index)
        yield from _reach(config, update, loc)
        if update.train is not None:
            wrong = _not_importable(update.train.entrypoint)
            if wrong:
                yield Finding((*loc, "train", "entrypoint"), wrong)
        if update.samples.collect != "none":
            yield from _labels(config, update, loc)


def _reach(config: Config, update: UpdateConfig, loc: Loc) -> Iterator[Finding]:
    """Where data comes from that privacy keeps out of the update."""
    reach = reach_of(config, update)
    shut = _named(reach.origins, reach.counted)
    if shut:
        yield Finding(
            (*loc, "model"),
            f"drift of '{update.model}' is not seen in what comes from {shut}: its class forbids this gateway's"
            " place to it",
        )
    if update.train is None or update.samples.collect == "none":
        return
    kept = _named(reach.counted, reach.kept)
    if kept:
        yield Finding(
            (*loc, "train", "location"),
            f"no samples of '{update.model}' are kept from {kept}: its class forbids them the training place"
            f" ({update.train.location.place})",
        )
    taught = _named(reach.kept, reach.taught)
    labels = update.samples.labels
    if taught and labels is not None:
        yield Finding(
            (*loc, "samples", "labels", "teacher"),
            f"samples of '{update.model}' from {taught} get no label: its class forbids them the place of"
            f" '{labels.teacher}'",
        )


def _named(all_of: Sequence[Origin], those: Sequence[Origin]) -> str:
    """Origins that are not among those, in words; "" for none."""
    missing = [origin for origin in all_of if origin not in those]
    return ", ".join(dict.fromkeys(origin.site or "callers of no known site" for origin in missing))


def _labels(config: Config, update: UpdateConfig, loc: Loc) -> Iterator[Finding]:
    labels = update.samples.labels
    if labels is None:
        yield Finding(
            (*loc, "samples"),
            f"samples of '{update.model}' are kept and none is ever labelled, so none is trained on: add labels",
        )
    elif labels.file is not None and not Path(labels.file).is_file():
        yield Finding(
            (*loc, "samples", "labels", "file"),
            f"there is no file {Path(labels.file).name} yet: no sample of '{update.model}' is trained on until"
            " there is",
        )
    elif labels.teacher is not None:
        model = next(m for m in config.models if m.name == update.model)
        if all(_runs_releases(config, v) for v in model.variants if v.endpoint == labels.teacher):
            yield Finding(
                (*loc, "samples", "labels", "teacher"),
                f"'{labels.teacher}' runs the releases of '{update.model}' itself, so the model would be its own"
                " teacher: give that variant a version, or name another",
            )


def _runs_releases(config: Config, variant: VariantConfig) -> bool:
    endpoint = next(e for e in config.endpoints if e.name == variant.endpoint)
    repository = endpoint.model_dump().get("repository")
    return variant.version is None and (variant.artifact is not None or repository is not None)


def _not_importable(entrypoint: str) -> str:
    """Why a trainer may not be found where the gateway runs, "" where it will. The module is looked at, not
    run; the packages that it is in are."""
    module, _, function = entrypoint.partition(":")
    try:
        spec = importlib.util.find_spec(module)
    except Exception:
        spec = None
    if spec is None:
        return (
            f"entrypoint {entrypoint}: there is no module {module} here; it must be importable where it runs"
        )
    if spec.origin is None or not spec.origin.endswith(".py"):
        return ""
    try:
        body = ast.parse(Path(spec.origin).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return f"entrypoint {entrypoint}: module {module} cannot be read as Python"
    return "" if function in _bound(body) else f"entrypoint {entrypoint}: module {module} has no {function}"


def _bound(body: Sequence[ast.stmt]) -> set[str]:
    """Names that a module's top level binds."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(node.name)
        for child in ast.walk(node) if not isinstance(node, ast.FunctionDef | ast.ClassDef) else ():
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                found.add(child.id)
            elif isinstance(child, ast.alias):
                found.add((child.asname or child.name).partition(".")[0])
    return found
