"""Receivers for OTLP over HTTP: one that works, one that never answers, one that refuses.

All are context managers on a free loopback port, with the base URL to configure in `url`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it arrived. Ids are lower-case hex, `parent_id` "" for a root; times are ns since the epoch."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    start_ns: int
    end_ns: int
    error: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]

    @property
    def service(self) -> str:
        return self.resource.get("service.name", "")


@dataclass
class OtlpReceiver:
    """Keeps every span, and the newest push of metrics by name.

    `statuses` are answered first, one per POST, then 200; `rejected` is what each 200 reports as
    rejected spans. Bodies may be protobuf or OTLP's JSON (Triton's exporter sends that).
    """

    statuses: list[int] = field(default_factory=list)
    rejected: int = 0
    spans: list[ReceivedSpan] = field(default_factory=list)
    metrics: dict[str, Metric] = field(default_factory=dict)
    resources: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of each POST, with names in lower case."""
    posts: int = 0
    unreadable: list[str] = field(default_factory=list)
    port: int = 0

    def __enter__(self) -> Self:
        self._changed = threading.Condition()
        self._connections: set[socket.socket] = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Buffered, so that an answer is one segment: two would wait for each other (Nagle).
            wbufsize = -1

            def setup(self) -> None:
                super().setup()
                receiver._connections.add(self.connection)

            def finish(self) -> None:
                receiver._connections.discard(self.connection)
                super().finish()

            def do_POST(self) -> None:
                body = self._body()
                receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                status, answer = receiver._take(self.path, self.headers.get("content-type", ""), body)
                self.send_response(status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def _body(self) -> bytes:
                if self.headers.get("transfer-encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("content-length", "0")))
                parts = bytearray()
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return bytes(parts)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for connection in list(self._connections):
            # Kept-alive ones too: what is stopped must take nothing more.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_for(self, predicate: Callable[[Self], Any], timeout: float = 15.0) -> None:
        """Wait until `predicate(self)` holds; AssertionError with what did arrive if it never does."""
        with self._changed:
            if not self._changed.wait_for(lambda: predicate(self), timeout):
                names = sorted({span.name for span in self.spans})
                raise AssertionError(
                    f"not seen within {timeout} s; {self.posts} POSTs, {len(self.spans)} spans {names}, "
                    f"metrics {sorted(self.metrics)}, unreadable {self.unreadable[:3]}"
                )

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        """The spans of one trace so far, by start."""
        with self._changed:
            return sorted((s for s in self.spans if s.trace_id == trace_id), key=lambda s: s.start_ns)

    def _take(self, path: str, content_type: str, body: bytes) -> tuple[int, bytes]:
        with self._changed:
            self.posts += 1
            self._changed.notify_all()
            if self.statuses:
                return self.statuses.pop(0), b""
            try:
                if path == "/v1/traces":
                    self._take_spans(_parse(ExportTraceServiceRequest(), content_type, body))
                    answer = ExportTraceServiceResponse()
                    answer.partial_success.rejected_spans = self.rejected
                    return 200, answer.SerializeToString()
                if path == "/v1/metrics":
                    self._take_metrics(_parse(ExportMetricsServiceRequest(), content_type, body))
                    return 200, ExportMetricsServiceResponse().SerializeToString()
            except Exception as error:
                self.unreadable.append(f"{content_type}: {error!r}")
                return 400, b""
            return 404, b""

    def _take_spans(self, request: ExportTraceServiceRequest) -> None:
        for group in request.resource_spans:
            resource = _attributes(group.resource.attributes)
            for scope in group.scope_spans:
                self.spans.extend(_received(span, resource) for span in scope.spans)

    def _take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        for group in request.resource_metrics:
            self.resources.append(_attributes(group.resource.attributes))
            for scope in group.scope_metrics:
                self.metrics.update({metric.name: metric for metric in scope.metrics})


def _received(span: trace_pb2.Span, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        error=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        attributes=_attributes(span.attributes),
        resource=resource,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair) for pair in pairs}


def _value(pair: KeyValue) -> Any:
    kind = pair.value.WhichOneof("value")
    return getattr(pair.value, kind) if kind else None


def _parse(message: Any, content_type: str, body: bytes) -> Any:
    if "json" not in content_type:
        message.ParseFromString(body)
        return message
    return json_format.ParseDict(_ids_as_base64(json.loads(body)), message, ignore_unknown_fields=True)


def _ids_as_base64(value: Any) -> Any:
    """OTLP's JSON writes ids in hex where protobuf's own mapping expects base64."""
    if isinstance(value, dict):
        return {
            key: base64.b64encode(bytes.fromhex(item)).decode()
            if key in ("traceId", "spanId", "parentSpanId")
            else _ids_as_base64(item)
            for key, item in value.items()
        }
    return [_ids_as_base64(item) for item in value] if isinstance(value, list) else value


class Blackhole:
    """Accepts connections and reads what comes, and never answers."""

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._held: list[socket.socket] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            self._held.append(connection)
            self.connections += 1

    def wait_connected(self, timeout: float = 15.0) -> None:
        end = time.monotonic() + timeout
        while not self.connections:
            assert time.monotonic() < end, "nobody connected"
            time.sleep(0.01)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        for connection in self._held:
            connection.close()
        self._listener.close()


class Refused:
    """A port that is taken but not listened on: every connection is refused."""

    def __enter__(self) -> Self:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
