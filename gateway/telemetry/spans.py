"""The spans of one request, and the trace context that goes on to the endpoint.

Thin on purpose. OpenTelemetry's SDK was measured here at about 30 us per request of three spans
when not sampled, 60 us with an unsampled caller and 150-190 us when sampled, on the thread that
carries the request; these spans take about a tenth of that (docs/telemetry.md). What is not
sampled records nothing. Context is passed by hand, never through context variables, so that
attempts may begin and end in any task; no global tracer provider is set.

A caller's sampling flag is obeyed: 01 is recorded and exported, 00 is not and goes on as 00.
Without a caller's context the ratio decides, by the trace id's low 64 bits as OpenTelemetry does,
so that everyone who sees the id with the same ratio decides alike. Without an exporter the
caller's context goes on untouched: a parent that nobody exports would tear the trace.

Attributes are bounded names and numbers. Nothing from tensors, headers (the context itself apart)
or an endpoint's error texts may be put into one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from gateway.telemetry import names
from gateway.telemetry.context import TraceParent, format_traceparent, parse_traceparent

Attributes = Mapping[str, str | int | float]
Headers = tuple[tuple[str, str], ...]


class Kind(Enum):
    """Which side of a call a span is."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


@dataclass(slots=True, eq=False)
class Span:
    """A span being recorded. Times are nanoseconds since the epoch; `parent_id` 0 is a root's."""

    name: str
    kind: Kind
    trace_id: int
    span_id: int
    parent_id: int
    start_ns: int
    parent_remote: bool = False
    end_ns: int = 0
    error: bool = False
    attributes: dict[str, str | int | float] = field(default_factory=dict[str, str | int | float])


class Tracing:
    """Begins the traces of requests and hands every span that ends to `export`.

    `export` None: nothing is recorded, contexts pass through. `sample_ratio` is in [0, 1].
    """

    def __init__(
        self,
        export: Callable[[Span], None] | None,
        sample_ratio: float,
        rng: random.Random | None = None,
    ) -> None:
        self.export = export
        self.sample(sample_ratio)
        self._rng = rng or random.Random()  # seeded by the system, so replicas do not collide

    def sample(self, ratio: float) -> None:
        """From now on this share, in [0, 1], of requests without a caller's context is recorded."""
        self._bound = round(ratio * 2**64)

    def request(
        self, traceparent: str | None, tracestate: str | None, received: float, attributes: Attributes
    ) -> RequestTrace:
        """Begin the trace of a request that arrived at the monotonic instant `received`. A header
        that is not a traceparent counts as none, and its tracestate with it; `tracestate` is as
        `trace_context` gives it."""
        parent = parse_traceparent(traceparent)
        state = tracestate if parent is not None else None
        if self.export is None:
            return RequestTrace(self, parent, state, 0, False, received, attributes)
        if parent is not None:
            return RequestTrace(self, parent, state, parent.trace_id, parent.sampled, received, attributes)
        trace_id = self._rng.getrandbits(128) or 1
        sampled = (trace_id & (2**64 - 1)) < self._bound
        return RequestTrace(self, None, None, trace_id, sampled, received, attributes)

    def new_span_id(self) -> int:
        return self._rng.getrandbits(64) or 1


class RequestTrace:
    """The trace of one request. Instants are seconds of the monotonic clock."""

    __slots__ = ("_offset_ns", "_parent", "_state", "_trace_id", "_tracing", "root", "sampled")

    def __init__(
        self,
        tracing: Tracing,
        parent: TraceParent | None,
        state: str | None,
        trace_id: int,
        sampled: bool,
        received: float,
        attributes: Attributes,
    ) -> None:
        self._tracing = tracing
        self._parent = parent
        self._state = state
        self._trace_id = trace_id
        self.sampled = sampled
        """Whether the spans are recorded and exported."""
        self._offset_ns = 0
        self.root: Span | None = None
        if sampled:
            self._offset_ns = time.time_ns() - time.monotonic_ns()
            self.root = self._span(
                names.SPAN_REQUEST, Kind.SERVER, parent.span_id if parent else 0, received, attributes
            )
            self.root.parent_remote = parent is not None

    @property
    def trace_id(self) -> str | None:
        """32 hex digits when the trace is kept, else None."""
        return f"{self._trace_id:032x}" if self.sampled else None

    def _span(self, name: str, kind: Kind, parent_id: int, started: float, attributes: Attributes) -> Span:
        return Span(
            name,
            kind,
            self._trace_id,
            self._tracing.new_span_id(),
            parent_id,
            self._offset_ns + int(started * 1e9),
            attributes=dict(attributes),
        )

    def child(
        self,
        name: str,
        started: float,
        attributes: Attributes,
        kind: Kind = Kind.INTERNAL,
        parent: Span | None = None,
    ) -> Span | None:
        """A span below `parent`, or below the request's; None when the trace is not kept."""
        above = parent or self.root
        return self._span(name, kind, above.span_id, started, attributes) if above else None

    def end(self, span: Span | None, ended: float, attributes: Attributes, *, error: bool = False) -> None:
        """End a span of this trace and hand it to the exporter; None is taken and ignored."""
        if span is None or self._tracing.export is None:
            return
        span.end_ns = max(span.start_ns, self._offset_ns + int(ended * 1e9))
        span.error = error
        span.attributes.update(attributes)
        self._tracing.export(span)

    def headers_for(self, span: Span | None) -> Headers:
        """`traceparent` (and the caller's `tracestate`) to send on: with the span's id as the
        parent, or a fresh one where nothing is recorded. Without an exporter it is the caller's
        own context, or nothing."""
        if self._tracing.export is None:
            if self._parent is None:
                return ()
            value = format_traceparent(*self._parent)
        else:
            span_id = span.span_id if span is not None else self._tracing.new_span_id()
            value = format_traceparent(self._trace_id, span_id, self.sampled)
        if self._state is None:
            return (("traceparent", value),)
        return (("traceparent", value), ("tracestate", self._state))
