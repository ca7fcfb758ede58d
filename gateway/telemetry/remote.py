"""What a place beyond this process says of its work, as far as it may go into a trace.

A device is not this gateway's own: of its spans only the agent's names are taken, and of their
attributes numbers and texts that look like names, none long and not many.
"""

from __future__ import annotations

import math
import re

from gateway.core.ports import RemoteSpan
from gateway.telemetry import names
from gateway.telemetry.spans import Attributes

MAX_SPANS = 16
"""Spans taken of one attempt."""
MAX_ATTRIBUTES = 16

_NAME = re.compile(re.escape(names.SPANS_AGENT) + r"[a-z][a-z0-9_]{0,31}")
_KEY = re.compile(r"[a-z][a-z0-9_.]{0,47}")
_TEXT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]{0,63}")


def welcome(span: RemoteSpan) -> bool:
    """Whether a span is one of the agent's and its instants are times."""
    return bool(_NAME.fullmatch(span.name)) and math.isfinite(span.began) and math.isfinite(span.ended)


def bounded(span: RemoteSpan) -> Attributes:
    """The attributes that may be kept."""
    kept = {key: value for key, value in span.attributes.items() if _KEY.fullmatch(key) and _fits(value)}
    return dict(sorted(kept.items())[:MAX_ATTRIBUTES])


def _fits(value: str | int | float) -> bool:
    if isinstance(value, str):
        return bool(_TEXT.fullmatch(value))
    return math.isfinite(value) and abs(value) < 2**63
