"""Attempts along a plan: each asks the policy first, and nothing outlives the deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from random import Random

from gateway.core.decision import Attempt, Candidate, Decision, Outcome, VariantKey
from gateway.core.errors import AttemptError, Refusal
from gateway.core.place import Place
from gateway.core.ports import Endpoint, Permit
from gateway.core.request import Request
from gateway.decide import Attempts
from gateway.pipeline.observer import Observer
from gateway.pipeline.state import ReplicaState
from gateway.resilience.budget import RetryBudget
from gateway.resilience.retry import Halt
from gateway.routing.cost import attempt_cost
from gateway.routing.predict import key_of
from gateway.telemetry import RequestTelemetry
from oip.errors import OipError
from oip.reasons import Reason
from oip.scan import RequestView, scan_response, splice

Headers = Sequence[tuple[str, str]]
Clock = Callable[[], float]
"""The monotonic clock that deadlines are instants of."""

DEADLINE_SLACK_S = 0.02
"""How much before its deadline a request that is cancelled counts as one that ran into it: a gRPC
caller goes away at its own deadline, in the same moment as our timer ends."""

_OUTCOMES = {
    Reason.UNAVAILABLE: Outcome.UNAVAILABLE,
    Reason.MODEL_UNAVAILABLE: Outcome.UNAVAILABLE,
    Reason.NO_CANDIDATE: Outcome.UNAVAILABLE,
    Reason.OVERLOADED: Outcome.UNAVAILABLE,
    Reason.DEADLINE: Outcome.DEADLINE,
    Reason.ENDPOINT_FAILED: Outcome.FAILED,
    Reason.CANCELLED: Outcome.CANCELLED,
}

_HALTED = {
    Halt.DEADLINE: (Reason.DEADLINE, "the deadline passed before the request could be sent"),
    Halt.PRIVACY: (Reason.PRIVACY, "no chosen place is allowed any more"),
    Halt.NO_PLACE: (Reason.UNAVAILABLE, "the chosen places went down before the request was sent"),
}
"""What ends a request before its first attempt."""


@dataclass(slots=True)
class Course:
    """One request on its way along its plan; `attempts` grows as it goes, and `place` is where the last
    of them went. `version` is the one that answered. `inside_s`: how long the answered request waited and was computed there, 0 where the place
    does not say.

    `body` is the serialized ModelInferRequest that `view` was scanned from, `deadline` an instant
    of the monotonic clock, for a stream the one of its first response. `tries` counts the attempts that
    have begun, `endpoint` is the last one's.
    """

    request: Request
    decision: Decision
    body: bytes
    view: RequestView
    deadline: float
    telemetry: RequestTelemetry
    attempts: list[Attempt]
    place: Place | None = None
    version: str = ""
    inside_s: tuple[float, float] = (0.0, 0.0)
    endpoint: str = ""
    tries: int = 0

    def times(self, queued_s: float, computed_s: float) -> None:
        self.inside_s = (queued_s, computed_s)


@dataclass(slots=True)
class _Answer:
    """What came of one attempt so far: its first response, when that came, and the bytes of all."""

    first: bytes | None = None
    at: float = 0.0
    size: int = 0


Respond = Callable[[bytes], Awaitable[None]]
"""Takes a response on its way to the caller."""
_Ask = Callable[[Endpoint, bytes, Headers, float, Permit], AsyncGenerator[bytes]]
"""The responses of one attempt, which has so many seconds."""


class Dispatcher:
    """Sends a request to the places of its plan until one answers or none may be tried any more.

    `look` asks for a health check of an endpoint that an attempt found gone. `observer` is told of every
    attempt; None where no model is watched.
    """

    def __init__(
        self,
        state: ReplicaState,
        endpoints: Mapping[str, Endpoint],
        look: Callable[[str], None],
        clock: Clock,
        observer: Observer | None = None,
    ) -> None:
        self._state = state
        self._endpoints = endpoints
        self._look = look
        self._clock = clock
        self._observer = observer
        self._rng = Random()
        self._prices = {e.name: e.price for e in state.snapshot.config.endpoints}
        self._budgets = {p.name: RetryBudget() for p in state.snapshot.config.policies}

    async def run(self, course: Course) -> bytes:
        """The ModelInferResponse of the first place that answers. Raises AttemptError (how the last
        attempt failed) or Refusal (there was none)."""
        answers: list[bytes] = []

        async def keep(response: bytes) -> None:
            answers.append(response)

        await self._along(course, _whole, keep)
        return answers[0]

    async def stream(self, course: Course, respond: Respond, *, ends: bool) -> None:
        """Hand the ModelInferResponses of the first place that gives any to `respond`. Once there is one,
        no other place is asked. `ends`: the deadline holds for all of them, not only for the first. Raises
        as `run` does."""

        def ask(
            endpoint: Endpoint, body: bytes, headers: Headers, given_s: float, permit: Permit
        ) -> AsyncGenerator[bytes]:
            return endpoint.stream(body, headers, given_s if ends else None, permit)

        await self._along(course, ask, respond)

    async def _along(self, course: Course, ask: _Ask, respond: Respond) -> None:
        budget = self._budgets[course.decision.policy]
        failure: AttemptError | None = None
        with Attempts(self._state.snapshot, course.decision, course.request, budget, self._rng) as attempts:
            while True:
                found = attempts.next(self._state.snapshot, course.deadline - self._clock(), failure)
                if isinstance(found, Halt):
                    raise failure or Refusal(*_HALTED[found])
                answer = _Answer()
                try:
                    await self._attempt(course, *found, ask, respond, answer)
                    return
                except AttemptError as error:
                    if answer.first is not None:
                        raise
                    failure = error

    async def _attempt(
        self,
        course: Course,
        candidate: Candidate,
        permit: Permit,
        ask: _Ask,
        respond: Respond,
        answer: _Answer,
    ) -> None:
        assert course.decision.model_config is not None
        key = key_of(course.decision.model_config, candidate.variant)
        body = _addressed(course, key)
        started = self._clock()
        given_s = course.deadline - started
        span = course.telemetry.attempt(candidate, started)
        outcome = Outcome.CANCELLED
        failed: Reason | None = None
        cost: float | None = 0.0
        course.place, course.endpoint = permit.place, key.endpoint
        course.tries += 1
        permit = replace(permit, tell=span.tell, times=course.times)
        self._state.begun(key, given_s, started, permit.device)
        try:
            responses = ask(self._endpoints[key.endpoint], body, span.headers, given_s, permit)
            async with aclosing(responses):
                async for told in responses:
                    response, course.version = _named(told, course.view.model_name, key.endpoint)
                    answer.size += len(response)
                    if answer.first is None:
                        answer.first, answer.at = response, self._clock()
                    await respond(response)
            outcome = Outcome.OK
            cost = self._cost(key, len(body), answer.size)
        except asyncio.CancelledError:
            if answer.first is None and self._clock() >= course.deadline - DEADLINE_SLACK_S:
                outcome, failed = Outcome.DEADLINE, Reason.DEADLINE
            cost = self._cost(key, len(body), None)
            raise
        except AttemptError as error:
            outcome, failed = _OUTCOMES.get(error.reason, Outcome.REJECTED), error.reason
            cost = self._cost(key, len(body) if error.sent else 0, None)
            if error.reason is Reason.UNAVAILABLE:
                self._state.gone(key.endpoint, permit.device)
                self._look(key.endpoint)
            raise
        finally:
            ended = self._clock()
            came = ended if answer.first is None else answer.at
            elapsed_ms = (came - started) * 1000
            known, size = (outcome, None) if answer.first is None else (Outcome.OK, answer.size)
            self._state.ended(key, known, elapsed_ms, given_s, size, ended, permit.device)
            course.attempts.append(Attempt(key.endpoint, outcome, elapsed_ms, cost, permit.device))
            span.ended(outcome, ended, cost, came)
            if self._observer is not None:
                took_s, at = came - started, permit.place
                first = answer.first if outcome is Outcome.OK else None
                self._observer.ended(
                    course.decision.model, key, at, permit.allowed, took_s, body, first, failed
                )

    def _cost(self, key: VariantKey, sent_bytes: int, response_bytes: int | None) -> float | None:
        """What the attempt cost; None where that takes a capacity which was never measured."""
        capacity = self._state.variant(key).capacity_rps
        return attempt_cost(self._prices[key.endpoint], capacity, sent_bytes, response_bytes)


async def _whole(
    endpoint: Endpoint, body: bytes, headers: Headers, given_s: float, permit: Permit
) -> AsyncGenerator[bytes]:
    """The one response of an inference that is answered as a whole."""
    yield await endpoint.infer(body, headers, given_s, permit)


def _named(response: bytes, model: str, endpoint: str) -> tuple[bytes, str]:
    """The answer under the model's name at the gateway, and the version that gave it. Raises AttemptError
    for one that is none:
    another place may do better."""
    try:
        view = scan_response(response)
    except OipError as error:
        raise AttemptError(
            error.reason,
            f"Endpoint {endpoint} gave an answer that cannot be read.",
            grpc_status="INTERNAL",
            sent=True,
            retryable=True,
        ) from error
    named = response if view.model_name == model else splice(response, view, model_name=model)
    return named, view.model_version


def _addressed(course: Course, key: VariantKey) -> bytes:
    """The request under the name and version that the place knows the model by."""
    name = key.model if key.model != course.view.model_name else None
    version = key.version if key.version and key.version != course.view.model_version else None
    if name is None and version is None:
        return course.body
    return splice(course.body, course.view, model_name=name, model_version=version)
