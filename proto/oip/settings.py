"""Triton's trace and logging extensions: the settings, and what a request may change of them.

A change is checked as a whole before any of it holds. Values of the wrong type, unknown settings and those
that are fixed here are MALFORMED.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, cast

from oip.errors import OipError
from oip.names import shown
from oip.reasons import Reason

OFF = "OFF"
TIMESTAMPS = "TIMESTAMPS"
_TRACE_FIXED = {"trace_count": "-1", "log_frequency": "0", "trace_mode": "opentelemetry"}
_LOG_FLAGS = ("log_info", "log_warning", "log_error")
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Whether traces are begun, and of how many requests without a context of their own: one in `rate`."""

    on: bool
    rate: int

    @property
    def ratio(self) -> float:
        return 1 / self.rate if self.on else 0.0

    def told(self) -> dict[str, list[str]]:
        """By the extension's names."""
        level = [TIMESTAMPS if self.on else OFF]
        fixed = {key: [value] for key, value in _TRACE_FIXED.items()}
        return {"trace_level": level, "trace_rate": [str(self.rate)], **fixed}


def changed_trace(
    now: TraceSettings, first: TraceSettings, changes: Mapping[str, Sequence[str] | None]
) -> TraceSettings:
    """`now` with `changes`; None, or no value, brings back what was at `first`. Raises OipError MALFORMED."""
    for key, values in changes.items():
        if key == "trace_level":
            now = replace(now, on=_level(values) if values else first.on)
        elif key == "trace_rate":
            now = replace(now, rate=_rate(values) if values else first.rate)
        elif key in _TRACE_FIXED:
            if values and list(values) != [_TRACE_FIXED[key]]:
                _refuse(f"Trace setting {key} is fixed here: it stays {_TRACE_FIXED[key]!r}")
        elif key == "trace_file":
            _refuse("Trace setting trace_file is not known here: spans go to the gateway's otlp_endpoint")
        else:
            _refuse(f"There is no trace setting {shown(key)}")
    return now


def json_trace_changes(members: Mapping[str, object]) -> dict[str, Sequence[str] | None]:
    """Changes as JSON gives them: texts, a list of texts for trace_level, or null. Raises OipError MALFORMED."""
    changes: dict[str, Sequence[str] | None] = {}
    for key, value in members.items():
        if value is None:
            changes[key] = None
            continue
        listed = isinstance(value, list)
        values = cast("list[object]", value) if listed else [value]
        texts = [each for each in values if isinstance(each, str)]
        if listed is not (key == "trace_level") or len(texts) < len(values):
            _refuse(f"Trace setting {shown(key)} needs a string, or a list of them for trace_level")
        changes[key] = texts
    return changes


def json_trace(told: Mapping[str, Sequence[str]]) -> dict[str, object]:
    """Trace settings as JSON shows them."""
    return {key: list(values) if key == "trace_level" else values[0] for key, values in told.items()}


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Which severities are logged; with a `verbose` above 0 everything is."""

    info: bool
    warning: bool
    error: bool
    verbose: int = 0

    def told(self) -> dict[str, bool | int | str]:
        """By the extension's names."""
        return {
            "log_file": "",
            "log_info": self.info,
            "log_warning": self.warning,
            "log_error": self.error,
            "log_verbose_level": self.verbose,
            "log_format": "default",
        }


def changed_log(now: LogSettings, changes: Mapping[str, object]) -> LogSettings:
    """`now` with `changes`. Raises OipError MALFORMED, also where a severity would be off and a lower one on."""
    for key, value in changes.items():
        if key in _LOG_FLAGS:
            if not isinstance(value, bool):
                _refuse(f"Log setting {key} needs true or false")
            now = replace(now, **{key.removeprefix("log_"): value})
        elif key == "log_verbose_level":
            if type(value) is not int or not 0 <= value <= _MOST:
                _refuse(f"Log setting {key} needs an integer from 0 to {_MOST}")
            now = replace(now, verbose=value)
        elif key == "log_format":
            if value != "default":
                _refuse("Log setting log_format is fixed here: it stays 'default'")
        elif key == "log_file":
            _refuse("Log setting log_file cannot be changed over the network")
        else:
            _refuse(f"There is no log setting {shown(key)}")
    if now.info > now.warning or now.warning > now.error:
        _refuse("A severity cannot be off while a lower one is on: switch off log_info before log_warning")
    return now


def _level(values: Sequence[str]) -> bool:
    if set(values) == {OFF}:
        return False
    if set(values) == {TIMESTAMPS}:
        return True
    _refuse("Trace setting trace_level is OFF or TIMESTAMPS: tensors are never traced here")


def _rate(values: Sequence[str]) -> int:
    text = values[0] if len(values) == 1 else ""
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= _MOST):
        _refuse(f"Trace setting trace_rate needs one integer from 1 to {_MOST}, as text")
    return int(text)


def _refuse(message: str) -> NoReturn:
    raise OipError(Reason.MALFORMED, f"{message}.")
