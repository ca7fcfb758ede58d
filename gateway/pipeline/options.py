"""The `tidegate-*` request options and the W3C trace context, read from a call's metadata.

Options are known before the first byte of the body, so a mistake in one is refused there. An
unknown, repeated or ill-formed option is an error, never ignored: a misspelt `tidegate-privacy`
would otherwise widen where the data may go.
"""

from __future__ import annotations

import re
from typing import NoReturn

from edgewire.allowed import AllowedSet, decode
from gateway.core.call import Metadata
from gateway.core.config.basis import NAME_PATTERN
from gateway.core.errors import Refusal
from gateway.core.request import MAX_HOPS, Options
from gateway.telemetry.context import trace_context
from oip.reasons import Reason

MAX_DEADLINE_MS = 86_400_000.0
"""One day."""
MAX_COST = 1_000_000.0
MAX_NAME_CHARS = 128

_NAMES = ("privacy", "policy", "site", "device")
_NUMBERS = {"deadline-ms": MAX_DEADLINE_MS, "max-cost": MAX_COST}
_KNOWN = (*_NAMES, *_NUMBERS, "idempotent")
_PEERS = ("allowed", "hops")
PEER_OPTIONS = tuple(f"tidegate-{option}" for option in _PEERS)
"""What only a peer gateway may send; whether it is one is `Callers`' question."""

_HOP = re.compile(NAME_PATTERN)
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
        option = key.removeprefix("tidegate-")
        if option not in (*_KNOWN, *_PEERS) or isinstance(value, bytes):
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
        allowed=_allowed(given["allowed"]) if "allowed" in given else None,
        hops=_hops(given["hops"]) if "hops" in given else (),
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


def _allowed(value: str) -> AllowedSet:
    try:
        return decode(value)
    except ValueError as error:
        _refuse(f"tidegate-allowed is no set of places: {error}")


def _hops(value: str) -> tuple[str, ...]:
    hops = tuple(value.split(","))
    if len(hops) > MAX_HOPS or not all(len(hop) <= MAX_NAME_CHARS and _HOP.fullmatch(hop) for hop in hops):
        _refuse(f"tidegate-hops must be 1 to {MAX_HOPS} names of gateways, separated by ','")
    return hops
