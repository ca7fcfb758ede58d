"""The metrics to an OTLP receiver, every few seconds from a thread of its own.

Cumulative temporality, under the same names as the scrape: a push that fails loses nothing that
the next one does not bring, so it is counted and not tried again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from gateway.telemetry.otlp import TIMEOUT_S, Poster, key_value

_INTERVAL_S = 10.0
_LAST_TIMEOUT_S = 1.0
_CUMULATIVE = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE


class MetricExporter:
    """Pushes what `collect` yields. `dropped(1)` is told of every push that failed."""

    def __init__(
        self,
        poster: Poster,
        resource: Resource,
        collect: Callable[[], Iterable[Metric]],
        dropped: Callable[[int], None],
        *,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        self._poster = poster
        self._resource = resource
        self._collect = collect
        self._dropped = dropped
        self._interval_s = interval_s
        self._start_ns = time.time_ns()
        self._closing = threading.Event()
        self._give_up_at = 0.0
        self._thread = threading.Thread(target=self._run, name="otlp-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, give_up_at: float) -> None:
        """Begin to stop, with a last push before the monotonic instant `give_up_at`. Returns at once."""
        self._give_up_at = give_up_at
        self._closing.set()

    def join(self) -> None:
        """Wait for the end that `close` began, at most until `give_up_at`."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, self._give_up_at - time.monotonic()))

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._push(TIMEOUT_S)
        if (left := self._give_up_at - time.monotonic()) > 0:
            self._push(min(left, _LAST_TIMEOUT_S))
        self._poster.close()

    def _push(self, timeout_s: float) -> None:
        message = encode(self._collect(), self._resource, self._start_ns, time.time_ns())
        if not self._poster.post(message.SerializeToString(), timeout_s).ok:
            self._dropped(1)


def encode(
    families: Iterable[Metric], resource: Resource, start_ns: int, now_ns: int
) -> ExportMetricsServiceRequest:
    """Counters as monotonic sums, gauges and histograms as themselves; one point per series, all
    counted since `start_ns`. Instants are nanoseconds since the epoch."""
    request = ExportMetricsServiceRequest()
    group = request.resource_metrics.add(resource=resource).scope_metrics.add()
    group.scope.name = "gateway.telemetry"
    for family in families:
        metric = group.metrics.add(name=family.name, description=family.documentation)
        if family.name.endswith("_seconds"):
            metric.unit = "s"
        if family.type == "histogram":
            metric.histogram.aggregation_temporality = _CUMULATIVE
            metric.histogram.data_points.extend(_histograms(family, start_ns, now_ns))
        elif family.type == "counter":
            metric.name = f"{family.name}_total"
            metric.sum.aggregation_temporality = _CUMULATIVE
            metric.sum.is_monotonic = True
            metric.sum.data_points.extend(_number(s, start_ns, now_ns) for s in family.samples)
        else:
            metric.gauge.data_points.extend(_number(s, 0, now_ns) for s in family.samples)
    return request


def _number(sample: Sample, start_ns: int, now_ns: int) -> metrics_pb2.NumberDataPoint:
    return metrics_pb2.NumberDataPoint(
        attributes=[key_value(k, v) for k, v in sample.labels.items()],
        start_time_unix_nano=start_ns,
        time_unix_nano=now_ns,
        as_double=sample.value,
    )


class _Series(NamedTuple):
    """One histogram as it is scraped: (upper bound, running count) per bucket, then the sum."""

    buckets: list[Sample]
    total: list[float]


def _histograms(family: Metric, start_ns: int, now_ns: int) -> list[metrics_pb2.HistogramDataPoint]:
    series: dict[tuple[tuple[str, str], ...], _Series] = {}
    for sample in family.samples:
        labels = tuple(item for item in sample.labels.items() if item[0] != "le")
        one = series.setdefault(labels, _Series([], []))
        if sample.name.endswith("_bucket"):
            one.buckets.append(sample)
        elif sample.name.endswith("_sum"):
            one.total.append(sample.value)
    return [_histogram(labels, one, start_ns, now_ns) for labels, one in series.items()]


def _histogram(
    labels: tuple[tuple[str, str], ...], series: _Series, start_ns: int, now_ns: int
) -> metrics_pb2.HistogramDataPoint:
    running = [int(sample.value) for sample in series.buckets]
    point = metrics_pb2.HistogramDataPoint(
        attributes=[key_value(k, v) for k, v in labels],
        start_time_unix_nano=start_ns,
        time_unix_nano=now_ns,
        count=running[-1],
        sum=series.total[0],
        explicit_bounds=[float(sample.labels["le"]) for sample in series.buckets[:-1]],
        bucket_counts=[b - a for a, b in zip([0, *running], running, strict=False)],
    )
    for sample in series.buckets:
        if sample.exemplar is not None and sample.exemplar.timestamp is not None:
            point.exemplars.add(
                time_unix_nano=int(float(sample.exemplar.timestamp) * 1e9),
                as_double=sample.exemplar.value,
                trace_id=bytes.fromhex(sample.exemplar.labels["trace_id"]),
            )
    return point
