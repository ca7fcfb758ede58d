"""Spans to an OTLP receiver: a bounded queue, and a thread that empties it.

`put` is all that a request pays: a length check and an append, never a wait. A receiver that is
away makes the thread keep its batch and try again; the queue then fills and new spans are dropped
and counted. The thread encodes in short slices and gives way between them, because a long stretch
of Python in it would hold up the thread that carries requests.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2

from gateway.telemetry.otlp import TIMEOUT_S, Poster, key_value
from gateway.telemetry.spans import Kind, Span

_CAPACITY = 4096
_BATCH = 256
_SLICE = 16
_INTERVAL_S = 1.0
_BACKOFF_S = (0.5, 1.0, 2.0, 5.0)
_LAST_TIMEOUT_S = 1.0
"""Wait for the receiver while stopping: one that is up answers well within it."""
_MAX_TEXT = 256
_KINDS = {
    Kind.INTERNAL: trace_pb2.Span.SPAN_KIND_INTERNAL,
    Kind.SERVER: trace_pb2.Span.SPAN_KIND_SERVER,
    Kind.CLIENT: trace_pb2.Span.SPAN_KIND_CLIENT,
}
_ERROR = trace_pb2.Status(code=trace_pb2.Status.STATUS_CODE_ERROR)


class SpanExporter:
    """Holds at most `capacity` spans waiting and one batch in hand.

    `dropped(n)` is told of every span that will not be exported, from whichever thread finds out.
    """

    def __init__(
        self,
        poster: Poster,
        resource: Resource,
        dropped: Callable[[int], None],
        *,
        capacity: int = _CAPACITY,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        self._poster = poster
        self._resource = resource
        self._dropped = dropped
        self._capacity = capacity
        self._interval_s = interval_s
        self._queue: deque[Span] = deque()
        self._in_hand = 0
        self._message = b""
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._give_up_at = 0.0
        self._abandoned = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="otlp-spans", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, span: Span) -> None:
        """Take a span that has ended. Thread-safe; never waits."""
        if len(self._queue) >= self._capacity or self._closing.is_set():
            self._dropped(1)
            return
        self._queue.append(span)
        if len(self._queue) >= _BATCH and not self._wake.is_set():
            self._wake.set()

    def close(self, give_up_at: float) -> None:
        """Begin to stop: what waits is sent until the monotonic instant `give_up_at`. Returns at once."""
        self._give_up_at = give_up_at
        self._closing.set()
        self._wake.set()

    def join(self) -> None:
        """Wait for the end that `close` began, at most until `give_up_at`; what is left counts as dropped."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, self._give_up_at - time.monotonic()))
        with self._lock:
            self._abandoned = True
            left = len(self._queue) + self._in_hand
            self._queue.clear()
            self._in_hand = 0
        if left:
            self._dropped(left)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(self._interval_s)
            self._wake.clear()
            failures = 0
            while self._take() and not self._closing.is_set():
                if self._send(TIMEOUT_S):
                    failures = 0
                else:
                    self._closing.wait(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
                    failures += 1
        while (left := self._give_up_at - time.monotonic()) > 0 and self._take():
            if not self._send(min(left, _LAST_TIMEOUT_S)):
                break
        self._poster.close()

    def _take(self) -> bool:
        """See to it that a batch is in hand; False if there is nothing to send."""
        with self._lock:
            if self._in_hand or self._abandoned:
                return not self._abandoned
            batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
            self._in_hand = len(batch)
        if not batch:
            return False
        self._message = self._encode(batch)
        return True

    def _send(self, timeout_s: float) -> bool:
        """Send the batch in hand: True if it is dealt with, False if it should be tried again."""
        sent = self._poster.post(self._message, timeout_s)
        if not sent.ok and sent.retry:
            return False
        with self._lock:
            count, self._in_hand = self._in_hand, 0
        lost = min(_rejected(sent.body), count) if sent.ok else count
        if lost:
            self._dropped(lost)
        return True

    def _encode(self, batch: list[Span]) -> bytes:
        request = ExportTraceServiceRequest()
        group = request.resource_spans.add(resource=self._resource).scope_spans.add()
        group.scope.name = "gateway.telemetry"
        for index, span in enumerate(batch):
            if index % _SLICE == _SLICE - 1:
                time.sleep(0)
            group.spans.append(encode(span))
        return request.SerializeToString()


def encode(span: Span) -> trace_pb2.Span:
    flags = trace_pb2.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK | 1
    if span.parent_remote:
        flags |= trace_pb2.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
    return trace_pb2.Span(
        trace_id=span.trace_id.to_bytes(16, "big"),
        span_id=span.span_id.to_bytes(8, "big"),
        parent_span_id=span.parent_id.to_bytes(8, "big") if span.parent_id else b"",
        name=span.name,
        kind=_KINDS[span.kind],
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        flags=flags,
        attributes=[
            key_value(key, value[:_MAX_TEXT] if isinstance(value, str) else value)
            for key, value in span.attributes.items()
        ],
        status=_ERROR if span.error else None,
    )


def _rejected(body: bytes) -> int:
    """How many spans of an accepted message the receiver says it did not take."""
    try:
        return ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans
    except DecodeError:
        return 0
