"""What the gateway says of itself: spans, metrics, and their way out.

The pipeline tells a `RequestTelemetry` what happened; from there it becomes frozen events for the
metrics and thin spans for the tracer. Exporters sit outside: a scrape reads the registry, and two
daemon threads push spans and metrics to an OTLP/HTTP receiver. Invariants:

- nothing here waits on the thread that carries a request: no I/O, no unbounded lock, no full queue;
- memory is bounded: a queue with a cap, labels with a cap, and what is lost is counted;
- nothing that derives from a payload, a header's value or an endpoint's words becomes a label or
  an attribute. The trace context is the one thing that is passed on, as W3C asks.
"""

from gateway.telemetry.facade import AttemptTelemetry, RequestTelemetry, Telemetry
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.scrape import Render, metrics_app

__all__ = ["AttemptTelemetry", "Metrics", "Render", "RequestTelemetry", "Telemetry", "metrics_app"]
