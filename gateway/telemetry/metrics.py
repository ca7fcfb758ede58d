"""The instruments, behind one method per event.

A registry of its own, not prometheus_client's global one: nothing that shares the process (Ray)
leaks in, and tests are independent. Children are looked up in plain dicts because
prometheus_client's `labels()` costs several microseconds. Cardinality is capped twice: each label
takes at most so many values, shared by all metrics, and each metric at most `MAX_SERIES` series;
whatever comes later is counted under "_other".
"""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric

from gateway.core.decision import Outcome, Verdict
from gateway.core.fleet import Device, Group
from gateway.telemetry import names
from gateway.telemetry.events import AttemptEnded, Decided, RequestEnded

MAX_VALUES = {"model": 500, "tenant": 200, "endpoint": 500, "policy": 200, "privacy": 200}
"""How many values a label may have; the others come from fixed lists."""
MAX_SERIES = 10_000
MAX_TOLD = 1000
"""Series of each gauge that control tells of. Rollouts come and go, so what counts is how many there are at
a time, not how many there ever were."""
_PLACEHOLDERS = frozenset({names.NONE, names.UNKNOWN, names.OTHER})

ToldGauge = tuple[str, Sequence[str], float]
"""A gauge's name, its labels' values in order, and its value."""

C = TypeVar("C", Counter, Gauge, Histogram)


class _Caps:
    """The values each capped label has so far."""

    def __init__(self, limits: dict[str, int]) -> None:
        self._limits = limits
        self._seen: dict[str, set[str]] = {label: set() for label in limits}

    def admit(self, label: str, value: str) -> str:
        seen = self._seen.get(label)
        if seen is None or value in seen or value in _PLACEHOLDERS:
            return value
        if len(seen) >= self._limits[label]:
            return names.OTHER
        seen.add(value)
        return value


class _Children(Generic[C]):
    """A labelled metric's children by label values, within the caps."""

    def __init__(self, metric: C, labels: tuple[str, ...], caps: _Caps, max_series: int) -> None:
        self._metric = metric
        self._labels = labels
        self._caps = caps
        self._max_series = max_series
        self._children: dict[tuple[str, ...], C] = {}

    def __call__(self, *values: str) -> C:
        child = self._children.get(values)
        return child if child is not None else self._admit(values)

    def _admit(self, values: tuple[str, ...]) -> C:
        admitted = tuple(map(self._caps.admit, self._labels, values))
        child = self._children.get(admitted)
        if child is not None:
            return child
        if len(self._children) >= self._max_series:
            return self._metric.labels(*[names.OTHER] * len(self._labels))
        child = self._children[admitted] = self._metric.labels(*admitted)
        return child


class Metrics:
    """All of the gateway's metrics. Every method is thread-safe and does no I/O."""

    def __init__(self, *, max_values: dict[str, int] = MAX_VALUES, max_series: int = MAX_SERIES) -> None:
        self._registry = CollectorRegistry(auto_describe=True)
        caps = _Caps(max_values)

        def labelled(metric: C, instrument: names.Instrument) -> _Children[C]:
            return _Children(metric, instrument.labels, caps, max_series)

        def counter(instrument: names.Instrument) -> _Children[Counter]:
            metric = Counter(instrument.name, instrument.help, instrument.labels, registry=self._registry)
            return labelled(metric, instrument)

        def gauge(instrument: names.Instrument) -> Gauge:
            return Gauge(instrument.name, instrument.help, instrument.labels, registry=self._registry)

        def histogram(instrument: names.Instrument, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(
                instrument.name,
                instrument.help,
                instrument.labels,
                registry=self._registry,
                buckets=buckets,
            )

        duration = names.DURATION_BUCKETS_S
        self._requests = counter(names.REQUESTS)
        self._request_duration = labelled(histogram(names.REQUEST_DURATION, duration), names.REQUEST_DURATION)
        self._attempt_duration = labelled(histogram(names.ATTEMPT_DURATION, duration), names.ATTEMPT_DURATION)
        self._decision_duration = histogram(names.DECISION_DURATION, names.DECISION_BUCKETS_S)
        self._excluded = counter(names.EXCLUDED)
        self._inflight = gauge(names.INFLIGHT)
        self._cost = counter(names.COST)
        self._endpoint_up = labelled(gauge(names.ENDPOINT_UP), names.ENDPOINT_UP)
        self._devices = labelled(gauge(names.DEVICES), names.DEVICES)
        self._config_revision = gauge(names.CONFIG_REVISION)
        self._forecast_error = labelled(
            histogram(names.FORECAST_ERROR, names.RATIO_BUCKETS), names.FORECAST_ERROR
        )
        self._told = {instrument.name: gauge(instrument) for instrument in names.TOLD.values()}
        self._dropped = counter(names.TELEMETRY_DROPPED)
        for signal in (names.SIGNAL_SPANS, names.SIGNAL_METRICS):
            self._dropped(signal)

    def request_started(self) -> None:
        self._inflight.inc()

    def decided(self, event: Decided) -> None:
        """Counts every rule that excluded a candidate; notes that only explain are not counted."""
        self._decision_duration.observe(event.ended - event.started)
        for candidate in event.decision.candidates:
            if candidate.verdict is Verdict.EXCLUDED:
                for rule in {note.rule for note in candidate.reasons} - names.INFORMATIVE_RULES:
                    self._excluded(rule).inc()

    def attempt_ended(self, event: AttemptEnded) -> None:
        """Cost is counted whatever the outcome: an attempt that was made is paid for."""
        duration = event.ended - event.started
        self._attempt_duration(event.endpoint, event.outcome.value).observe(duration)
        if event.cost:
            self._cost(event.tenant, event.model, event.endpoint).inc(event.cost)
        if event.outcome is Outcome.OK and event.predicted_p50_ms:
            predicted = event.predicted_p50_ms / 1000
            self._forecast_error(event.endpoint).observe(abs(duration - predicted) / predicted)

    def request_ended(self, event: RequestEnded) -> None:
        self._inflight.dec()
        self._requests(event.model, event.tenant, event.policy, event.privacy, event.tier, event.code).inc()
        self._request_duration(event.model, event.tier).observe(
            event.ended - event.received,
            {"trace_id": event.trace_id} if event.trace_id is not None else None,
        )

    def endpoint_up(self, endpoint: str, up: bool) -> None:
        self._endpoint_up(endpoint).set(1 if up else 0)

    def devices(self, groups: Iterable[Group]) -> None:
        """The devices of all groups as they are now; one that is in several counts once. Linear in
        their number."""
        by_name = {device.name: device for group in groups for device in group.devices.values()}
        counts = Count(map(_state, by_name.values()))
        for state in names.DEVICE_STATES:
            self._devices(state).set(counts[state])

    def config_revision(self, revision: str) -> None:
        """Makes `revision` the only one reported."""
        self._config_revision.clear()
        self._config_revision.labels(revision).set(1)

    def told(self, rows: Iterable[ToldGauge]) -> None:
        """What control knows, in place of all that it told before. Rows of no gauge of names.TOLD, of other
        labels than it has, or beyond MAX_TOLD, are left out."""
        by_name: dict[str, list[tuple[tuple[str, ...], float]]] = {name: [] for name in self._told}
        for name, labels, value in rows:
            known = names.TOLD.get(name)
            if known is not None and len(labels) == len(known.labels) and len(by_name[name]) < MAX_TOLD:
                by_name[name].append((tuple(labels), value))
        for name, found in by_name.items():
            metric = self._told[name]
            if not names.TOLD[name].labels:
                metric.set(found[0][1] if found else 0)
                continue
            metric.clear()
            for labels, value in found:
                metric.labels(*labels).set(value)

    def telemetry_dropped(self, signal: str, count: int) -> None:
        """`signal` is names.SIGNAL_SPANS or names.SIGNAL_METRICS."""
        self._dropped(signal).inc(count)

    def collect(self) -> Iterator[Metric]:
        """The metric families with their samples, without the `_created` ones, which would double
        every series and say only when it began."""
        for family in self._registry.collect():
            family.samples = [s for s in family.samples if not s.name.endswith("_created")]
            yield family


def _state(device: Device) -> str:
    connected, drained, away = names.DEVICE_STATES
    if not device.connected:
        return away
    return drained if device.drained else connected
