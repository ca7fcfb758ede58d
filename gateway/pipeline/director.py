"""One request, top to bottom; and the questions about models that carry no request data."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from gateway.core.call import Call, Metadata, Reply
from gateway.core.config import Config
from gateway.core.decision import Attempt, Decision
from gateway.core.errors import Refusal, TidegateError
from gateway.core.ports import Endpoint, InferCodec, Permit
from gateway.core.request import Options, Request
from gateway.decide import compiled, decide, gateway_refusal
from gateway.pipeline.callers import Callers
from gateway.pipeline.dispatch import DEADLINE_SLACK_S, Course, Dispatcher
from gateway.pipeline.questions import Questions
from gateway.pipeline.records import DecisionRing
from gateway.pipeline.repository import Repository
from gateway.pipeline.served import Served
from gateway.pipeline.signatures import Signatures
from gateway.pipeline.state import ReplicaState
from gateway.resilience.deadline import request_deadline
from gateway.routing.predict import key_of
from gateway.telemetry import RequestTelemetry, Telemetry
from oip.codec import statistics_of
from oip.errors import OipError
from oip.held import BodyBudget, BodyShare
from oip.reasons import Reason
from oip.repository import IndexEntry
from oip.scan import scan_request

BUDGET_BODIES = 16
"""How many bodies of the largest size a replica holds at once; of smaller ones accordingly more."""
DEFAULT_TIMEOUT_S = 60.0
"""How long a request without any deadline may take: a caller that set none still gets an answer."""
REASON_KEY = "tidegate-reason"
"""How a peer gateway is told the reason of an error, whose status says less."""


@dataclass(slots=True)
class _Flow:
    """What is known of one request so far; grows from top to bottom."""

    telemetry: RequestTelemetry
    decision: Decision | None = None
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    course: Course | None = None
    rows: int = 1

    def headers(self) -> list[tuple[str, str]]:
        """The answer headers, as far as there is something to say: no cost where one is not known.
        The endpoint is the last that was tried: the one that answered, or whose failure the caller
        gets."""
        found: list[tuple[str, str]] = []
        if self.decision is not None:
            if self.attempts and self.course is not None and self.course.place is not None:
                found.append(("tidegate-endpoint", self.attempts[-1].endpoint))
                found.append(("tidegate-tier", self.course.place.tier.value))
            if self.decision.policy:
                found.append(("tidegate-policy", self.decision.policy))
            found.append(("tidegate-decision", self.decision.id))
            found.append(("tidegate-attempts", str(len(self.attempts))))
            costs = [attempt.cost for attempt in self.attempts]
            known = [cost for cost in costs if cost is not None]
            if len(known) == len(costs):
                found.append(("tidegate-cost", format(sum(known), ".9g")))
        return found


class Director:
    """Implements `gateway.core.ports.Service` for one replica. Lives on one loop.

    `config` is the file's; the one in force is `state`'s, and may have other models. `dispatcher` sends to
    `endpoints`, which are the started endpoints by name. Everything measured goes to `state`, every
    decision to `records`.
    """

    def __init__(
        self,
        config: Config,
        state: ReplicaState,
        endpoints: Mapping[str, Endpoint],
        dispatcher: Dispatcher,
        records: DecisionRing,
        telemetry: Telemetry,
    ) -> None:
        self._state = state
        self._callers = Callers(config, state.device_of)
        self._questions = Questions(state, endpoints)
        self._signatures = Signatures(state, endpoints, time.monotonic)
        self._repository = Repository(state, endpoints, self._questions, dispatcher.look)
        self._dispatcher = dispatcher
        self._records = records
        self._telemetry = telemetry
        self._served = Served()
        self._rng = Random()
        self._bodies = BodyBudget(
            int(BUDGET_BODIES * config.gateway.limits.max_body_mb * 2**20), "gateway", Refusal
        )
        self._inflight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    @property
    def _config(self) -> Config:
        """The configuration in force now."""
        return self._state.config

    async def infer(self, call: Call, codec: InferCodec) -> Reply:
        try:
            options, error = self._callers.options(call.metadata, inference=True), None
        except OipError as wrong:
            options, error = Options(caller=self._callers.known(call.metadata)), wrong
        flow = _Flow(self._telemetry.request(call.received, options, call.binding))
        self._inflight += 1
        self._idle.clear()
        ended_by: Reason | None = Reason.CANCELLED
        deadline = request_deadline(call.received, options.deadline_ms, call.deadline, DEFAULT_TIMEOUT_S)
        try:
            if error is not None:
                raise error
            self._admit()
            async with asyncio.timeout_at(deadline):
                with self._bodies.share() as share:
                    body, headers = await self._infer(call, codec, options, deadline, flow, share)
            if time.monotonic() >= deadline:
                raise TimeoutError
            ended_by = None
            return Reply([*flow.headers(), *headers], body)
        except TimeoutError:
            error = TidegateError(Reason.DEADLINE, "the deadline passed before an answer came")
            ended_by = error.reason
        except OipError as raised:
            error = raised if isinstance(raised, TidegateError) else Refusal(raised.reason, raised.message)
            ended_by = error.reason
        except asyncio.CancelledError:
            if time.monotonic() >= deadline - DEADLINE_SLACK_S:
                ended_by = Reason.DEADLINE
            raise
        except Exception:
            ended_by = Reason.INTERNAL
            raise
        finally:
            self._inflight -= 1
            if not self._inflight:
                self._idle.set()
            if flow.decision is not None:
                self._records.put(flow.decision, tuple(flow.attempts))
            flow.telemetry.ended(ended_by, time.monotonic())
            self._count(flow, answered=ended_by is None, took_s=time.monotonic() - call.received)
        found = flow.headers()
        if options.caller.peer:
            found.append((REASON_KEY, error.reason.value))
        return Reply(found, error=error)

    async def _infer(
        self,
        call: Call,
        codec: InferCodec,
        options: Options,
        deadline: float,
        flow: _Flow,
        share: BodyShare,
    ) -> tuple[bytes, list[tuple[str, str]]]:
        refusal = gateway_refusal(self._config, options, call.model)
        if refusal is not None:
            if refusal.reason is Reason.PRIVACY:
                started = time.monotonic()
                flow.decision = self._refused_early(call, options, refusal)
                flow.telemetry.decided(flow.decision, started, time.monotonic())
            raise refusal
        body = await codec.decode(
            await call.body.read(share),
            lambda: self._questions.signature(call.model or "", call.version or "", options),
        )
        share.become(len(body))
        view = scan_request(body)
        started = time.monotonic()
        request = self._request(view.model_name, view.model_version, options, len(body), deadline - started)
        flow.decision = decide(self._state.snapshot, request, started, self._rng)
        flow.telemetry.decided(flow.decision, started, time.monotonic())
        if flow.decision.refused is not None:
            raise Refusal(flow.decision.refused, flow.decision.message)
        flow.rows = await self._check(flow.decision, body, view.model_name, options)
        flow.course = Course(request, flow.decision, body, view, deadline, flow.telemetry, flow.attempts)
        response = await self._dispatcher.run(flow.course)
        answer, headers = await codec.encode(response)
        return answer, list(headers)

    async def _check(self, decision: Decision, body: bytes, model: str, options: Options) -> int:
        """Hold the request against what the chosen variant takes, as far as that is known; its rows.
        Raises OipError."""
        assert decision.model_config is not None
        variant = decision.plan[0].variant
        key = key_of(decision.model_config, variant)
        told = key.version or self._state.snapshot.variants[key].versions
        left_open = "" if told else decision.version
        permit = self._question_permit(decision, options) if left_open else None
        return await self._signatures.check(key, body, model, left_open, permit)

    def _question_permit(self, decision: Decision, options: Options) -> Permit:
        """Leave to ask the chosen place about the model, for as far as the request itself may go."""
        tables = compiled(self._config)
        wall = tables.wall(decision.privacy, decision.origin, decision.allowed)
        return Permit(wall.allowed, decision.plan[0].place, (*options.hops, tables.name))

    def dry_run(self, model: str, version: str, options: Options, payload_bytes: int) -> Decision:
        """The decision that such a request would get now; nothing is sent or recorded."""
        time_left_s = DEFAULT_TIMEOUT_S if options.deadline_ms is None else options.deadline_ms / 1000
        request = self._request(model, version, options, payload_bytes, time_left_s)
        return decide(self._state.snapshot, request, time.monotonic(), self._rng)

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        return not self._draining and self._questions.any_ready()

    def options(self, metadata: Metadata) -> Options:
        return self._callers.options(metadata)

    def admit(self, options: Options) -> None:
        refusal = gateway_refusal(self._config, options, None)
        if refusal is not None:
            raise refusal

    async def model_ready(self, model: str, version: str, options: Options) -> bool:
        return await self._questions.model_ready(model, version, options) and not self._draining

    async def model_metadata(self, model: str, version: str, options: Options) -> bytes:
        return await self._questions.model_metadata(model, version, options)

    async def model_config(self, model: str, version: str, options: Options) -> bytes:
        return await self._questions.model_config(model, version, options)

    async def statistics(self, model: str, version: str, options: Options) -> bytes:
        async def of(name: str) -> bytes:
            known = await self._questions.versions(name, version, options)
            counted = self._served.counters(name, known, version)
            return b"".join(statistics_of(name, each, found) for each, found in counted.items())

        names = [model] if model else [each.name for each in self._state.snapshot.config.models]
        return b"".join(await asyncio.gather(*map(of, names)))

    async def repository_index(self, options: Options, *, ready: bool) -> Sequence[IndexEntry]:
        return await self._repository.index(options, ready=ready)

    def trace_settings(self, changes: Mapping[str, Sequence[str] | None]) -> Mapping[str, Sequence[str]]:
        return self._telemetry.settings.trace(changes)

    def log_settings(self, changes: Mapping[str, object]) -> Mapping[str, bool | int | str]:
        return self._telemetry.settings.log(changes)

    async def load_model(self, model: str, config: str, options: Options) -> None:
        await self._repository.load(model, config, options)

    async def unload_model(self, model: str, dependents: bool, options: Options) -> None:
        await self._repository.unload(model, dependents, options)

    async def drain(self, grace_s: float) -> None:
        """Take no new requests and wait, at most `grace_s`, for those that run."""
        self._draining = True
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            return
        finally:
            await self._signatures.close()

    def _count(self, flow: _Flow, *, answered: bool, took_s: float) -> None:
        course = flow.course
        if course is None:
            return
        model = course.decision.model
        if answered:
            self._served.answered(model, course.version, took_s, flow.rows, time.time(), *course.inside_s)
        else:
            self._served.failed(model, course.decision.version, took_s)

    def _refused_early(self, call: Call, options: Options, refusal: Refusal) -> Decision:
        """The record of a request whose headers were enough to refuse it: no place was considered."""
        model = next((m for m in self._config.models if m.name == call.model), None)
        names = () if model is None else (model.privacy or self._config.privacy.default,)
        if options.privacy is not None:
            names = (*names, options.privacy)
        return Decision(
            id=self._records.next_id(),
            wall_time=time.time(),
            model="" if model is None else model.name,
            version=call.version or "",
            privacy=tuple(dict.fromkeys(names)),
            policy="",
            revision=self._state.snapshot.revision,
            candidates=(),
            plan=(),
            model_config=model,
            refused=refusal.reason,
            message=refusal.message,
        )

    def _admit(self) -> None:
        if self._draining:
            raise Refusal(Reason.DRAINING, "this gateway is shutting down; try another replica")
        if self._inflight > self._config.gateway.limits.max_inflight:
            limit = self._config.gateway.limits.max_inflight
            raise Refusal(
                Reason.OVERLOADED, f"{limit} requests are in flight, as many as this gateway takes; try again"
            )

    def _request(
        self, model: str, version: str, options: Options, payload_bytes: int, time_left_s: float
    ) -> Request:
        return Request(
            model=model,
            version=version,
            options=options,
            payload_bytes=payload_bytes,
            time_left_s=time_left_s,
            decision_id=self._records.next_id(),
            wall_time=time.time(),
        )
