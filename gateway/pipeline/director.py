"""One request, top to bottom; and the questions about models that carry no request data."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from gateway.core.call import Call, Metadata, Reply, Send
from gateway.core.config import Config
from gateway.core.decision import Attempt, Decision, VariantKey
from gateway.core.errors import Refusal, TidegateError
from gateway.core.ports import Endpoint, GenerateCodec, Homes, InferCodec, Permit
from gateway.core.request import Options, Request
from gateway.decide import compiled, decide, gateway_refusal
from gateway.pipeline.callers import Callers
from gateway.pipeline.dispatch import DEADLINE_SLACK_S, Course, Dispatcher
from gateway.pipeline.questions import Questions
from gateway.pipeline.records import DecisionRing
from gateway.pipeline.repository import Repository
from gateway.pipeline.sequences import SEQUENCE, OwnHomes, Sequences, Step
from gateway.pipeline.served import Counts, Served, counters
from gateway.pipeline.siblings import Kind, Siblings
from gateway.pipeline.signatures import Signatures
from gateway.pipeline.state import ReplicaState
from gateway.resilience.deadline import given_deadline
from gateway.routing.predict import key_of
from gateway.telemetry import RequestTelemetry, Telemetry
from oip.codec import statistics_of
from oip.errors import OipError
from oip.held import BodyBudget, BodyShare
from oip.names import shown
from oip.reasons import Reason
from oip.repository import IndexEntry
from oip.scan import RequestView, scan_request
from oip.signature import Signature

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
    options: Options
    ends: float | None = None
    """When the caller wants the whole answer, if it says so."""
    deadline: float = 0.0
    """When an answer, or the first response of one, must be there."""
    limit: asyncio.Timeout | None = None
    share: BodyShare | None = None
    answered: bool = False
    """Whether a response of a stream is on its way to the caller."""
    decision: Decision | None = None
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    course: Course | None = None
    step: Step | None = None
    rows: int = 1

    def headers(self) -> list[tuple[str, str]]:
        """The answer headers, as far as there is something to say: no cost where one is not known.
        The endpoint is the last that was tried: the one that answered, or whose failure the caller
        gets."""
        found: list[tuple[str, str]] = []
        if self.decision is not None:
            tries = 0 if self.course is None else self.course.tries
            if self.course is not None and self.course.place is not None:
                found.append(("tidegate-endpoint", self.course.endpoint))
                found.append(("tidegate-tier", self.course.place.tier.value))
            if self.decision.policy:
                found.append(("tidegate-policy", self.decision.policy))
            found.append(("tidegate-decision", self.decision.id))
            found.append(("tidegate-attempts", str(tries)))
            costs = [attempt.cost for attempt in self.attempts]
            known = [cost for cost in costs if cost is not None]
            if len(known) == tries:
                found.append(("tidegate-cost", format(sum(known), ".9g")))
        return found


_Work = Callable[[_Flow], Awaitable[tuple[bytes, Sequence[tuple[str, str]]]]]
_Encode = Callable[[bytes], Awaitable[tuple[bytes, Sequence[tuple[str, str]]]]]


class Director:
    """Implements `gateway.core.ports.Service` for one replica. Lives on one loop.

    `config` is the file's; the one in force is `state`'s, and may have other models. `dispatcher` sends to
    `endpoints`, which are the started endpoints by name. Everything measured goes to `state`, every
    decision to `records`. `look` returns when an endpoint has been looked at anew. `homes` knows where sequences
    are, `siblings` are the replicas of this gateway; None: there is no other one.
    """

    def __init__(
        self,
        config: Config,
        state: ReplicaState,
        endpoints: Mapping[str, Endpoint],
        dispatcher: Dispatcher,
        records: DecisionRing,
        telemetry: Telemetry,
        look: Callable[[str], Awaitable[None]],
        homes: Homes | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        self._state = state
        self._callers = Callers(config, state.device_of)
        self._questions = Questions(state, endpoints)
        self._signatures = Signatures(state, endpoints, time.monotonic)
        self._repository = Repository(state, endpoints, self._questions, look, siblings)
        self._dispatcher = dispatcher
        self._records = records
        self._telemetry = telemetry
        self._served = Served()
        self._siblings = siblings
        self._sequences = Sequences(OwnHomes() if homes is None else homes)
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
        async def answer(flow: _Flow) -> tuple[bytes, Sequence[tuple[str, str]]]:
            course = await self._read(call, codec, flow)
            return await codec.encode(await self._dispatcher.run(course))

        return await self._carry(call, answer)

    async def stream(self, call: Call, codec: InferCodec, send: Send) -> Reply:
        async def answer(flow: _Flow) -> tuple[bytes, Sequence[tuple[str, str]]]:
            course = await self._read(call, codec, flow, streamed=True)
            await self._respond(flow, course, codec.encode, send)
            return b"", ()

        return await self._carry(call, answer, streamed=True)

    async def generate(self, call: Call, codec: GenerateCodec, send: Send) -> Reply:
        async def answer(flow: _Flow) -> tuple[bytes, Sequence[tuple[str, str]]]:
            course = await self._read_generate(call, codec, flow)
            await self._respond(flow, course, codec.encode, send)
            return b"", ()

        return await self._carry(call, answer, streamed=True)

    async def _carry(self, call: Call, answer: _Work, *, streamed: bool = False) -> Reply:
        """One inference within its limits, counted and recorded, whatever becomes of it."""
        try:
            options, error = self._callers.options(call.metadata, inference=True), None
        except OipError as wrong:
            options, error = Options(caller=self._callers.known(call.metadata)), wrong
        flow = _Flow(self._telemetry.request(call.received, options, call.binding), options)
        self._inflight += 1
        self._idle.clear()
        ended_by: Reason | None = Reason.CANCELLED
        flow.ends = given_deadline(call.received, options.deadline_ms, call.deadline)
        # The pauses of a stream are bounded, and one that waited for its turn has not begun to.
        since = time.monotonic() if streamed else call.received
        flow.deadline = since + DEFAULT_TIMEOUT_S if flow.ends is None else flow.ends
        whole = flow.ends if streamed else flow.deadline
        try:
            if error is not None:
                raise error
            self._admit()
            async with asyncio.timeout_at(flow.deadline) as flow.limit:
                with self._bodies.share() as flow.share:
                    body, headers = await answer(flow)
            if not streamed and time.monotonic() >= flow.deadline:
                raise TimeoutError
            ended_by = None
            return Reply([*flow.headers(), *headers], body)
        except TimeoutError:
            answered = flow.answered and flow.ends is None
            pause = f"no further response came for {DEFAULT_TIMEOUT_S:g} s"
            error = TidegateError(
                Reason.DEADLINE, pause if answered else "the deadline passed before an answer came"
            )
            ended_by = error.reason
        except OipError as raised:
            error = raised if isinstance(raised, TidegateError) else Refusal(raised.reason, raised.message)
            ended_by = error.reason
        except asyncio.CancelledError:
            if whole is not None and time.monotonic() >= whole - DEADLINE_SLACK_S:
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
            if flow.step is not None:
                self._sequences.stepped(flow.step, answered=ended_by is None)
            self._count(flow, answered=ended_by is None, took_s=time.monotonic() - call.received)
        found = flow.headers()
        if options.caller.peer:
            found.append((REASON_KEY, error.reason.value))
        return Reply(found, error=error)

    async def _read(self, call: Call, codec: InferCodec, flow: _Flow, *, streamed: bool = False) -> Course:
        """Read a request and decide about it. Raises OipError."""
        self._refuse_early(call, flow)
        assert flow.share is not None
        body = await codec.decode(
            await call.body.read(flow.share),
            lambda: self._questions.signature(call.model or "", call.version or "", flow.options),
        )
        flow.share.become(len(body))
        view = scan_request(body)
        if SEQUENCE in view.parameters and self._is_stateful(view.model_name):
            flow.step = await self._sequences.step_of(body)
        request = self._decide(flow, view.model_name, view.model_version, len(body))
        course = await self._checked(flow, request, body, view, streamed=streamed)
        if flow.step is not None and flow.step.starts:
            flow.step = await self._sequences.begun(flow.step, self._chosen(flow)[0].endpoint)
        return course

    async def _read_generate(self, call: Call, codec: GenerateCodec, flow: _Flow) -> Course:
        """As `_read`, for a request that the chosen variant's signature is needed to read."""
        self._refuse_early(call, flow)
        assert flow.share is not None
        text = await call.body.read(flow.share)
        model = call.model or ""
        request = self._decide(flow, model, call.version or "", len(text))
        key, left_open, permit = self._chosen(flow)
        signature = await self._signatures.of(key, left_open, permit)
        if signature is None:
            if left_open:
                # Raises where there is no such version, to which this question gets no answer either.
                await self._questions.versions(model, left_open, flow.options)
            raise Refusal(
                Reason.MODEL_UNAVAILABLE,
                f"nobody says now what model {shown(model)} takes, which generate has to know",
            )

        async def written(by: Signature) -> Course:
            body = await codec.decode(text, by)
            assert flow.share is not None
            flow.share.become(len(body))
            view = scan_request(body)
            if SEQUENCE in view.parameters and by.stateful:
                raise Refusal(Reason.NOT_SERVED, "generate takes no steps of sequences: use infer")
            return await self._checked(flow, request, body, view, streamed=True)

        try:
            return await written(signature)
        except OipError:
            renewed = None if left_open else await self._signatures.renewed(key)
            if renewed is None or renewed == signature:
                raise
        return await written(renewed)

    async def _respond(self, flow: _Flow, course: Course, encode: _Encode, send: Send) -> None:
        limit = flow.limit
        assert limit is not None

        async def respond(response: bytes) -> None:
            if flow.ends is None:
                # The endpoint's pauses count, not the caller's.
                limit.reschedule(None)
            part, headers = await encode(response)
            told = () if flow.answered else (*flow.headers(), *headers)
            flow.answered = True
            await send(told, part)
            if flow.ends is None:
                limit.reschedule(time.monotonic() + DEFAULT_TIMEOUT_S)

        await self._dispatcher.stream(course, respond, ends=flow.ends is not None)

    def _refuse_early(self, call: Call, flow: _Flow) -> None:
        """Raises Refusal where the headers are enough for that."""
        refusal = gateway_refusal(self._config, flow.options, call.model)
        if refusal is None:
            return
        if refusal.reason is Reason.PRIVACY:
            started = time.monotonic()
            flow.decision = self._refused_early(call, flow.options, refusal)
            flow.telemetry.decided(flow.decision, started, time.monotonic())
        raise refusal

    def _is_stateful(self, model: str) -> bool:
        """Whether some variant of a model keeps the state of sequences, as far as is known."""
        known = compiled(self._config).models.get(model)
        signatures = [self._state.variant(target.key).signature for target in known.targets] if known else []
        return any(signature is None or signature.stateful for signature in signatures)

    def _decide(self, flow: _Flow, model: str, version: str, payload_bytes: int) -> Request:
        """Raises Refusal where the decision is one."""
        started = time.monotonic()
        request = self._request(model, version, flow.options, payload_bytes, flow.deadline - started)
        if flow.step is not None:
            request = replace(request, home=flow.step.home.endpoint if flow.step.home else "")
        flow.decision = decide(self._state.snapshot, request, started, self._rng)
        flow.telemetry.decided(flow.decision, started, time.monotonic())
        if flow.decision.refused is not None:
            raise Refusal(flow.decision.refused, flow.decision.message)
        if flow.step is not None:
            flow.decision = replace(flow.decision, plan=flow.decision.plan[:1])
        return request

    async def _checked(
        self, flow: _Flow, request: Request, body: bytes, view: RequestView, *, streamed: bool
    ) -> Course:
        """Hold the request against what the chosen variant takes, as far as that is known. Raises
        OipError."""
        assert flow.decision is not None
        key, left_open, permit = self._chosen(flow)
        flow.rows = await self._signatures.check(
            key, body, view.model_name, left_open, permit, streamed=streamed
        )
        flow.course = Course(request, flow.decision, body, view, flow.deadline, flow.telemetry, flow.attempts)
        return flow.course

    def _chosen(self, flow: _Flow) -> tuple[VariantKey, str, Permit | None]:
        """The variant that is tried first; a version that it leaves to its endpoint, and leave to ask
        there about it."""
        decision = flow.decision
        assert decision is not None
        assert decision.model_config is not None
        key = key_of(decision.model_config, decision.plan[0].variant)
        told = key.version or self._state.snapshot.variants[key].versions
        left_open = "" if told else decision.version
        permit = self._question_permit(decision, flow.options) if left_open else None
        return key, left_open, permit

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

    @property
    def counts(self) -> Counts:
        """What this replica has served."""
        return self._served.counts

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
            counted = counters(counts.get(name, {}), known, version)
            return b"".join(statistics_of(name, each, found) for each, found in counted.items())

        counts = self._served.counts if self._siblings is None else await self._siblings.counts()
        names = [model] if model else [each.name for each in self._state.snapshot.config.models]
        return b"".join(await asyncio.gather(*map(of, names)))

    async def repository_index(self, options: Options, *, ready: bool) -> Sequence[IndexEntry]:
        return await self._repository.index(options, ready=ready)

    async def trace_settings(
        self, changes: Mapping[str, Sequence[str] | None]
    ) -> Mapping[str, Sequence[str]]:
        return self._telemetry.settings.trace(await self._own("trace", changes))

    async def log_settings(self, changes: Mapping[str, object]) -> Mapping[str, bool | int | str]:
        return self._telemetry.settings.log(await self._own("log", changes))

    async def _own(self, kind: Kind, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """The changes that are still to be made here: none where all replicas have made them."""
        if not changes or self._siblings is None:
            return changes
        await self._siblings.change(kind, changes)
        return {}

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
