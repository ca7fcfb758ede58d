"""The `tidegate-*` request options on the device: `tidegate-privacy` and `tidegate-deadline-ms`.

The others choose among places or speak for a site, and here there is one place: they are refused, never
ignored. Words and bounds are the gateway's, which docs/protocol.md gives.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NoReturn

from oip.errors import OipError
from oip.reasons import Reason

Metadata = Sequence[tuple[str, str | bytes]]
"""Lower-case keys in arrival order, duplicates kept; values of `-bin` keys are bytes."""

MAX_DEADLINE_MS = 86_400_000.0
"""One day."""
MAX_NAME_CHARS = 128
_KNOWN = ("privacy", "deadline-ms")
_ELSEWHERE = ("policy", "site", "device", "max-cost", "idempotent", "allowed", "hops")

_NAME = re.compile(rf"[\x21-\x7e]{{1,{MAX_NAME_CHARS}}}")
_DECIMAL = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")


def deadline_ms(metadata: Metadata) -> float | None:
    """The deadline that a call's options set, in milliseconds after its arrival; None without one. Keys
    other than `tidegate-*` are not looked at. Raises OipError BAD_OPTION."""
    given: dict[str, str] = {}
    for key, value in metadata:
        if not key.startswith(("tidegate-", "tidegate_")):
            continue
        option = key.removeprefix("tidegate-")
        names = ", ".join(f"tidegate-{name}" for name in _KNOWN)
        if option in _ELSEWHERE:
            _refuse(f"{key} is for gateways, and this is a device's own server: the options here are {names}")
        if option not in _KNOWN or isinstance(value, bytes):
            _refuse(f"unknown option {_printable(key)}: the options are {names}")
        if option in given:
            _refuse(f"{key} is given more than once: give it once")
        given[option] = value
    if "privacy" in given and not _NAME.fullmatch(given["privacy"]):
        _refuse(
            f"tidegate-privacy must be a name of 1 to {MAX_NAME_CHARS} printable ASCII characters without spaces"
        )
    return _number(given["deadline-ms"]) if "deadline-ms" in given else None


def names_class(metadata: Metadata) -> bool:
    """Whether a call, its options checked, names a privacy class of its own."""
    return any(key == "tidegate-privacy" for key, _ in metadata)


def _number(value: str) -> float:
    number = float(value) if _DECIMAL.fullmatch(value) else 0.0
    if not 0.0 < number <= MAX_DEADLINE_MS:
        _refuse(
            f"tidegate-deadline-ms must be a plain decimal number above 0 and at most {MAX_DEADLINE_MS:.0f},"
            f" such as 250 or 0.5, not '{_printable(value)}'"
        )
    return number


def _refuse(message: str) -> NoReturn:
    raise OipError(Reason.BAD_OPTION, message)


def _printable(text: str) -> str:
    """A caller's text, safe and short enough to go into a message."""
    return "".join(c if "\x21" <= c <= "\x7e" else "?" for c in text[:64])
