"""One request from top to bottom, over endpoints that do as they are told."""

from __future__ import annotations

import asyncio

import pytest
from tritonclient.grpc import service_pb2

from gateway.core.call import Binding, Reply
from gateway.core.config import EndpointConfig
from gateway.core.errors import Refusal, TidegateError
from gateway.core.request import Options, Request
from gateway.pipeline.dispatch import Course, Dispatcher
from gateway.telemetry.merged import as_text
from oip.reasons import Reason
from oip.scan import scan_request
from tests.support.fakes import (
    CODEC,
    BytesBody,
    EndlessBody,
    FakeEndpoint,
    answers,
    bench,
    call_of,
    config_of,
    failure,
    request,
    response,
)


def headers(reply: Reply) -> dict[str, str]:
    return dict(reply.metadata)


def fails(endpoint: FakeEndpoint, error: TidegateError) -> None:
    async def behaviour(message: service_pb2.ModelInferRequest, timeout_s: float) -> bytes:
        raise error

    endpoint.behaviour = behaviour


def hangs(endpoint: FakeEndpoint) -> asyncio.Event:
    """The endpoint never answers; the event says that it was asked."""
    asked = asyncio.Event()

    async def behaviour(message: service_pb2.ModelInferRequest, timeout_s: float) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        return b""

    endpoint.behaviour = behaviour
    return asked


async def test_answer_names_who_answered_and_under_what():
    b = await bench()
    reply = await b.director.infer(call_of(), CODEC)
    assert reply.error is None
    assert service_pb2.ModelInferResponse.FromString(reply.body).model_name == "digits"
    found = headers(reply)
    assert (found["tidegate-endpoint"], found["tidegate-tier"]) == ("site", "site")
    assert (found["tidegate-policy"], found["tidegate-attempts"], found["tidegate-cost"]) == ("all", "1", "0")
    record = b.records.get(found["tidegate-decision"])
    assert record is not None
    assert record["chosen"] == "site"
    assert [(a["endpoint"], a["outcome"]) for a in record["attempts"]] == [("site", "ok")]


async def test_variant_gets_its_own_name_and_version_and_the_caller_its_own():
    b = await bench()
    fails(b.endpoints["site"], failure(Reason.UNAVAILABLE))
    reply = await b.director.infer(call_of(), CODEC)
    (sent,) = b.endpoints["cloud"].seen
    assert (sent.model_name, sent.model_version, sent.id) == ("digits-big", "3", "r1")
    answer = service_pb2.ModelInferResponse.FromString(reply.body)
    assert (answer.model_name, answer.model_version) == ("digits", "3")


async def test_failed_idempotent_request_goes_to_the_next_place():
    b = await bench()
    fails(b.endpoints["site"], failure(Reason.UNAVAILABLE))
    reply = await b.director.infer(call_of(), CODEC)
    assert headers(reply)["tidegate-endpoint"] == "cloud"
    assert headers(reply)["tidegate-attempts"] == "2"
    record = b.records.get(headers(reply)["tidegate-decision"])
    assert record is not None
    assert [a["outcome"] for a in record["attempts"]] == ["unavailable", "ok"]
    assert b.looked == ["site"]
    assert not b.state.snapshot.endpoints["site"].up


@pytest.mark.parametrize(
    ("sent", "option", "places"),
    [(True, None, ["site"]), (False, None, ["site", "cloud"]), (True, "true", ["site", "cloud"])],
)
async def test_without_idempotence_only_what_never_left_is_sent_again(sent, option, places):
    models = [{**config_of().models[0].model_dump(), "idempotent": False}]
    b = await bench(config_of(models=models))
    fails(b.endpoints["site"], failure(Reason.UNAVAILABLE, sent=sent))
    options = {} if option is None else {"idempotent": option}
    reply = await b.director.infer(call_of(**options), CODEC)
    assert [name for name, e in b.endpoints.items() if e.seen] == places
    assert (reply.error is None) == (len(places) == 2)


async def test_caller_may_forbid_repeating_an_idempotent_model():
    b = await bench()
    fails(b.endpoints["site"], failure(Reason.UNAVAILABLE))
    reply = await b.director.infer(call_of(idempotent="false"), CODEC)
    assert reply.error is not None
    assert reply.error.reason is Reason.UNAVAILABLE
    assert not b.endpoints["cloud"].seen


async def test_verdict_on_the_request_is_not_tried_elsewhere():
    b = await bench()
    fails(b.endpoints["site"], failure(Reason.MALFORMED, retryable=False))
    reply = await b.director.infer(call_of(), CODEC)
    assert reply.error is not None
    assert reply.error.reason is Reason.MALFORMED
    assert not b.endpoints["cloud"].seen
    assert b.state.snapshot.endpoints["site"].up


async def test_retry_never_leaves_the_class():
    b = await bench()
    for name in ("site", "cloud"):
        fails(b.endpoints[name], failure(Reason.UNAVAILABLE))
    reply = await b.director.infer(call_of(privacy="eu"), CODEC)
    assert reply.error is not None
    assert headers(reply)["tidegate-attempts"] == "2"
    assert not b.endpoints["far"].seen


async def test_retries_end_with_the_policy_number():
    policies = [{"name": "one", "match": {}, "weights": {"quality": 1}, "retry": {"num_retries": 1}}]
    b = await bench(config_of(policies=policies))
    for endpoint in b.endpoints.values():
        fails(endpoint, failure(Reason.UNAVAILABLE))
    reply = await b.director.infer(call_of(), CODEC)
    assert headers(reply)["tidegate-attempts"] == "2"


async def test_empty_retry_budget_ends_the_request_with_its_first_failure():
    retry = {"num_retries": 1, "budget_percent": 0, "min_concurrent": 0}
    b = await bench(
        config_of(policies=[{"name": "p", "match": {}, "weights": {"quality": 1}, "retry": retry}])
    )
    fails(b.endpoints["site"], failure(Reason.UNAVAILABLE))
    reply = await b.director.infer(call_of(), CODEC)
    assert headers(reply)["tidegate-attempts"] == "1"
    assert reply.error is not None


async def test_body_over_the_buffer_gets_one_attempt():
    gateway = {"name": "gw", "location": {"tier": "site", "site": "s1"}, "limits": {"buffer_mb": 0.001}}
    b = await bench(config_of(gateway=gateway))
    fails(b.endpoints["site"], failure(Reason.UNAVAILABLE))
    reply = await b.director.infer(call_of(request(payload=b"\0" * 4096)), CODEC)
    assert headers(reply)["tidegate-attempts"] == "1"
    assert not b.endpoints["cloud"].seen


async def test_class_that_forbids_the_gateway_is_refused_before_the_body():
    b = await bench()
    body = BytesBody(request())
    reply = await b.director.infer(call_of(body, privacy="own"), CODEC)
    assert reply.error is not None
    assert reply.error.reason is Reason.PRIVACY
    assert "own" in reply.error.message
    assert not body.was_read


async def test_model_class_that_forbids_the_gateway_is_refused_once_the_name_is_known():
    models = [{**config_of().models[0].model_dump(), "privacy": "own"}]
    b = await bench(config_of(models=models))
    reply = await b.director.infer(call_of(), CODEC)
    assert reply.error is not None
    assert reply.error.reason is Reason.PRIVACY
    assert not any(e.seen for e in b.endpoints.values())


async def test_deadline_ends_a_request_that_hangs_and_bounds_the_attempt():
    b = await bench()
    hangs(b.endpoints["site"])
    reply = await b.director.infer(call_of(deadline_ms="60"), CODEC)
    assert reply.error is not None
    assert reply.error.reason is Reason.DEADLINE
    assert b.endpoints["site"].timeouts[0] <= 0.06
    assert b.endpoints["site"].cancelled == 1


async def test_attempt_cut_off_by_the_deadline_is_recorded_and_paid_as_such():
    endpoints = [{**e.model_dump(), "price": {"egress_per_gb": 1e9}} for e in config_of().endpoints]
    b = await bench(config_of(endpoints=endpoints))
    hangs(b.endpoints["site"])
    reply = await b.director.infer(call_of(deadline_ms="60"), CODEC)
    record = b.records.get(headers(reply)["tidegate-decision"])
    assert record is not None
    (attempt,) = record["attempts"]
    assert attempt["outcome"] == "deadline"
    assert attempt["cost"] == len(request())


async def test_requests_that_are_too_late_to_be_sent_share_no_error():
    """One that is raised again and again would keep the frames, and with them the bodies, of them all."""
    b = await bench()
    dispatcher = Dispatcher(b.state, b.endpoints, b.looked.append, lambda: 1.0)
    message = request()
    asked = Request("digits", "", Options(), len(message), None, "t-1", 0.0)
    decision = b.director.dry_run("digits", "", Options(), len(message))
    telemetry = b.telemetry.request(0.0, Options(), Binding.GRPC)
    course = Course(asked, decision, message, scan_request(message), 0.5, telemetry, [])
    errors = []
    for _ in range(2):
        with pytest.raises(Refusal) as caught:
            await dispatcher.run(course)
        errors.append(caught.value)
    assert [error.reason for error in errors] == [Reason.DEADLINE] * 2
    assert errors[0] is not errors[1]
    assert course.attempts == []


async def test_caller_that_leaves_at_its_deadline_counts_as_that():
    b = await bench()
    asked = hangs(b.endpoints["site"])
    call = call_of(deadline_s=0.06)
    task = asyncio.create_task(b.director.infer(call, CODEC))
    await asked.wait()
    assert call.deadline is not None
    await asyncio.sleep(call.deadline - asyncio.get_running_loop().time() - 0.005)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    text = as_text(list(b.telemetry.metrics.collect()))[0].decode()
    assert 'code="deadline"' in text
    assert 'code="cancelled"' not in text


async def test_early_refusal_has_a_record_that_says_why():
    b = await bench()
    reply = await b.director.infer(call_of(privacy="own"), CODEC)
    record = b.records.get(headers(reply)["tidegate-decision"])
    assert record is not None
    assert (record["chosen"], record["privacy"], record["candidates"]) == (None, "own", [])
    assert record["refused"]["reason"] == "privacy"


async def test_one_request_that_hangs_does_not_shut_the_place_for_callers_like_it():
    places = config_of()
    models = [{**places.models[0].model_dump(), "variants": [{"endpoint": "site"}]}]
    b = await bench(config_of(models=models))
    hangs(b.endpoints["site"])
    hung = await b.director.infer(call_of(deadline_ms="250"), CODEC)
    assert hung.error is not None
    b.endpoints["site"].behaviour = answers
    for _ in range(5):
        assert (await b.director.infer(call_of(deadline_ms="250"), CODEC)).error is None


async def test_dry_run_takes_any_size():
    b = await bench(config_of(endpoints=[priced(e) for e in config_of().endpoints]))
    decision = b.director.dry_run("digits", "", Options(), 10**400)
    assert all(c.predicted.cost is not None and c.predicted.cost > 1e6 for c in decision.plan)


def priced(endpoint: EndpointConfig) -> dict[str, object]:
    return {**endpoint.model_dump(), "price": {"egress_per_gb": 1.0}}


async def test_answer_that_is_none_is_a_failure_of_its_place():
    b = await bench()

    async def garbage(message: service_pb2.ModelInferRequest, timeout_s: float) -> bytes:
        return b"\xff\xff"

    b.endpoints["site"].behaviour = garbage
    reply = await b.director.infer(call_of(), CODEC)
    assert headers(reply)["tidegate-endpoint"] == "cloud"
    record = b.records.get(headers(reply)["tidegate-decision"])
    assert record is not None
    assert [a["outcome"] for a in record["attempts"]] == ["failed", "ok"]


async def test_early_refusal_is_counted_under_its_class():
    b = await bench()
    await b.director.infer(call_of(privacy="own"), CODEC)
    text = as_text(list(b.telemetry.metrics.collect()))[0].decode()
    (line,) = [
        found
        for found in text.splitlines()
        if found.startswith("tidegate_requests_total{") and 'code="privacy"' in found
    ]
    assert 'privacy="own"' in line


async def test_nearer_of_two_deadlines_wins():
    b = await bench()
    await b.director.infer(call_of(deadline_s=5.0, deadline_ms="60000"), CODEC)
    await b.director.infer(call_of(deadline_s=60.0, deadline_ms="5000"), CODEC)
    assert all(4.0 < t <= 5.0 for t in b.endpoints["site"].timeouts)


async def test_deadline_counts_while_the_body_is_awaited():
    b = await bench()
    reply = await b.director.infer(call_of(EndlessBody(), deadline_ms="50"), CODEC)
    assert reply.error is not None
    assert reply.error.reason is Reason.DEADLINE


async def test_cancelled_caller_cancels_the_attempt_and_is_recorded():
    b = await bench()
    asked = hangs(b.endpoints["site"])
    task = asyncio.create_task(b.director.infer(call_of(), CODEC))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert b.endpoints["site"].cancelled == 1
    assert not b.endpoints["cloud"].seen
    record = b.records.get("t-000001")
    assert record is not None
    assert [a["outcome"] for a in record["attempts"]] == ["cancelled"]
    assert b.state.snapshot.endpoints["site"].up


async def test_requests_beyond_the_limit_are_turned_away():
    gateway = {"name": "gw", "location": {"tier": "site", "site": "s1"}, "limits": {"max_inflight": 1}}
    b = await bench(config_of(gateway=gateway))
    asked = hangs(b.endpoints["site"])
    held = asyncio.create_task(b.director.infer(call_of(), CODEC))
    await asked.wait()
    reply = await b.director.infer(call_of(), CODEC)
    assert reply.error is not None
    assert reply.error.reason is Reason.OVERLOADED
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)


async def test_drain_waits_for_what_runs_and_takes_nothing_new():
    b = await bench()
    release, asked = asyncio.Event(), asyncio.Event()

    async def slow(message: service_pb2.ModelInferRequest, timeout_s: float) -> bytes:
        asked.set()
        await release.wait()
        return response("digits")

    b.endpoints["site"].behaviour = slow
    running = asyncio.create_task(b.director.infer(call_of(), CODEC))
    await asked.wait()
    draining = asyncio.create_task(b.director.drain(30.0))
    await asyncio.sleep(0)
    assert not b.director.ready()
    refused = await b.director.infer(call_of(), CODEC)
    assert refused.error is not None
    assert refused.error.reason is Reason.DRAINING
    assert not draining.done()
    release.set()
    assert (await running).error is None
    await draining


async def test_unknown_model_and_bad_option_are_the_callers():
    b = await bench()
    unknown = await b.director.infer(call_of(request(model="nope")), CODEC)
    assert unknown.error is not None
    assert unknown.error.message.startswith("Request for unknown model")
    bad = await b.director.infer(call_of(privacy="nope"), CODEC)
    assert bad.error is not None
    assert bad.error.reason is Reason.BAD_OPTION


async def test_hidden_second_name_is_refused():
    b = await bench()
    reply = await b.director.infer(call_of(request() + request(model="other")[:7]), CODEC)
    assert reply.error is not None
    assert reply.error.reason is Reason.MALFORMED
    assert not any(e.seen for e in b.endpoints.values())


async def test_costs_add_up_over_attempts():
    endpoints = [{**e.model_dump(), "price": {"per_request": 0.25}} for e in config_of().endpoints]
    b = await bench(config_of(endpoints=endpoints))
    reply = await b.director.infer(call_of(), CODEC)
    assert float(headers(reply)["tidegate-cost"]) == pytest.approx(0.25)


async def test_questions_about_models_go_to_a_place_that_is_ready():
    b = await bench()
    answer = await b.director.model_metadata("digits", "3", Options())
    metadata = service_pb2.ModelMetadataResponse.FromString(answer)
    assert (metadata.name, list(metadata.versions)) == ("digits", ["3"])
    for name in b.endpoints:
        b.state.gone(name)
    assert not b.director.ready()
    assert not await b.director.model_ready("digits", "", Options())
    with pytest.raises(Refusal) as refused:
        await b.director.model_metadata("digits", "", Options())
    assert refused.value.reason is Reason.NO_CANDIDATE


@pytest.mark.parametrize("reason", [Reason.MALFORMED, Reason.ENDPOINT_FAILED, Reason.UNAVAILABLE])
async def test_an_error_names_the_place_it_came_from(reason: Reason):
    b = await bench()
    for endpoint in b.endpoints.values():
        fails(endpoint, failure(reason, retryable=False))
    found = headers(await b.director.infer(call_of(), CODEC))
    assert (found["tidegate-endpoint"], found["tidegate-tier"]) == ("site", "site")
    assert (found["tidegate-attempts"], "tidegate-decision" in found) == ("1", True)


async def test_failed_attempt_does_not_count_as_fast():
    b = await bench()
    fails(b.endpoints["site"], failure(Reason.ENDPOINT_FAILED))
    await b.director.infer(call_of(), CODEC)
    assert {k.endpoint for k, v in b.state.snapshot.variants.items() if v.latency is not None} == {"cloud"}


async def test_dry_run_sends_and_records_nothing():
    b = await bench()
    decision = b.director.dry_run("digits", "", Options(privacy="eu"), 1000)
    assert [c.variant.endpoint for c in decision.plan] == ["site", "cloud"]
    assert b.records.get(decision.id) is None
    assert not any(e.seen for e in b.endpoints.values())


async def test_a_model_that_is_not_ready_somewhere_leaves_the_endpoint_up():
    b = await bench()
    fails(b.endpoints["site"], failure(Reason.MODEL_UNAVAILABLE))
    reply = await b.director.infer(call_of(), CODEC)
    assert reply.error is None
    assert headers(reply)["tidegate-endpoint"] == "cloud"
    assert b.state.snapshot.endpoints["site"].up
    record = b.records.get(headers(reply)["tidegate-decision"])
    assert record is not None
    assert [attempt["outcome"] for attempt in record["attempts"]] == ["unavailable", "ok"]


async def test_a_peer_is_told_the_reason_of_a_wrong_option_too():
    """Without it the peer would take the words for a verdict on the request, and show them to its caller."""
    token = "a-token-of-plant-7-that-nobody-guesses"
    gateway = {**config_of().gateway.model_dump(), "peers": [{"name": "gw-plant-7", "token": token}]}
    b = await bench(config_of(gateway=gateway))
    wrong = ("tidegate-allowed", "everywhere")
    known = await b.director.infer(call_of(metadata=[("authorization", f"Bearer {token}"), wrong]), CODEC)
    assert known.error is not None
    assert known.error.reason is Reason.BAD_OPTION
    assert headers(known) == {"tidegate-reason": "bad_option"}
    assert headers(await b.director.infer(call_of(metadata=[wrong]), CODEC)) == {}
