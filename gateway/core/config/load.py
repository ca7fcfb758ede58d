"""From a file to a `Config`, or to every mistake in it with file, line and column."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.core.config import checks, served
from gateway.core.config.endpoints import EndpointConfig
from gateway.core.config.models import Config
from gateway.core.config.problems import ConfigError, Finding, Loc, Problem
from gateway.core.config.references import Hidden, Resolver, show
from gateway.core.config.source import Source, position_at, scalar
from gateway.core.config.wording import words
from gateway.core.plugins import discover

MAX_BYTES = 2**20
DETECTORS = "gateway.drift"
"""The package of drift detectors, one file each."""
_NOT_TEXT = frozenset({"float_type", "int_type", "bool_type"})

Kinds = Mapping[str, type[EndpointConfig]]
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and where its parts stand in the file."""

    config: Config
    source: Source

    def at(self, finding: Finding) -> Problem:
        """Something to say about a part, with its position."""
        return self.source.at(finding)


def kinds_in(package: str) -> dict[str, type[EndpointConfig]]:
    """The configuration model of every endpoint kind in a package, by kind."""
    return {kind: cast("Any", cls).params for kind, cls in discover(package).items()}


def revision_of(config: Config) -> str:
    """Twelve hex digits that change when anything in the resolved configuration does."""
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:12]


def load_config(path: Path, kinds: Kinds, environ: Mapping[str, str]) -> Config:
    """Read a file. Raises ConfigError, for a file that cannot be read too."""
    return read(path, kinds, environ).config


def parse_config(text: str, name: str, kinds: Kinds, environ: Mapping[str, str], base_dir: Path) -> Config:
    """Read a text; `name` stands for the file in messages, `base_dir` is where relative `${file:}`
    paths begin. Raises ConfigError."""
    return parse(text, name, kinds, environ, base_dir).config


def read(path: Path, kinds: Kinds, environ: Mapping[str, str]) -> Loaded:
    """As `load_config`, with the positions. Raises ConfigError."""
    name = str(path)
    problem = None
    raw = b""
    try:
        if path.is_dir():
            problem = "this is a directory: name the file in it"
        else:
            with path.open("rb") as stream:
                raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        problem = "there is no such file"
    except (OSError, ValueError):
        problem = "the file cannot be read: check its permissions"
    if len(raw) > MAX_BYTES:
        problem = f"the file is larger than {MAX_BYTES // 2**20} MiB"
    if problem:
        raise ConfigError([Problem(name, 1, 1, problem)])
    return parse(_decode(raw, name), name, kinds, environ, path.parent)


def parse(text: str, name: str, kinds: Kinds, environ: Mapping[str, str], base_dir: Path) -> Loaded:
    """As `parse_config`, with the positions. Raises ConfigError."""
    source = Source(name, text.removeprefix("\ufeff"), Resolver(environ, base_dir))
    if source.tree is None:
        raise ConfigError(source.problems)
    root, findings = served.strip(source.tree)
    findings += checks.references(root)
    findings += checks.sense(root)
    findings += _detectors(root)
    findings += _settle_artifacts(root, base_dir)
    findings += _settle_updates(root, base_dir)
    _settle_repositories(root, base_dir)
    config, objections = _build(root, kinds, source)
    findings += objections
    problems = [*source.problems]
    problems += [source.at(finding) for finding in findings if not source.is_broken(finding.loc)]
    if problems or config is None:
        raise ConfigError(problems)
    return Loaded(config, source)


def _detectors(root: dict[str, object]) -> Iterator[Finding]:
    """Updates whose drift detector there is none of, or never gives what drift would begin at."""
    detectors = cast("dict[str, type[Any]]", discover(DETECTORS))
    known = sorted(detectors)
    for index, item in enumerate(_list(root.get("updates"))):
        drift = _mapping(_mapping(item).get("drift"))
        named, threshold = drift.get("detector"), drift.get("threshold")
        if not isinstance(named, str) or not named:
            continue
        if named not in known:
            message = f"unknown detector {show(named)}{checks.hint(named, known)}"
            yield Finding(("updates", index, "drift", "detector"), message)
        elif (
            type(threshold) is not bool
            and isinstance(threshold, int | float)
            and threshold > (most := detectors[named].greatest)
        ):
            message = (
                f"no drift would ever begin: {named} gives at most {most:g}, and threshold is {threshold:g}"
            )
            yield Finding(("updates", index, "drift", "threshold"), message)


def _settle_artifacts(root: dict[str, object], base_dir: Path) -> Iterator[Finding]:
    """Make every variant's `artifact` absolute, in place; finds those that cannot be read."""
    for i, model in enumerate(_list(root.get("models"))):
        variants = cast("dict[str, object]", model).get("variants") if isinstance(model, dict) else None
        for j, item in enumerate(_list(variants)):
            if not isinstance(item, dict):
                continue
            variant = cast("dict[str, object]", item)
            written = variant.get("artifact")
            if not isinstance(written, str) or not written:
                continue
            path = os.path.abspath(base_dir / written)
            wrong = _unreadable(path)
            if wrong:
                yield Finding(("models", i, "variants", j, "artifact"), f"artifact {show(written)}: {wrong}")
            variant["artifact"] = path


def _settle_updates(root: dict[str, object], base_dir: Path) -> Iterator[Finding]:
    """Make the files that updates name absolute, in place; finds held-out data that cannot be read. Labels
    may be written later: they are read anew at every run."""
    for index, item in enumerate(_list(root.get("updates"))):
        update = _mapping(item)
        labels, gate = _mapping(_mapping(update.get("samples")).get("labels")), _mapping(update.get("gate"))
        for holder, key in ((labels, "file"), (gate, "data")):
            written = holder.get(key)
            if not isinstance(written, str) or not written:
                continue
            holder[key] = path = os.path.abspath(base_dir / written)
            if key == "data" and (wrong := _unreadable(path)):
                yield Finding(("updates", index, "gate", "data"), f"data {show(written)}: {wrong}")


def _settle_repositories(root: dict[str, object], base_dir: Path) -> None:
    """Make the folders that endpoints call their repository absolute, in place."""
    for item in _list(root.get("endpoints")):
        endpoint = _mapping(item)
        written = endpoint.get("repository")
        if isinstance(written, str) and written and "://" not in written:
            endpoint["repository"] = os.path.abspath(base_dir / written)


def _unreadable(path: str) -> str:
    """Why a file cannot be read, "" for one that can."""
    try:
        if os.path.isdir(path):
            return "this is a directory: name the file in it"
        if not os.path.exists(path):
            return "there is no such file: give its path, relative to this file"
        if not os.path.isfile(path):
            return "not a regular file"
        with open(path, "rb"):
            return ""
    except (OSError, ValueError):
        return "the file cannot be read: check its permissions"


def _mapping(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _build(root: dict[str, object], kinds: Kinds, source: Source) -> tuple[Config | None, list[Finding]]:
    """The configuration, endpoints by their kinds' models, and what its models object to."""
    written = root.get("endpoints")
    if not isinstance(written, list) or not written:
        config, errors = _validate(Config, root, source, ())
        return config, list(_worded(errors, Config, source, ()))
    objections: list[Finding] = []
    endpoints: list[EndpointConfig] = []
    for index, item in enumerate(cast("list[object]", written)):
        endpoint, found = _endpoint(item, ("endpoints", index), kinds, source)
        objections += found
        if endpoint is not None:
            endpoints.append(endpoint)
    config, errors = _validate(Config, {**root, "endpoints": endpoints}, source, ())
    # Names and references were asked of the text, where every endpoint still counts.
    ours = [e for e in errors if e["type"] != "references" and e["loc"] != ("endpoints",)]
    return config, [*objections, *_worded(ours, Config, source, ())]


def _endpoint(
    item: object, loc: Loc, kinds: Kinds, source: Source
) -> tuple[EndpointConfig | None, list[Finding]]:
    if not isinstance(item, dict):
        return None, [Finding(loc, f"an endpoint must be a mapping of keys to values, not {show(item)}")]
    keys = cast("dict[str, object]", item)
    kind = keys.get("kind")
    if isinstance(kind, str) and kind not in kinds:
        message = f"unknown kind {show(kind)}{checks.hint(kind, sorted(kinds))}"
        return None, [Finding((*loc, "kind"), message)]
    if isinstance(kind, str):
        model = kinds[kind]
    elif kinds:
        # Without a kind, the one that shares most keys makes the most of the rest.
        model = max(kinds.values(), key=lambda m: len(keys.keys() & m.model_fields.keys()))
    else:
        model = EndpointConfig
    endpoint, errors = _validate(model, keys, source, loc)
    return endpoint, list(_worded(errors, model, source, loc))


def _worded(
    errors: Sequence[ErrorDetails], model: type[BaseModel], source: Source, prefix: Loc
) -> Iterator[Finding]:
    return words(errors, model, prefix, source.get, source.masked)


def _validate(
    model: type[M], data: dict[str, object], source: Source, prefix: Loc
) -> tuple[M | None, list[ErrorDetails]]:
    """Validate once, and again where a text that is one whole reference stood for a number or a
    truth value."""
    instance, errors = _attempt(model, data)
    reread = [error for error in errors if _reread(data, error, source, prefix)]
    if reread:
        instance, errors = _attempt(model, data)
    return instance, errors


def _attempt(model: type[M], data: object) -> tuple[M | None, list[ErrorDetails]]:
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def _reread(data: object, error: ErrorDetails, source: Source, prefix: Loc) -> bool:
    loc = error["loc"]
    value = source.get((*prefix, *loc))
    if error["type"] not in _NOT_TEXT or not (isinstance(value, Hidden) and value.whole):
        return False
    meant = scalar(value)
    if not isinstance(meant, bool | int | float):
        return False
    holder: Any = data
    for part in loc[:-1]:
        holder = holder[part]
    holder[loc[-1]] = meant
    return True


def _decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8")
        position = position_at(before, len(before))
    raise ConfigError([Problem(name, *position, "the file is not UTF-8 from here on: save it as UTF-8")])
