import pytest

from gateway.core.call import Binding
from gateway.core.config import ModelConfig, VariantConfig
from gateway.core.config import Telemetry as TelemetryConfig
from gateway.core.decision import Candidate, Decision, Note, Outcome, Prediction, Verdict
from gateway.core.place import Place, Tier
from gateway.core.request import Options
from gateway.telemetry import Telemetry
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
    body, _ = telemetry.metrics.render()
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
