"""What a request brings along: its trace context, and the spans that go back."""

from __future__ import annotations

import re

from edgewire.v1 import edge_pb2

SPAN_INFER = "tidegate.agent.infer"
ATTR_OUTCOME = "tidegate.outcome"
OK = "ok"

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})(-.*)?"
)


def sampled(traceparent: str) -> bool:
    """Whether a W3C trace context asks for its spans to be kept. Not one: no."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return match is not None and bool(int(match[1], 16) & 1)


def infer_span(began_s: float, took_s: float, outcome: str) -> edge_pb2.Span:
    """The span of one inference on the device, in seconds after its arrival."""
    return edge_pb2.Span(
        name=SPAN_INFER,
        began_us=_us(began_s),
        took_us=_us(took_s),
        attributes={ATTR_OUTCOME: outcome},
    )


def _us(seconds: float) -> int:
    return max(0, round(seconds * 1e6))
