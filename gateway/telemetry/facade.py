"""What the director holds: one object per request that turns what happens into metrics and spans."""

from __future__ import annotations

import time

import gateway
from gateway.core.call import Binding
from gateway.core.config import Telemetry as TelemetryConfig
from gateway.core.decision import Candidate, Decision, Outcome, Verdict
from gateway.core.ports import RemoteSpan
from gateway.core.request import Options
from gateway.telemetry import names
from gateway.telemetry.events import AttemptEnded, Decided, RequestEnded
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.otlp import METRICS_PATH, TRACES_PATH, Poster, resource
from gateway.telemetry.otlp_metrics import MetricExporter
from gateway.telemetry.otlp_spans import SpanExporter
from gateway.telemetry.remote import MAX_SPANS, bounded, welcome
from gateway.telemetry.settings import Settings
from gateway.telemetry.spans import Attributes, Headers, Kind, RequestTrace, Span, Tracing
from oip.reasons import STATUS, Reason

SHUTDOWN_S = 5.0


class Telemetry:
    """Metrics, tracing and their exporters for one gateway process.

    Without `otlp_endpoint` nothing is exported and no thread started; the metrics can be scraped
    all the same. `instance` is the process's name for the receiver, the gateway's without one. Raises ValueError
    for an `otlp_endpoint` that is no http(s) base URL.
    """

    def __init__(self, config: TelemetryConfig, gateway_name: str, instance: str = "") -> None:
        self.metrics = Metrics()
        self._gateway = gateway_name
        self._exporters: tuple[SpanExporter, MetricExporter] | None = None
        if config.otlp_endpoint is None:
            self.tracing = Tracing(None, config.sample_ratio)
            self.settings = Settings(self.tracing, config.sample_ratio)
            return
        who = resource(instance or gateway_name, gateway.__version__)
        dropped = self.metrics.telemetry_dropped
        spans = SpanExporter(
            Poster(config.otlp_endpoint, TRACES_PATH, names.SIGNAL_SPANS),
            who,
            lambda count: dropped(names.SIGNAL_SPANS, count),
        )
        metrics = MetricExporter(
            Poster(config.otlp_endpoint, METRICS_PATH, names.SIGNAL_METRICS),
            who,
            self.metrics.collect,
            lambda count: dropped(names.SIGNAL_METRICS, count),
        )
        self._exporters = (spans, metrics)
        self.tracing = Tracing(spans.put, config.sample_ratio)
        self.settings = Settings(self.tracing, config.sample_ratio)

    def start(self) -> None:
        for exporter in self._exporters or ():
            exporter.start()

    def shutdown(self, timeout_s: float = SHUTDOWN_S) -> None:
        """Export what waits and stop, within `timeout_s` whatever the receiver does. Blocks: call
        it off the loop."""
        give_up_at = time.monotonic() + timeout_s
        for exporter in self._exporters or ():
            exporter.close(give_up_at)
        for exporter in self._exporters or ():
            exporter.join()

    def request(self, received: float, options: Options, binding: Binding) -> RequestTelemetry:
        """An inference arrived at the monotonic instant `received`. Its `ended` must be called."""
        attributes = {names.ATTR_BINDING: binding.value, names.ATTR_GATEWAY: self._gateway}
        trace = self.tracing.request(options.traceparent, options.tracestate, received, attributes)
        self.metrics.request_started()
        return RequestTelemetry(self.metrics, trace, received)


class RequestTelemetry:
    """One inference. Instants are seconds of the monotonic clock."""

    __slots__ = (
        "_attempts",
        "_decision_id",
        "_ended",
        "_metrics",
        "_model",
        "_policy",
        "_privacy",
        "_received",
        "_tier",
        "trace",
    )

    def __init__(self, metrics: Metrics, trace: RequestTrace, received: float) -> None:
        self._metrics = metrics
        self.trace = trace
        self._received = received
        self._model = names.NONE
        self._policy = names.NONE
        self._privacy = names.NONE
        self._tier = names.NONE
        self._decision_id = ""
        self._attempts = 0
        self._ended = False

    def decided(self, decision: Decision, started: float, ended: float) -> None:
        """A decision was taken, refusals included. The last one names model, policy and classes."""
        self._metrics.decided(Decided(decision, started, ended))
        self._model = decision.model if decision.model_config is not None else names.UNKNOWN
        self._policy = decision.policy or names.NONE
        self._privacy = decision.classes or names.NONE
        self._decision_id = decision.id
        if self.trace.sampled:
            span = self.trace.child(names.SPAN_DECIDE, started, {})
            self.trace.end(span, ended, _decision_attributes(decision))

    def attempt(self, candidate: Candidate, started: float) -> AttemptTelemetry:
        """An attempt at a candidate of the plan begins. Its `ended` must be called."""
        self._attempts += 1
        self._tier = candidate.place.tier.value
        span: Span | None = None
        if self.trace.sampled:
            attributes = {
                names.ATTR_ENDPOINT: candidate.variant.endpoint,
                names.ATTR_TIER: self._tier,
                names.ATTR_ATTEMPTS: self._attempts,
            }
            if candidate.device:
                attributes[names.ATTR_DEVICE] = candidate.device
            span = self.trace.child(names.SPAN_ATTEMPT, started, attributes, Kind.CLIENT)
        return AttemptTelemetry(self._metrics, self.trace, span, self._model, candidate, started)

    def ended(self, reason: Reason | None, ended: float) -> None:
        """The answer is out (`reason` None), or the request failed. A second call is ignored."""
        if self._ended:
            return
        self._ended = True
        event = RequestEnded(
            self._received,
            ended,
            reason,
            self._model,
            self._policy,
            self._privacy,
            self._tier,
            trace_id=self.trace.trace_id,
        )
        self._metrics.request_ended(event)
        if self.trace.sampled:
            self.trace.end(
                self.trace.root,
                ended,
                {
                    names.ATTR_MODEL: self._model,
                    names.ATTR_POLICY: self._policy,
                    names.ATTR_PRIVACY: self._privacy,
                    names.ATTR_DECISION: self._decision_id,
                    names.ATTR_ATTEMPTS: self._attempts,
                    names.ATTR_CODE: event.code,
                },
                error=reason is not None and STATUS[reason].http >= 500,
            )


class AttemptTelemetry:
    """One attempt. `headers` are the trace context to send to the endpoint."""

    __slots__ = ("_candidate", "_metrics", "_model", "_span", "_started", "_told", "_trace", "headers")

    def __init__(
        self,
        metrics: Metrics,
        trace: RequestTrace,
        span: Span | None,
        model: str,
        candidate: Candidate,
        started: float,
    ) -> None:
        self._metrics = metrics
        self._trace = trace
        self._span = span
        self._model = model
        self._candidate = candidate
        self._started = started
        self._told: list[RemoteSpan] = []
        self.headers: Headers = trace.headers_for(span)

    def tell(self, span: RemoteSpan) -> None:
        """The place did this for the attempt: a child of its span, if the trace is kept."""
        if self._span is not None and len(self._told) < MAX_SPANS and welcome(span):
            self._told.append(span)

    def ended(
        self, outcome: Outcome, ended: float, cost: float | None, answered: float | None = None
    ) -> None:
        """`cost` is what the attempt cost in the configured currency, 0 where nothing is charged,
        None where it is not known. `answered` is when the first of several responses came: latency
        counts to that one, the span to the last."""
        self._metrics.attempt_ended(
            AttemptEnded(
                self._model,
                self._candidate.variant.endpoint,
                outcome,
                self._started,
                ended if answered is None else answered,
                cost,
                self._candidate.predicted.latency_p50_ms,
            )
        )
        if self._span is not None:
            for told in self._told:
                # Whatever another clock says, the work was done within the attempt.
                began = min(max(told.began, self._started), ended)
                child = self._trace.child(told.name, began, bounded(told), parent=self._span)
                self._trace.end(child, min(max(told.ended, began), ended), {})
            attributes = {names.ATTR_OUTCOME: outcome.value}
            self._trace.end(self._span, ended, attributes, error=outcome is not Outcome.OK)


def _decision_attributes(decision: Decision) -> Attributes:
    excluded = sum(candidate.verdict is Verdict.EXCLUDED for candidate in decision.candidates)
    attributes: dict[str, str | int] = {
        names.ATTR_DECISION: decision.id,
        names.ATTR_POLICY: decision.policy or names.NONE,
        names.ATTR_CANDIDATES: len(decision.candidates),
        names.ATTR_EXCLUDED: excluded,
    }
    if decision.plan:
        attributes[names.ATTR_ENDPOINT] = decision.plan[0].variant.endpoint
    if decision.refused is not None:
        attributes[names.ATTR_CODE] = decision.refused.value
    return attributes
