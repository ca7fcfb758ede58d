"""What every kind of endpoint must do, as tests that each kind's test class inherits.

A subclass provides the fixture `place`: a real one, which the tests may break and mend. Test names
say the contract; `gateway.core.ports.Endpoint` has it in words.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Protocol

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from gateway.core.errors import AttemptError
from gateway.core.ports import Endpoint, ModelHealth
from oip.reasons import Reason
from tests.support.permits import PERMIT
from tests.support.triton import infer_body, output0, slow_body
from tests.support.waiting import until

IDENTITY = "id2d_fp32"
SLOW = "slow_identity"
UNLOADED = "simple"
FINAL = "triton_final_response"
REACH_S = 20.0
SLACK_S = 1.5
"""More than any machine takes to come back from a timer, less than what these tests must not wait for."""


class AnsweringPlace(Protocol):
    """A running place that serves id2d_fp32 and not simple, which it may know."""

    def endpoint(self) -> Endpoint:
        """A new endpoint to this place, not started."""
        ...

    async def straight(self, body: bytes) -> bytes:
        """The answer without the endpoint in between."""
        ...


class Place(AnsweringPlace, Protocol):
    """One that serves slow_identity as well (four at a time)."""

    def cancelled(self) -> set[str]:
        """Ids of the requests whose cancellation the slow model has seen."""
        ...

    def kill(self) -> None: ...

    def pause(self) -> None:
        """It keeps its connections and says nothing."""
        ...

    def mend(self) -> None:
        """Running again, at the same address."""
        ...


async def started(place: AnsweringPlace) -> Endpoint:
    """A new endpoint that has reached its place: on a busy machine a connection may take longer to come
    than a call waits for one."""
    endpoint = place.endpoint()
    await endpoint.start()
    async with asyncio.timeout(REACH_S):
        while True:
            if (await endpoint.health([], REACH_S)).up:
                return endpoint
            await asyncio.sleep(0.02)


class AnswerSuite:
    """For every kind: what needs only id2d_fp32 and a place that stays up."""

    kind: str
    """The kind that a subclass tests."""
    knows_its_models = False
    """Whether the endpoint itself tells that its place has no such model, and sends nothing."""
    versions: tuple[str, ...] = ()
    """Of id2d_fp32, where the endpoint tells which it answers with."""
    has_configurations = True
    """Whether the place has configurations of its models."""

    @pytest.fixture
    async def endpoint(self, place: AnsweringPlace) -> AsyncIterator[Endpoint]:
        endpoint = await started(place)
        yield endpoint
        await endpoint.close()

    async def test_bytes_come_back_as_they_would_without_it(self, place: AnsweringPlace, endpoint: Endpoint):
        value = np.array([[0.1, -0.0, np.nan], [np.inf, 3.4e38, 1e-45]], np.float32)
        body = infer_body(IDENTITY, value, request_id="same")
        answer = await endpoint.infer(body, (), 10, PERMIT)
        assert answer == await place.straight(body)
        assert output0(answer, "float32").tobytes() == value.tobytes()

    async def test_a_model_that_answers_once_says_on_a_stream_that_it_has(self, endpoint: Endpoint):
        body = infer_body(IDENTITY, np.ones((1, 2), np.float32), request_id="once")
        responses = [r async for r in endpoint.stream(body, (), None, PERMIT)]
        (told,) = map(service_pb2.ModelInferResponse.FromString, responses)
        assert dict(told.parameters) == {FINAL: service_pb2.InferParameter(bool_param=True)}
        del told.parameters[FINAL]
        assert told.SerializeToString() == await endpoint.infer(body, (), 10, PERMIT)

    async def test_a_stream_fails_as_a_call_does(self, endpoint: Endpoint):
        for body in (
            infer_body("nope", np.zeros(2, np.float32)),
            infer_body(IDENTITY, np.zeros((1, 1), np.float32), version="9"),
            infer_body(IDENTITY, np.zeros((1, 2), np.int32)),
        ):
            with pytest.raises(AttemptError) as whole:
                await endpoint.infer(body, (), 10, PERMIT)
            with pytest.raises(AttemptError) as parts:
                await anext(endpoint.stream(body, (), 10, PERMIT))
            assert parts.value.reason is whole.value.reason
            assert (parts.value.sent, parts.value.retryable) == (whole.value.sent, whole.value.retryable)
        with pytest.raises(AttemptError) as late:
            await anext(endpoint.stream(body, (), 0, PERMIT))
        assert (late.value.reason, late.value.sent) == (Reason.DEADLINE, False)

    async def test_twenty_megabytes_go_there_and_back(self, endpoint: Endpoint):
        value = np.arange(5 * 2**20, dtype=np.float32).reshape(1024, -1)
        answer = await endpoint.infer(infer_body(IDENTITY, value), (), 30, PERMIT)
        assert np.array_equal(output0(answer, "float32"), value)

    async def test_a_hundred_calls_at_once_get_their_own_answers(self, endpoint: Endpoint):
        async def one(number: int) -> tuple[str, float]:
            body = infer_body(IDENTITY, np.full((1, 4), number, np.float32), request_id=f"r{number}")
            answer = await endpoint.infer(body, (), 30, PERMIT)
            return service_pb2.ModelInferResponse.FromString(answer).id, output0(answer, "float32")[0, 3]

        answers = await asyncio.gather(*(one(n) for n in range(100)))
        assert answers == [(f"r{n}", float(n)) for n in range(100)]

    @pytest.mark.parametrize("model", ["nope", UNLOADED])
    async def test_a_model_it_does_not_have_may_be_elsewhere(self, endpoint: Endpoint, model: str):
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(infer_body(model, np.zeros(2, np.float32)), (), 10, PERMIT)
        error = caught.value
        assert (error.reason, error.grpc_status) == (Reason.UNKNOWN_MODEL, "NOT_FOUND")
        assert (error.sent, error.retryable) == (not self.knows_its_models, True)
        assert error.message.startswith("Request for unknown model")

    async def test_a_version_it_does_not_have_may_be_elsewhere(self, endpoint: Endpoint):
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(
                infer_body(IDENTITY, np.zeros((1, 1), np.float32), version="9"), (), 10, PERMIT
            )
        assert (caught.value.reason, caught.value.retryable) == (Reason.UNKNOWN_MODEL, True)

    async def test_malformed_bytes_are_the_callers_fault_and_not_tried_again(self, endpoint: Endpoint):
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(b"\xff\xff\xff", (), 10, PERMIT)
        assert (caught.value.reason, caught.value.retryable) == (Reason.MALFORMED, False)

    async def test_a_wrong_input_is_the_endpoints_verdict_in_its_words(self, endpoint: Endpoint):
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(infer_body(IDENTITY, np.zeros((1, 2), np.int32)), (), 10, PERMIT)
        error = caught.value
        assert (error.reason, error.grpc_status) == (Reason.MALFORMED, "INVALID_ARGUMENT")
        assert (error.sent, error.retryable) == (True, False)
        assert "INT32" in error.message
        assert "FP32" in error.message

    async def test_no_time_left_is_a_deadline_that_sends_nothing(self, endpoint: Endpoint):
        await endpoint.health([], 5)
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(infer_body(IDENTITY, np.zeros((1, 1), np.float32)), (), 0, PERMIT)
        assert (caught.value.reason, caught.value.sent) == (Reason.DEADLINE, False)

    async def test_health_tells_ready_from_unloaded_and_unknown(self, endpoint: Endpoint):
        health = await endpoint.health([(IDENTITY, ""), (IDENTITY, "9"), (UNLOADED, ""), ("nope", "")], 10)
        assert health.up
        assert health.models == (
            ModelHealth(IDENTITY, "", True, self.versions),
            ModelHealth(IDENTITY, "9", False),
            ModelHealth(UNLOADED, "", False),
            ModelHealth("nope", "", False),
        )

    async def test_metadata_config_and_statistics_are_its_messages(self, endpoint: Endpoint):
        metadata = service_pb2.ModelMetadataResponse.FromString(
            await endpoint.model_metadata(IDENTITY, "1", 10)
        )
        assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [
            ("INPUT0", "FP32", [-1, -1])
        ]
        if self.has_configurations:
            config = service_pb2.ModelConfigResponse.FromString(await endpoint.model_config(IDENTITY, "", 10))
            assert config.config.name == IDENTITY
        else:
            with pytest.raises(AttemptError) as caught:
                await endpoint.model_config(IDENTITY, "", 10)
            assert caught.value.reason is Reason.NOT_SERVED
        await endpoint.infer(infer_body(IDENTITY, np.zeros((1, 1), np.float32)), (), 10, PERMIT)
        statistics = service_pb2.ModelStatisticsResponse.FromString(
            await endpoint.statistics(IDENTITY, "", 10)
        )
        (entry,) = statistics.model_stats
        assert entry.name == IDENTITY
        assert entry.inference_stats.success.count >= 1

    @pytest.mark.parametrize("ask", ["model_metadata", "model_config", "statistics"])
    async def test_questions_about_an_unknown_model_fail_as_attempts(self, endpoint: Endpoint, ask: str):
        if ask == "model_config" and not self.has_configurations:
            return
        with pytest.raises(AttemptError) as caught:
            await getattr(endpoint, ask)("nope", "", 10)
        assert caught.value.grpc_status in ("NOT_FOUND", "INVALID_ARGUMENT")
        assert "nope" in caught.value.message


class EndpointSuite(AnswerSuite):
    """For kinds whose place serves slow_identity and can be broken and mended at one address."""

    async def test_metadata_that_cannot_be_sent_harms_nothing_else(self, endpoint: Endpoint):
        body = infer_body(IDENTITY, np.zeros((1, 1), np.float32))
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(body, [("tracestate", "a\nb")], 10, PERMIT)
        assert (caught.value.sent, caught.value.retryable) == (False, False)
        assert await endpoint.infer(body, [("tracestate", "a=b")], 10, PERMIT)

    async def test_the_timeout_ends_a_slow_call(self, endpoint: Endpoint):
        begin = time.monotonic()
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(slow_body(20), (), 0.4, PERMIT)
        assert 0.35 < time.monotonic() - begin < 0.4 + SLACK_S
        assert (caught.value.reason, caught.value.retryable) == (Reason.DEADLINE, False)

    async def test_a_cancelled_task_cancels_the_call_at_the_model(self, place: Place, endpoint: Endpoint):
        task = asyncio.create_task(endpoint.infer(slow_body(20, "to-cancel"), (), 30, PERMIT))
        done, _ = await asyncio.wait({task}, timeout=1.0)  # for it to reach the model
        assert not done
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: "to-cancel" in place.cancelled())

    async def test_a_closed_stream_is_cancelled_at_the_model(self, place: Place, endpoint: Endpoint):
        stream = endpoint.stream(slow_body(20, "to-close"), (), None, PERMIT)
        first = asyncio.ensure_future(anext(stream))
        done, _ = await asyncio.wait({first}, timeout=1.0)  # for it to reach the model
        assert not done
        first.cancel()
        await asyncio.wait({first})
        await stream.aclose()
        await until(lambda: "to-close" in place.cancelled())

    async def test_killed_under_calls_it_fails_them_at_once_and_returns_at_its_address(
        self, place: Place, endpoint: Endpoint
    ):
        calls = [asyncio.create_task(endpoint.infer(slow_body(20), (), 30, PERMIT)) for _ in range(4)]
        done, _ = await asyncio.wait(calls, timeout=1.0)  # for them to be sent
        assert not done
        await asyncio.to_thread(place.kill)
        try:
            begin = time.monotonic()
            ended = await asyncio.gather(*calls, return_exceptions=True)
            assert time.monotonic() - begin < SLACK_S
            for error in ended:
                assert isinstance(error, AttemptError)
                assert (error.reason, error.sent, error.retryable) == (Reason.UNAVAILABLE, True, True)
                assert "127.0.0.1" not in error.message

            for known in (endpoint, place.endpoint()):
                if known is not endpoint:
                    await known.start()
                begin = time.monotonic()
                error = await _known_as_gone(known)
                assert time.monotonic() - begin < 1 + SLACK_S
                assert (error.reason, error.sent, error.retryable) == (Reason.UNAVAILABLE, False, True)
                health = await known.health([(SLOW, "")], 2)
                assert (health.up, health.models) == (False, ())
                assert health.detail
                if known is not endpoint:
                    await known.close()
        finally:
            await asyncio.to_thread(place.mend)
        await _answers_again(endpoint)

    async def test_one_that_stops_answering_ends_calls_at_their_timeout(
        self, place: Place, endpoint: Endpoint
    ):
        assert await endpoint.infer(slow_body(0), (), 10, PERMIT)
        place.pause()
        try:
            begin = time.monotonic()
            with pytest.raises(AttemptError) as caught:
                await endpoint.infer(slow_body(0), (), 0.5, PERMIT)
            assert time.monotonic() - begin < 0.5 + SLACK_S
            assert (caught.value.reason, caught.value.retryable) == (Reason.DEADLINE, False)
            health = await endpoint.health([(SLOW, "")], 0.3)
            assert (health.up, health.detail) == (False, "did not answer within 0.3 s")
        finally:
            place.mend()
        await _answers_again(endpoint)

    async def test_closing_ends_the_calls_that_run(self, place: Place):
        endpoint = await started(place)
        assert await endpoint.infer(slow_body(0), (), 10, PERMIT)
        call = asyncio.create_task(endpoint.infer(slow_body(20), (), 30, PERMIT))
        await asyncio.wait({call}, timeout=0.2)
        await endpoint.close()
        with pytest.raises(AttemptError) as caught:
            await asyncio.wait_for(call, 5)
        assert caught.value.reason is Reason.UNAVAILABLE
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(slow_body(0), (), 5, PERMIT)
        assert (caught.value.reason, caught.value.sent) == (Reason.UNAVAILABLE, False)


async def _answers_again(endpoint: Endpoint) -> None:
    deadline = time.monotonic() + 15
    answer, failure = None, None
    while answer is None and time.monotonic() < deadline:
        try:
            answer = await endpoint.infer(slow_body(0, value=5), (), 5, PERMIT)
        except AttemptError as error:
            failure = error
            await asyncio.sleep(0.05)
    assert answer is not None, f"still not reconnected: {failure}"
    assert failure is None or failure.reason in (Reason.UNAVAILABLE, Reason.DEADLINE)
    assert output0(answer, "int32").tolist() == [5]


async def _known_as_gone(endpoint: Endpoint) -> AttemptError:
    """How a call fails to a place that was killed. Its calls end a moment before its channel knows; what
    is sent in that moment fails as they did."""
    for _ in range(20):
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(slow_body(0), (), 5, PERMIT)
        if not caught.value.sent:
            break
        assert caught.value.reason is Reason.UNAVAILABLE
        await asyncio.sleep(0.02)
    return caught.value
