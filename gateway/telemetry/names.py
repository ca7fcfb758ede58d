"""Every span, attribute, metric and label name, in one place.

These are public names: dashboards, alerts and checks outside this repository rely on them. All
label values are bounded; what has no bound (request ids, models that nobody configured) has a
placeholder below.
"""

from __future__ import annotations

from typing import NamedTuple

SERVICE = "tidegate"

SPAN_REQUEST = "tidegate.request"
SPAN_DECIDE = "tidegate.decide"
SPAN_ATTEMPT = "tidegate.attempt"
SPANS_AGENT = "tidegate.agent."
"""What the names of a device's own spans begin with, `tidegate.agent.infer` first of all."""

ATTR_GATEWAY = "tidegate.gateway"
ATTR_DEVICE = "tidegate.device"
ATTR_BINDING = "tidegate.binding"
ATTR_MODEL = "tidegate.model"
ATTR_POLICY = "tidegate.policy"
ATTR_PRIVACY = "tidegate.privacy"
ATTR_DECISION = "tidegate.decision"
ATTR_CANDIDATES = "tidegate.candidates"
ATTR_EXCLUDED = "tidegate.excluded"
ATTR_ENDPOINT = "tidegate.endpoint"
ATTR_TIER = "tidegate.tier"
ATTR_OUTCOME = "tidegate.outcome"
ATTR_CODE = "tidegate.code"
ATTR_ATTEMPTS = "tidegate.attempts"

NONE = "_none"
"""Label value of what does not apply: the tier of a request that reached no place, for one."""
UNKNOWN = "_unknown"
"""Label value of every model name that is not configured."""
OTHER = "_other"
"""Label value that takes the place of new values once a label has as many as it may have."""
OK = "ok"
"""`code` of a request that was answered; otherwise it is the reason's public name."""


class Instrument(NamedTuple):
    """A metric: its full name as scraped and exported, what it says, and its labels in order."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


REQUESTS = Instrument(
    "tidegate_requests_total",
    "Inference requests that ended, by the reason they ended with (ok when answered).",
    ("model", "tenant", "policy", "privacy", "tier", "code"),
)
REQUEST_DURATION = Instrument(
    "tidegate_request_duration_seconds",
    "From the request's arrival to the end of its answer.",
    ("model", "tier"),
)
ATTEMPT_DURATION = Instrument(
    "tidegate_attempt_duration_seconds",
    "One attempt at one endpoint, from its start to its outcome.",
    ("endpoint", "outcome"),
)
DECISION_DURATION = Instrument("tidegate_decision_duration_seconds", "Time that one decision took.")
EXCLUDED = Instrument("tidegate_excluded_total", "Candidates excluded, by rule.", ("rule",))
INFLIGHT = Instrument("tidegate_inflight", "Inference requests that have arrived and not ended.")
COST = Instrument(
    "tidegate_cost_total",
    "What attempts cost, in the configured currency; those whose cost is not known are left out.",
    ("tenant", "model", "endpoint"),
)
ENDPOINT_UP = Instrument("tidegate_endpoint_up", "1 while the endpoint answers, else 0.", ("endpoint",))
DEVICES = Instrument(
    "tidegate_devices",
    "Enrolled devices of the groups: connected, drained (connected, but given no new requests) or away.",
    ("state",),
)
DEVICE_STATES = ("connected", "drained", "away")
CONFIG_REVISION = Instrument(
    "tidegate_config_revision", "1 for the configuration revision in force.", ("revision",)
)
FORECAST_ERROR = Instrument(
    "tidegate_latency_forecast_error_ratio",
    "How far an answered attempt's latency was from its predicted median, as |actual - predicted| / predicted.",
    ("endpoint",),
)
DRIFT = Instrument(
    "tidegate_drift",
    "How far a watched signal of a model is from its reference: the detector's last score.",
    ("model", "signal"),
)
ROLLOUT_DEVICES = Instrument(
    "tidegate_rollout_devices",
    "Devices of the rollouts that are under way, and of the last of each model, by how far each has come.",
    ("rollout", "state"),
)
SPOOL_RECORDS = Instrument(
    "tidegate_spool_records", "Records that connected devices have written and nobody has counted yet."
)
TELEMETRY_DROPPED = Instrument(
    "tidegate_telemetry_dropped_total",
    "Telemetry that was not exported over OTLP: spans, and pushes of metrics.",
    ("signal",),
)

TOLD = {told.name: told for told in (DRIFT, ROLLOUT_DEVICES, SPOOL_RECORDS)}
"""Gauges that control tells a replica of, so that one scrape has everything."""

SMALLEST = frozenset({ENDPOINT_UP.name})
"""Gauges of which the smallest counts where several processes tell one; of others it is the largest."""
ADDED = frozenset({INFLIGHT.name})
"""Gauges that add up over processes."""

SIGNAL_SPANS = "spans"
SIGNAL_METRICS = "metrics"

INFORMATIVE_RULES = frozenset({"unmeasured", "stale", "score"})
"""Rules of notes that explain a candidate without excluding it."""

DURATION_BUCKETS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
DECISION_BUCKETS_S = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.1)
RATIO_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0, 10.0)
