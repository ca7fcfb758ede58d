"""Export over real sockets: a receiver that works, one that never answers, one that refuses."""

import http.client
import json
import logging
import random
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway.core.call import Binding
from gateway.core.config import ModelConfig, VariantConfig
from gateway.core.config import Telemetry as TelemetryConfig
from gateway.core.decision import Candidate, Decision, Outcome, Prediction, Verdict
from gateway.core.place import Place, Tier
from gateway.core.request import Options
from gateway.telemetry import Telemetry
from gateway.telemetry.merged import as_text
from gateway.telemetry.otlp import METRICS_PATH, TRACES_PATH, Poster, resource
from gateway.telemetry.otlp_metrics import MetricExporter
from gateway.telemetry.otlp_spans import SpanExporter
from gateway.telemetry.spans import Span, Tracing
from tests.support.otlp import Blackhole, OtlpReceiver, Refused

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
VARIANT = VariantConfig(endpoint="gpu")
CHOSEN = Candidate(VARIANT, Place(Tier.CLOUD), Verdict.CHOSEN, predicted=Prediction(latency_p50_ms=4.0))
DECISION = Decision(
    id="d-1",
    wall_time=0.0,
    model="digits",
    version="",
    privacy=("internal",),
    policy="fast",
    revision="r",
    candidates=(CHOSEN,),
    plan=(CHOSEN,),
    model_config=ModelConfig(name="digits", variants=(VARIANT,)),
)
RESOURCE = resource("gw", "0")


class Dropped:
    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        with self._lock:
            self.count += count


@contextmanager
def exporting(url: str, dropped: Dropped, **options: float) -> Iterator[SpanExporter]:
    exporter = SpanExporter(Poster(url, TRACES_PATH, "spans"), RESOURCE, dropped, **options)  # type: ignore[arg-type]
    exporter.start()
    try:
        yield exporter
    finally:
        exporter.close(time.monotonic() + 0.5)
        exporter.join()


def put_spans(put, count: int) -> None:
    tracing = Tracing(put, 1.0, random.Random(count))
    for _ in range(count):
        trace = tracing.request(None, None, 1.0, {})
        trace.end(trace.root, 2.0, {"tidegate.code": "ok"})


def serve_one(telemetry: Telemetry, options: Options) -> tuple[tuple[str, str], ...]:
    now = time.monotonic()
    request = telemetry.request(now, options, Binding.GRPC)
    request.decided(DECISION, now, now + 0.0001)
    attempt = request.attempt(CHOSEN, now + 0.0001)
    attempt.ended(Outcome.OK, now + 0.005, 1e-6)
    request.ended(None, now + 0.006)
    return attempt.headers


def dropped_spans(telemetry: Telemetry) -> int:
    body, _ = as_text(list(telemetry.metrics.collect()))
    prefix = 'tidegate_telemetry_dropped_total{signal="spans"} '
    (line,) = [line for line in body.decode().splitlines() if line.startswith(prefix)]
    return int(float(line.removeprefix(prefix)))


def test_spans_and_metrics_arrive_whole_and_shutdown_flushes_them() -> None:
    with OtlpReceiver() as receiver:
        telemetry = Telemetry(TelemetryConfig(otlp_endpoint=receiver.url, sample_ratio=0.0), "gw-7")
        telemetry.start()
        telemetry.metrics.endpoint_up("gpu", True)
        headers = dict(serve_one(telemetry, Options(traceparent=f"00-{TRACE}-{CALLER}-01")))
        serve_one(telemetry, Options(traceparent=f"00-{TRACE[::-1]}-{CALLER}-00"))
        serve_one(telemetry, Options())
        telemetry.shutdown()

        spans = {span.name: span for span in receiver.trace(TRACE)}
        assert len(receiver.spans) == 3  # the unsampled ones stayed at home
        request = spans["tidegate.request"]
        attempt = spans["tidegate.attempt"]
        assert request.parent_id == CALLER
        assert spans["tidegate.decide"].parent_id == attempt.parent_id == request.span_id
        assert headers["traceparent"] == f"00-{TRACE}-{attempt.span_id}-01"
        assert (request.kind, attempt.kind, spans["tidegate.decide"].kind) == ("server", "client", "internal")
        assert attempt.end_ns - attempt.start_ns == pytest.approx(4.9e6, abs=1e4)
        assert request.attributes["tidegate.code"] == "ok"
        assert request.resource["service.name"] == "tidegate"
        assert request.resource["service.instance.id"] == "gw-7"

        requests = receiver.metrics["tidegate_requests_total"].sum
        assert requests.is_monotonic
        assert requests.aggregation_temporality == 2  # cumulative
        assert requests.data_points[0].as_double == 3
        assert receiver.metrics["tidegate_endpoint_up"].gauge.data_points[0].as_double == 1
        (duration,) = receiver.metrics["tidegate_request_duration_seconds"].histogram.data_points
        assert duration.count == 3
        assert duration.sum == pytest.approx(0.018, abs=1e-4)
        by_bound = dict(zip(duration.explicit_bounds, duration.bucket_counts, strict=False))
        assert by_bound[0.01] == 3  # not cumulative, as OTLP wants them
        assert sum(duration.bucket_counts) == 3
        assert len(duration.bucket_counts) == len(duration.explicit_bounds) + 1
        assert [e.trace_id.hex() for e in duration.exemplars] == [TRACE]
        assert {a.key: a.value.string_value for a in duration.attributes} == {
            "model": "digits",
            "tier": "cloud",
        }
        assert dropped_spans(telemetry) == 0
        assert receiver.unreadable == []


def test_every_span_arrives_once_when_the_receiver_stumbles_and_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dropped = Dropped()
    caplog.set_level(logging.INFO, "gateway.telemetry")
    with (
        OtlpReceiver(statuses=[503, 429]) as receiver,
        exporting(receiver.url, dropped, interval_s=0.02) as exporter,
    ):
        put_spans(exporter.put, 1000)
        receiver.wait_for(lambda r: len(r.spans) >= 1000)
        assert len({span.span_id for span in receiver.spans}) == len(receiver.spans) == 1000
        assert dropped.count == 0
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2  # one line when it fails, one when it works again
    assert "fails (HTTP 503)" in messages[0]
    assert "works again" in messages[1]


def test_a_receiver_that_restarts_gets_what_waited() -> None:
    dropped = Dropped()
    with OtlpReceiver() as first:
        port = first.port
        exporter = SpanExporter(Poster(first.url, TRACES_PATH, "spans"), RESOURCE, dropped, interval_s=0.02)
        exporter.start()
        put_spans(exporter.put, 10)
        first.wait_for(lambda r: len(r.spans) == 10)
    put_spans(exporter.put, 20)
    with OtlpReceiver(port=port) as second:
        second.wait_for(lambda r: len(r.spans) == 20)
        exporter.close(time.monotonic() + 5)
        exporter.join()
    assert dropped.count == 0


def test_what_the_receiver_refuses_for_good_is_counted_and_not_sent_again() -> None:
    dropped = Dropped()
    with (
        OtlpReceiver(statuses=[400], rejected=2) as receiver,
        exporting(receiver.url, dropped, interval_s=0.02) as exporter,
    ):
        put_spans(exporter.put, 5)
        receiver.wait_for(lambda r: r.posts == 1)
        put_spans(exporter.put, 7)
        receiver.wait_for(lambda r: len(r.spans) == 7)
    assert dropped.count == 5 + 2


@pytest.mark.parametrize("away", [Blackhole, Refused])
def test_with_the_receiver_away_memory_is_bounded_and_every_loss_is_counted(away) -> None:
    dropped = Dropped()
    with away() as receiver:
        exporter = SpanExporter(
            Poster(receiver.url, TRACES_PATH, "spans"), RESOURCE, dropped, capacity=1000, interval_s=0.02
        )
        exporter.start()
        put_spans(exporter.put, 5000)
        held = 5000 - dropped.count
        assert held <= 1000 + 256 * 2  # the queue, and what the thread took while it was being filled
        exporter.close(time.monotonic() + 0.3)
        exporter.join()
        assert dropped.count == 5000
        put_spans(exporter.put, 3)
        assert dropped.count == 5003


@pytest.mark.parametrize("away", [Blackhole, Refused])
def test_shutdown_ends_within_its_bound_and_counts_what_it_leaves(away) -> None:
    with away() as receiver:
        telemetry = Telemetry(TelemetryConfig(otlp_endpoint=receiver.url, sample_ratio=1.0), "gw")
        telemetry.start()
        for _ in range(600):
            serve_one(telemetry, Options())
        if isinstance(receiver, Blackhole):
            receiver.wait_connected()  # an export is under way and will not end by itself
        begun = time.monotonic()
        telemetry.shutdown(1.0)
        assert time.monotonic() - begun < 4.0
        assert dropped_spans(telemetry) == 1800


def test_shutdown_before_start_neither_hangs_nor_raises() -> None:
    with Refused() as receiver:
        telemetry = Telemetry(TelemetryConfig(otlp_endpoint=receiver.url, sample_ratio=1.0), "gw")
        serve_one(telemetry, Options())
        telemetry.shutdown(0.2)
        assert dropped_spans(telemetry) == 3


def test_a_receiver_that_is_away_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Refused() as receiver:
        poster = Poster(receiver.url, METRICS_PATH, "metrics")
        for _ in range(20):
            assert not poster.post(b"x").ok
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        (
            "WARNING",
            "OTLP export of metrics to 127.0.0.1 fails (ConnectionRefusedError); requests are not affected",
        )
    ]


def test_metrics_are_pushed_again_and_again_and_a_failed_push_is_counted() -> None:
    dropped = Dropped()
    telemetry = Telemetry(TelemetryConfig(), "gw")
    with OtlpReceiver(statuses=[503]) as receiver:
        exporter = MetricExporter(
            Poster(receiver.url, METRICS_PATH, "metrics"),
            RESOURCE,
            telemetry.metrics.collect,
            dropped,
            interval_s=0.02,
        )
        exporter.start()
        receiver.wait_for(lambda r: "tidegate_inflight" in r.metrics)
        telemetry.metrics.request_started()
        receiver.wait_for(lambda r: r.metrics["tidegate_inflight"].gauge.data_points[0].as_double == 1)
        exporter.close(time.monotonic() + 5)
        exporter.join()
    assert dropped.count == 1


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with Refused() as proxy, OtlpReceiver() as receiver:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("all_proxy", proxy.url)
        poster = Poster(receiver.url, TRACES_PATH, "spans")
        assert poster.post(b"").ok
        poster.close()


def test_headers_of_the_environment_go_with_every_post_and_into_no_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    given = "Authorization=Basic%20c2VjcmV0OnBhc3M=, x-scope = tenant%2C7 ,content-type=text/plain,,secret,a b=secret,x=%0Asecret"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", given)
    with OtlpReceiver() as receiver:
        telemetry = Telemetry(TelemetryConfig(otlp_endpoint=receiver.url, sample_ratio=1.0), "gw")
        telemetry.start()
        serve_one(telemetry, Options())
        telemetry.shutdown()
        assert receiver.posts >= 2  # spans and metrics
        assert len(receiver.spans) == 3
        assert "tidegate_requests_total" in receiver.metrics
    for headers in receiver.headers:
        assert headers["authorization"] == "Basic c2VjcmV0OnBhc3M="
        assert headers["x-scope"] == "tenant,7"
        assert headers["content-type"] == "application/x-protobuf"
        assert "x" not in headers
    assert "entry 5 of OTEL_EXPORTER_OTLP_HEADERS is not NAME=VALUE" in caplog.text
    assert "entry 7" in caplog.text
    assert "secret" not in caplog.text
    assert "c2Vj" not in caplog.text


def test_a_path_in_the_address_is_kept() -> None:
    with OtlpReceiver() as receiver:
        poster = Poster(receiver.url + "/tenant/", TRACES_PATH, "spans")
        sent = poster.post(b"")
        poster.close()
    assert (sent.ok, sent.retry) == (False, False)  # the receiver knows no /tenant/v1/traces


def test_the_receiver_reads_the_json_that_tritons_exporter_sends() -> None:
    span = {
        "name": "InferRequest",
        "traceId": TRACE,
        "spanId": CALLER,
        "parentSpanId": CALLER[::-1],
        "kind": 2,
    }
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "triton"}}]}
    body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}
    with OtlpReceiver() as receiver:
        connection = http.client.HTTPConnection("127.0.0.1", receiver.port)
        connection.request("POST", TRACES_PATH, json.dumps(body), {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200
        connection.close()
        (seen,) = receiver.trace(TRACE)
    assert (seen.name, seen.span_id, seen.parent_id) == ("InferRequest", CALLER, CALLER[::-1])
    assert (seen.kind, seen.service) == ("server", "triton")


@pytest.mark.quiet
def test_requests_cost_the_same_with_the_receiver_blackholed() -> None:
    """Paired and generous: a put that waited for the network once would be off by orders of magnitude."""
    ratios: list[float] = []
    with OtlpReceiver() as up, Blackhole() as blackhole:
        pair = []
        for url in (up.url, blackhole.url):
            telemetry = Telemetry(TelemetryConfig(otlp_endpoint=url, sample_ratio=1.0), "gw")
            telemetry.start()
            pair.append(telemetry)
        for telemetry in pair:
            timed(telemetry, 300)
        blackhole.wait_connected()
        for turn in range(20):
            order = pair if turn % 2 else pair[::-1]
            took = {id(telemetry): timed(telemetry, 100) for telemetry in order}
            ratios.append(took[id(pair[1])] / took[id(pair[0])])
        for telemetry in pair:
            telemetry.shutdown(1.0)
    assert statistics.median(ratios) < 2.0


def timed(telemetry: Telemetry, requests: int) -> float:
    begun = time.perf_counter()
    for _ in range(requests):
        serve_one(telemetry, Options())
    return time.perf_counter() - begun


def test_the_longest_single_put_is_no_wait_for_the_network() -> None:
    dropped = Dropped()
    spans: list[Span] = []
    put_spans(spans.append, 3000)
    with Blackhole() as receiver, exporting(receiver.url, dropped, interval_s=0.01) as exporter:
        worst = 0.0
        for span in spans:
            begun = time.perf_counter()
            exporter.put(span)
            worst = max(worst, time.perf_counter() - begun)
    assert worst < 1.0  # a POST there lasts until its timeout of seconds
