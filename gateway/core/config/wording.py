"""From a validator's error to one sentence that says what to do, and where."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from gateway.core.config.basis import NAME_PATTERN
from gateway.core.config.checks import did_you_mean, hint
from gateway.core.config.models import CURRENCY_PATTERN, VERSION_PATTERN
from gateway.core.config.problems import Finding, Loc
from gateway.core.config.references import Hidden, show
from gateway.core.config.updates import ENTRYPOINT_PATTERN, WAVE_PATTERN

_UNITS = {
    "_ms": "milliseconds",
    "_s": "seconds",
    "_mb": "MiB",
    "_percent": "percent",
    "_per_gb": "currency per 10^9 bytes",
    "_per_1k": "currency per 1000 requests",
    "per_hour": "currency per hour",
    "per_request": "currency per request",
}
_MEASURE = re.compile(r"\s*[-+]?[0-9.]+\s*[^\s0-9.].*")
_NUMBER = re.compile(r"\s*[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)\s*")
_PATTERNS = {
    NAME_PATTERN: "must begin with a letter or digit and hold only letters, digits, '.', '_' and '-'",
    VERSION_PATTERN: 'must hold digits only, in quotes, such as "3"',
    ENTRYPOINT_PATTERN: "must be MODULE:FUNCTION, such as plant7.train:run",
    WAVE_PATTERN: "must be a number of devices, such as 1, or a share of them, such as 10%",
    CURRENCY_PATTERN: "must be three capital letters such as USD",
}


def words(
    errors: Sequence[ErrorDetails],
    root: type[BaseModel],
    prefix: Loc,
    get: Callable[[Loc], object],
    masked: Callable[[str], str],
) -> Iterator[Finding]:
    """Every error of validating `root` at `prefix`. `get` returns the value as written, `masked`
    hides what references stand for in a sentence that is not ours.

    A missing key is not reported beside a misspelling of it.
    """
    meant: set[Loc] = set()
    missing: list[Loc] = []
    for error in errors:
        relative = _clean(error)
        loc = (*prefix, *relative)
        if error["type"] == "extra_forbidden":
            known = [key for key in known_keys(root, relative[:-1]) if (*loc[:-1], key) not in meant]
            word = str(loc[-1])
            close = did_you_mean(word, known)
            if close is not None:
                meant.add((*loc[:-1], close))
            yield Finding(loc, f"unknown key {show(word)}{hint(word, known)}", at_key=True)
        elif error["type"] == "missing":
            missing.append(loc)
        elif error["type"] == "too_short" and get(loc):
            continue  # Its entries are there, and are wrong themselves.
        else:
            at_key = len(relative) < len(error["loc"]) and error["loc"][-1] == "[key]"
            value = loc[-1] if at_key else get(loc)
            yield Finding(
                loc,
                _sentence(error, loc, value) or masked(error["msg"].removeprefix("Value error, ")),
                at_key,
            )
    for loc in missing:
        if loc not in meant:
            yield Finding(loc[:-1], f"key {show(loc[-1])} is missing from {_where(loc[:-1])}: add it")


def known_keys(root: type[BaseModel], loc: Loc) -> list[str]:
    """The keys that the mapping at a path may have."""
    models = [root]
    for part in loc:
        if isinstance(part, str) and any(part in model.model_fields for model in models):
            annotations: list[Any] = [
                model.model_fields[part].annotation for model in models if part in model.model_fields
            ]
            models = [found for annotation in annotations for found in _models_in(annotation)]
    return [key for model in models for key in model.model_fields]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _clean(error: ErrorDetails) -> Loc:
    """A validator's path without what it adds for unions and keys."""
    loc = error["loc"]
    if loc[-1:] == ("[key]",) and error["type"] != "extra_forbidden":
        loc = loc[:-1]
    return tuple(
        part for before, part in zip((None, *loc), loc, strict=False) if (before, part) not in _UNION_TAGS
    )


_UNION_TAGS = frozenset((("on_no_candidate", "<reject>"), ("on_no_candidate", "<relax>")))


def _where(loc: Loc) -> str:
    if not loc:
        return "the file"
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _sentence(error: ErrorDetails, loc: Loc, value: object) -> str | None:
    """Our words for an error; None when the validator's own must do."""
    key = _name(loc)
    context: Mapping[str, Any] = error.get("ctx", {})
    kind = error["type"]
    if kind in ("float_type", "int_type", "int_from_float", "finite_number"):
        return _number(key, kind, value)
    if kind == "bool_type":
        return f"{key} must be true or false, not {show(value)}"
    if kind == "string_type":
        quoted = f': write it in quotes, "{value}"' if _plain_number(value) else ""
        return f"{key} must be a text, not {show(value)}{quoted}"
    if kind == "string_pattern_mismatch":
        rule = _PATTERNS.get(context["pattern"], f"must match {context['pattern']}")
        return f"{key} {rule}, not {show(value)}"
    if kind in ("literal_error", "enum"):
        return f"{key} must be {context['expected']}, not {show(value)}"
    if kind in _BOUNDS:
        word, name = _BOUNDS[kind]
        return f"{key} must be {word} {context[name]:g}, not {show(value)}"
    if kind == "string_too_short":
        least = context["min_length"]
        return f"{key} must be at least {least} characters long" if least > 1 else f"{key} must not be empty"
    if kind == "string_too_long":
        return f"{key} must be at most {context['max_length']} characters long"
    if kind == "too_short":
        return _empty(key, loc)
    if kind in ("tuple_type", "list_type"):
        return f"{key} must be a list, not {show(value)}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{key} must be a mapping of keys to values, not {show(value)}"
    return None


_BOUNDS = {
    "greater_than": ("greater than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def _name(loc: Loc) -> str:
    """The last key of a path: what the reader sees on that line."""
    if isinstance(loc[-1:] and loc[-1], int):
        return f"each of {_name(loc[:-1])}" if len(loc) > 1 else "each item"
    return str(loc[-1]) if loc else "the file"


def _plain_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(key: str, kind: str, value: object) -> str:
    what = "a whole number" if kind in ("int_type", "int_from_float") else "a number"
    if isinstance(value, Hidden):
        return f"{key} must be {what}, and {show(value)} does not hold one"
    if isinstance(value, str):
        if _MEASURE.fullmatch(value):
            unit = next((unit for end, unit in _UNITS.items() if key.endswith(end)), None)
            of = f" of {unit}" if unit else ""
            return f"{key} must be {what}{of} without a unit, not {show(value)}"
        if _NUMBER.fullmatch(value):
            return f"{key} must be {what}, not a text: remove the quotes around {value.strip()}"
    return f"{key} must be {what}, not {show(value)}"


def _empty(key: str, loc: Loc) -> str:
    if key == "allow" and len(loc) > 1:
        return f"class {show(loc[-2])} allows nothing: list at least one place, or remove the class"
    return f"{key} must not be empty: write at least one entry"
