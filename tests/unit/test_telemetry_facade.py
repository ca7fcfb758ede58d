from dataclasses import replace

import pytest

from gateway.core.call import Binding
from gateway.core.config import ModelConfig, VariantConfig
from gateway.core.config import Telemetry as TelemetryConfig
from gateway.core.decision import Candidate, Decision, Note, Outcome, Prediction, Verdict
from gateway.core.fleet import Device, group_of
from gateway.core.place import Place, Tier
from gateway.core.ports import RemoteSpan
from gateway.core.request import Options
from gateway.telemetry import Telemetry
from gateway.telemetry.merged import as_text
from gateway.telemetry.spans import Span, Tracing
from oip.reasons import Reason

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = f"00-{TRACE}-b7ad6b7169203331-01"
VARIANT = VariantConfig(endpoint="gpu")
MODEL = ModelConfig(name="digits", variants=(VARIANT,))
CHOSEN = Candidate(VARIANT, Place(Tier.CLOUD), Verdict.CHOSEN, predicted=Prediction(latency_p50_ms=4.0))


def decision(**changes: object) -> Decision:
    fields: dict[str, object] = {
        "id": "d-1",
        "wall_time": 0.0,
        "model": "digits",
        "version": "",
        "privacy": ("internal", "personal"),
        "policy": "fast",
        "revision": "r",
        "candidates": (CHOSEN,),
        "plan": (CHOSEN,),
        "model_config": MODEL,
    }
    return Decision(**{**fields, **changes})  # type: ignore[arg-type]


def recording() -> tuple[Telemetry, list[Span]]:
    telemetry = Telemetry(TelemetryConfig(), "gw")
    spans: list[Span] = []
    telemetry.tracing = Tracing(spans.append, 0.0)
    return telemetry, spans


def lines(telemetry: Telemetry, name: str) -> list[str]:
    body, _ = as_text(list(telemetry.metrics.collect()))
    return [line for line in body.decode().splitlines() if line.startswith(name)]


def test_one_answered_request_end_to_end() -> None:
    telemetry, spans = recording()
    request = telemetry.request(100.0, Options(traceparent=SAMPLED), Binding.GRPC)
    request.decided(decision(), 100.001, 100.002)
    first = request.attempt(CHOSEN, 100.002)
    first.ended(Outcome.UNAVAILABLE, 100.003, 0.0)
    second = request.attempt(CHOSEN, 100.003)
    second.ended(Outcome.OK, 100.007, 1e-6)
    request.ended(None, 100.008)
    request.ended(Reason.INTERNAL, 100.009)

    decide, one, two, root = spans
    assert [s.name for s in spans] == [
        "tidegate.decide",
        "tidegate.attempt",
        "tidegate.attempt",
        "tidegate.request",
    ]
    assert {s.parent_id for s in (decide, one, two)} == {root.span_id}
    assert [s.error for s in spans] == [False, True, False, False]
    assert dict(second.headers)["traceparent"] == f"00-{TRACE}-{two.span_id:016x}-01"
    assert two.attributes == {
        "tidegate.endpoint": "gpu",
        "tidegate.tier": "cloud",
        "tidegate.attempts": 2,
        "tidegate.outcome": "ok",
    }
    assert root.attributes == {
        "tidegate.binding": "grpc",
        "tidegate.gateway": "gw",
        "tidegate.model": "digits",
        "tidegate.policy": "fast",
        "tidegate.privacy": "internal&personal",
        "tidegate.decision": "d-1",
        "tidegate.attempts": 2,
        "tidegate.code": "ok",
    }
    assert lines(telemetry, "tidegate_requests_total") == [
        'tidegate_requests_total{code="ok",model="digits",policy="fast",privacy="internal&personal",'
        'tenant="_none",tier="cloud"} 1.0'
    ]
    assert lines(telemetry, "tidegate_inflight") == ["tidegate_inflight 0.0"]
    (spread,) = lines(telemetry, "tidegate_latency_forecast_error_ratio_sum")
    assert float(spread.split()[1]) == pytest.approx(0.0, abs=1e-6)


def test_a_model_that_nobody_configured_is_neither_label_nor_attribute() -> None:
    telemetry, spans = recording()
    request = telemetry.request(1.0, Options(traceparent=SAMPLED), Binding.HTTP)
    refused = decision(
        model="x" * 5000,
        model_config=None,
        policy="",
        privacy=(),
        candidates=(),
        plan=(),
        refused=Reason.UNKNOWN_MODEL,
    )
    request.decided(refused, 1.0, 1.001)
    request.ended(Reason.UNKNOWN_MODEL, 1.002)

    (line,) = lines(telemetry, "tidegate_requests_total")
    assert line.startswith('tidegate_requests_total{code="unknown_model",model="_unknown",policy="_none"')
    assert 'tier="_none"' in line
    assert "xxx" not in repr(spans)
    assert spans[0].attributes["tidegate.code"] == "unknown_model"


def test_refusals_are_the_callers_errors_and_failures_ours() -> None:
    telemetry, spans = recording()
    for reason in (Reason.PRIVACY, Reason.UNAVAILABLE):
        telemetry.request(1.0, Options(traceparent=SAMPLED), Binding.HTTP).ended(reason, 1.1)
    assert [(s.attributes["tidegate.code"], s.error) for s in spans] == [
        ("privacy", False),
        ("unavailable", True),
    ]


def test_details_of_notes_do_not_reach_spans() -> None:
    telemetry, spans = recording()
    excluded = Candidate(VARIANT, Place(Tier.CLOUD), Verdict.EXCLUDED, (Note("health", "secret words"),))
    request = telemetry.request(1.0, Options(traceparent=SAMPLED), Binding.HTTP)
    request.decided(decision(candidates=(CHOSEN, excluded), message="secret words"), 1.0, 1.1)
    assert "secret" not in repr(spans)
    assert (spans[0].attributes["tidegate.candidates"], spans[0].attributes["tidegate.excluded"]) == (2, 1)


def test_without_a_receiver_there_is_no_thread_and_the_callers_context_passes() -> None:
    telemetry = Telemetry(TelemetryConfig(sample_ratio=1.0), "gw")
    telemetry.start()
    request = telemetry.request(1.0, Options(traceparent=SAMPLED), Binding.HTTP)
    assert request.attempt(CHOSEN, 1.0).headers == (("traceparent", SAMPLED),)
    telemetry.shutdown()


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "grpc://h:4317", "http://", "http://h/?x=1"])
def test_an_address_that_is_no_http_url_is_refused_at_construction(url: str) -> None:
    with pytest.raises(ValueError, match="not the base URL"):
        Telemetry(TelemetryConfig(otlp_endpoint=url), "gw")


DEVICE = replace(CHOSEN, place=Place(Tier.DEVICE, site="plant-7", device="cam-7a"), device="cam-7a")


def told(telemetry: Telemetry, *remote: RemoteSpan, traceparent: str | None = SAMPLED) -> None:
    """One attempt at a device, from 100.002 to 100.010, of which the device said this."""
    request = telemetry.request(100.0, Options(traceparent=traceparent), Binding.GRPC)
    request.decided(decision(), 100.001, 100.002)
    attempt = request.attempt(DEVICE, 100.002)
    for span in remote:
        attempt.tell(span)
    attempt.ended(Outcome.OK, 100.010, 0.0)
    request.ended(None, 100.011)


def test_what_a_device_did_is_a_child_of_its_attempt() -> None:
    telemetry, spans = recording()
    work = RemoteSpan(
        "tidegate.agent.infer", 100.004, 100.009, {"tidegate.delegate": "xnnpack", "nodes": 12, "share": 0.5}
    )
    told(telemetry, work)
    _, child, attempt, root = spans
    assert (child.name, child.parent_id) == ("tidegate.agent.infer", attempt.span_id)
    assert attempt.parent_id == root.span_id
    assert attempt.attributes["tidegate.device"] == "cam-7a"
    assert child.attributes == {"tidegate.delegate": "xnnpack", "nodes": 12, "share": 0.5}
    assert child.end_ns - child.start_ns == pytest.approx(5e6, abs=1e3)


def test_a_devices_clock_moves_nothing_out_of_its_attempt() -> None:
    telemetry, spans = recording()
    told(telemetry, RemoteSpan("tidegate.agent.infer", 1.0, 9e9), RemoteSpan("tidegate.agent.late", 9e9, 1.0))
    _, early, late, attempt, _ = spans
    assert (early.start_ns, early.end_ns) == (attempt.start_ns, attempt.end_ns)
    assert (late.start_ns, late.end_ns) == (attempt.end_ns, attempt.end_ns)


@pytest.mark.parametrize(
    "span",
    [
        RemoteSpan("tidegate.request", 100.004, 100.009),
        RemoteSpan("tidegate.agent.", 100.004, 100.009),
        RemoteSpan("tidegate.agent.what the user said", 100.004, 100.009),
        RemoteSpan("tidegate.agent.infer", float("nan"), 100.009),
    ],
)
def test_a_device_adds_no_spans_of_other_names(span: RemoteSpan) -> None:
    telemetry, spans = recording()
    told(telemetry, span)
    assert len(spans) == 3


def test_of_a_devices_attributes_only_short_names_and_numbers_are_kept() -> None:
    telemetry, spans = recording()
    odd: dict[str, str | int | float] = {
        "a": "a sentence, perhaps a payload",
        "b": "x" * 65,
        "c": float("inf"),
        "d": 2**64,
        "Not A Key": 1,
        "e": "ok",
    }
    told(telemetry, RemoteSpan("tidegate.agent.infer", 100.004, 100.009, odd))
    assert spans[1].attributes == {"e": "ok"}
    many = {f"k{n:02}": n for n in range(40)}
    told(telemetry, RemoteSpan("tidegate.agent.infer", 100.004, 100.009, many))
    assert len(spans[5].attributes) == 16


def test_a_device_cannot_fill_a_trace() -> None:
    telemetry, spans = recording()
    told(telemetry, *[RemoteSpan("tidegate.agent.infer", 100.004, 100.009)] * 100)
    assert len(spans) == 3 + 16


def test_devices_are_counted_once_by_what_they_are() -> None:
    telemetry, _ = recording()

    def device(name: str, connected: bool, drained: bool = False) -> Device:
        return Device(name, Place(Tier.DEVICE, site="s", device=name), connected, drained)

    shared = device("a", True)
    one = group_of([shared, device("b", True, True), device("c", False), device("d", False, True)])
    telemetry.metrics.devices([one, group_of([shared])])
    assert lines(telemetry, "tidegate_devices{") == [
        'tidegate_devices{state="connected"} 1.0',
        'tidegate_devices{state="drained"} 1.0',
        'tidegate_devices{state="away"} 2.0',
    ]
