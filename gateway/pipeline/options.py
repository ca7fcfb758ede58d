"""The `tidegate-*` request options and the W3C trace context, read from a call's metadata.

Options are known before the first byte of the body, so a mistake in one is refused there. An
unknown, repeated or ill-formed option is an error, never ignored: a misspelt `tidegate-privacy`
would otherwise widen where the data may go.
"""

from __future__ import annotations

import re
from typing import NoReturn

from gateway.core.call import Metadata
from gateway.core.errors import Refusal
from gateway.core.request import Options
from gateway.telemetry.context import trace_context
from oip.reasons import Reason

MAX_DEADLINE_MS = 86_400_000.0
"""One day."""
MAX_COST = 1_000_000.0
MAX_NAME_CHARS = 128

_NAMES = ("privacy", "policy", "site", "device")
_NUMBERS = {"deadline-ms": MAX_DEADLINE_MS, "max-cost": MAX_COST}
_KNOWN = (*_NAMES, *_NUMBERS, "idempotent")
_PEER_ONLY = frozenset({"tidegate-allowed", "tidegate-hops"})

_NAME = re.compile(rf"[\x21-\x7e]{{1,{MAX_NAME_CHARS}}}")
_DECIMAL = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")


def parse_options(metadata: Metadata) -> Options:
    """The options of a call. Other keys than `tidegate-*` and the trace context are not looked at.

    Raises Refusal(BAD_OPTION) with one sentence that names the option and what would be right.
    An invalid trace context is dropped, as W3C Trace Context asks, and never refuses a call.
    """
    given: dict[str, str] = {}
    for key, value in metadata:
        if not key.startswith(("tidegate-", "tidegate_")):
            continue
        if key in _PEER_ONLY:
            _refuse(f"{key} is for peer gateways, which are not served by this version: leave it out")
        option = key.removeprefix("tidegate-")
        if option not in _KNOWN or isinstance(value, bytes):
            names = ", ".join(f"tidegate-{name}" for name in _KNOWN)
            _refuse(f"unknown option {_printable(key)}: the options are {names}")
        if option in given:
            _refuse(f"{key} is given more than once: give it once")
        given[option] = value
    names = {option: _name(option, given[option]) for option in _NAMES if option in given}
    numbers = {option: _number(option, given[option]) for option in _NUMBERS if option in given}
    traceparent, tracestate = trace_context(metadata)
    return Options(
        privacy=names.get("privacy"),
        policy=names.get("policy"),
        deadline_ms=numbers.get("deadline-ms"),
        max_cost=numbers.get("max-cost"),
        site=names.get("site"),
        device=names.get("device"),
        idempotent=_flag("idempotent", given["idempotent"]) if "idempotent" in given else None,
        traceparent=traceparent,
        tracestate=tracestate,
    )


def _refuse(message: str) -> NoReturn:
    raise Refusal(Reason.BAD_OPTION, message)


def _printable(text: str) -> str:
    """A caller's text, safe and short enough to go into a message."""
    return "".join(c if "\x21" <= c <= "\x7e" else "?" for c in text[:64])


def _name(option: str, value: str) -> str:
    if not _NAME.fullmatch(value):
        _refuse(
            f"tidegate-{option} must be a name of 1 to {MAX_NAME_CHARS} printable ASCII characters"
            " without spaces"
        )
    return value


def _number(option: str, value: str) -> float:
    most = _NUMBERS[option]
    number = float(value) if _DECIMAL.fullmatch(value) else 0.0
    if not 0.0 < number <= most:
        _refuse(
            f"tidegate-{option} must be a plain decimal number above 0 and at most {most:.0f},"
            f" such as 250 or 0.5, not '{_printable(value)}'"
        )
    return number


def _flag(option: str, value: str) -> bool:
    if value not in ("true", "false"):
        _refuse(f"tidegate-{option} must be true or false, not '{_printable(value)}'")
    return value == "true"
