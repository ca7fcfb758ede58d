import random
import time

import pytest

from gateway.telemetry.spans import Kind, Span, Tracing

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"


def tracing(ratio: float = 1.0, seed: int = 1) -> tuple[Tracing, list[Span]]:
    spans: list[Span] = []
    return Tracing(spans.append, ratio, random.Random(seed)), spans


def test_a_sampled_caller_is_recorded_below_its_own_span_whatever_the_ratio() -> None:
    tracer, spans = tracing(ratio=0.0)
    now = time.monotonic()
    trace = tracer.request(f"00-{TRACE}-{CALLER}-01", "vendor=x", now, {"a": "b"})
    attempt = trace.child("tidegate.attempt", now, {"endpoint": "e"}, Kind.CLIENT)
    assert attempt is not None
    headers = dict(trace.headers_for(attempt))
    trace.end(attempt, now + 0.5, {"outcome": "ok"})
    trace.end(trace.root, now + 1, {"code": "ok"})

    assert headers == {"traceparent": f"00-{TRACE}-{attempt.span_id:016x}-01", "tracestate": "vendor=x"}
    child, root = spans
    assert (f"{root.trace_id:032x}", f"{root.parent_id:016x}", root.parent_remote) == (TRACE, CALLER, True)
    assert (child.trace_id, child.parent_id, child.parent_remote) == (root.trace_id, root.span_id, False)
    assert child.attributes == {"endpoint": "e", "outcome": "ok"}
    assert child.end_ns - child.start_ns == pytest.approx(5e8, abs=1e3)
    assert root.end_ns - root.start_ns == pytest.approx(1e9, abs=1e3)


def test_span_times_are_of_the_wall_clock() -> None:
    tracer, spans = tracing()
    before = time.time_ns()
    trace = tracer.request(None, None, time.monotonic(), {})
    trace.end(trace.root, time.monotonic(), {})
    after = time.time_ns()
    slack = 50_000_000
    assert before - slack <= spans[0].start_ns <= spans[0].end_ns <= after + slack


def test_an_unsampled_caller_records_nothing_and_goes_on_as_unsampled_under_its_trace() -> None:
    tracer, spans = tracing(ratio=1.0)
    trace = tracer.request(f"00-{TRACE}-{CALLER}-00", "vendor=x", 1.0, {})
    attempt = trace.child("tidegate.attempt", 1.0, {})
    headers = dict(trace.headers_for(attempt))
    trace.end(attempt, 2.0, {})
    trace.end(trace.root, 2.0, {})

    assert spans == []
    assert trace.trace_id is None
    version, trace_id, span_id, flags = headers["traceparent"].split("-")
    assert (version, trace_id, flags) == ("00", TRACE, "00")
    assert span_id not in (CALLER, "0" * 16)
    assert headers["tracestate"] == "vendor=x"


def test_without_a_caller_the_ratio_decides_by_the_low_half_of_the_trace_id() -> None:
    tracer, _ = tracing(ratio=0.25, seed=7)
    kept = 0
    for _ in range(4000):
        trace = tracer.request(None, None, 0.0, {})
        value = dict(trace.headers_for(None))["traceparent"].split("-")
        assert trace.sampled is (int(value[1][16:], 16) < 2**62)
        assert value[3] == ("01" if trace.sampled else "00")
        kept += trace.sampled
    assert 850 < kept < 1150


@pytest.mark.parametrize(("ratio", "sampled"), [(0.0, False), (1.0, True)])
def test_the_ends_of_the_ratio(ratio: float, sampled: bool) -> None:
    tracer, _ = tracing(ratio)
    assert {tracer.request(None, None, 0.0, {}).sampled for _ in range(500)} == {sampled}


def test_a_broken_traceparent_begins_a_new_trace_and_drops_its_tracestate() -> None:
    tracer, _ = tracing()
    trace = tracer.request(f"00-{TRACE}-{CALLER}-0g", "vendor=x", 0.0, {})
    headers = trace.headers_for(trace.root)
    assert [name for name, _ in headers] == ["traceparent"]
    assert TRACE not in headers[0][1]
    assert trace.root is not None
    assert trace.root.parent_id == 0


@pytest.mark.parametrize("flags", ["00", "01"])
def test_without_an_exporter_the_callers_context_goes_on_untouched(flags: str) -> None:
    tracer = Tracing(None, 1.0)
    sent = f"00-{TRACE}-{CALLER}-{flags}"
    trace = tracer.request(sent, "vendor=x", 0.0, {})
    assert not trace.sampled
    assert trace.headers_for(None) == (("traceparent", sent), ("tracestate", "vendor=x"))
    assert tracer.request(None, None, 0.0, {}).headers_for(None) == ()


def test_ids_differ_between_requests_and_processes_alike() -> None:
    tracers = [Tracing(lambda span: None, 1.0) for _ in range(2)]
    ids = {t.request(None, None, 0.0, {}).trace_id for t in tracers for _ in range(100)}
    assert len(ids) == 200
