"""One scrape of several replicas: sums and counts right, nothing counted twice, nothing of the dead lost."""

from __future__ import annotations

import pickle

from gateway.core.decision import Outcome
from gateway.telemetry.events import AttemptEnded, RequestEnded
from gateway.telemetry.merged import MOST_ENDED, Families, Scrapes, as_text, merged
from gateway.telemetry.metrics import Metrics


def replica(requests: int, *, up: bool = True, running: int = 0, trace_id: str | None = None) -> Metrics:
    metrics = Metrics()
    for _ in range(requests + running):
        metrics.request_started()
    for _ in range(requests):
        metrics.request_ended(RequestEnded(0.0, 0.003, None, "digits", trace_id=trace_id))
        metrics.attempt_ended(AttemptEnded("digits", "gpu", Outcome.OK, 10.0, 10.004, 2e-6))
    metrics.endpoint_up("gpu", up)
    metrics.config_revision("r1")
    metrics.told([("tidegate_drift", ("digits", "x"), 0.5)])
    return metrics


def told(metrics: Metrics) -> Families:
    """As it comes from another process."""
    return pickle.loads(pickle.dumps(list(metrics.collect())))


def value(families: Families, name: str, **labels: str) -> float | None:
    found = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) <= 1, found
    return found[0] if found else None


def test_counts_and_histograms_add_up_and_gauges_say_what_they_say() -> None:
    both = merged([told(replica(3, running=2)), told(replica(4, up=False, running=1))])
    assert value(both, "tidegate_requests_total") == 7
    assert value(both, "tidegate_cost_total", endpoint="gpu") == 7 * 2e-6
    assert value(both, "tidegate_attempt_duration_seconds_count", endpoint="gpu") == 7
    assert value(both, "tidegate_attempt_duration_seconds_bucket", le="0.0025") == 0
    assert value(both, "tidegate_attempt_duration_seconds_bucket", le="0.005") == 7
    assert value(both, "tidegate_inflight") == 3
    assert value(both, "tidegate_endpoint_up", endpoint="gpu") == 0
    assert value(both, "tidegate_config_revision", revision="r1") == 1
    assert value(both, "tidegate_drift", model="digits") == 0.5


def test_the_text_of_one_replica_is_what_it_was() -> None:
    metrics = replica(2, trace_id="ab" * 16)
    for accept in ("", "application/openmetrics-text"):
        assert as_text(merged([told(metrics)]), accept) == as_text(list(metrics.collect()), accept)
    assert b"abab" in as_text(merged([told(replica(1)), told(metrics)]), "application/openmetrics-text")[0]


def test_what_a_dead_replica_counted_stays_and_what_it_was_doing_does_not() -> None:
    scrapes = Scrapes()
    first, second = replica(3, running=2), replica(4, up=False)
    scrapes.take({"a": told(first), "b": told(second)})
    found = scrapes.take({"b": told(second)})
    assert (value(found, "tidegate_requests_total"), value(found, "tidegate_inflight")) == (7, 0)
    found = scrapes.take({"b": told(second), "c": told(replica(1))})
    assert value(found, "tidegate_requests_total") == 8
    found = scrapes.take({})
    assert value(found, "tidegate_requests_total") == 8
    assert value(found, "tidegate_endpoint_up") is None


def test_a_replica_that_could_not_be_asked_for_once_counts_once() -> None:
    scrapes = Scrapes()
    scrapes.take({"a": told(replica(3)), "b": told(replica(4))})
    scrapes.take({"b": told(replica(4))})
    found = scrapes.take({"a": told(replica(5)), "b": told(replica(4))})
    assert value(found, "tidegate_requests_total") == 9


def test_deaths_without_end_take_no_memory_without_end_and_lose_nothing() -> None:
    scrapes = Scrapes()
    for number in range(MOST_ENDED + 20):
        scrapes.take({f"r{number}": told(replica(1))})
    found = scrapes.take({})
    assert value(found, "tidegate_requests_total") == MOST_ENDED + 20
    assert len(pickle.dumps(scrapes)) < 2 * (MOST_ENDED + 2) * len(pickle.dumps(told(replica(1))))
