"""Handing out the places of a plan, one at a time: the only way dispatch gets one.

Whoever sends a request holds an `Attempts` and asks it for the next place before each attempt. It
asks the privacy wall again, under the configuration of that moment, so a class that was tightened
or an endpoint that was moved between decision and retry is respected without anybody thinking of it.
"""

from __future__ import annotations

from types import TracebackType

from gateway.core.config import Retry
from gateway.core.decision import Candidate, Decision, Snapshot
from gateway.core.errors import AttemptError
from gateway.core.ports import Permit
from gateway.core.request import Request
from gateway.decide.tables import compiled
from gateway.policy.privacy import allowed
from gateway.resilience.budget import RetryBudget
from gateway.resilience.retry import Halt, may_repeat, why_no_retry


def may_attempt(snapshot: Snapshot, decision: Decision, candidate: Candidate) -> bool:
    """Whether data of the decided request may go to the candidate now.

    It must be in the plan, and its place, as decided and as declared by now, must be allowed by all
    classes of the decision and by the one the model has by now. A class or endpoint that is gone
    allows nothing.
    """
    if candidate not in decision.plan:
        return False
    tables = compiled(snapshot.config)
    names = decision.privacy
    model = tables.models.get(decision.model)
    if model is not None and model.privacy not in names:
        names = (*names, model.privacy)
    if tables.wall(names, decision.origin).endpoints.get(candidate.variant.endpoint, names):
        return False
    declared = tables.places[candidate.variant.endpoint]
    return declared == candidate.place or allowed(
        tables.classes_named(names), candidate.place, decision.origin
    )


class Attempts:
    """The attempts of one request, as a context: inside it the request counts in the retry budget.

    `next` gives each endpoint of the plan at most once, best first, passing over those that have
    gone down since the decision.
    """

    def __init__(self, snapshot: Snapshot, decision: Decision, request: Request, budget: RetryBudget) -> None:
        tables = compiled(snapshot.config)
        policy = tables.by_name.get(decision.policy)
        self._decision = decision
        self._options = request.options
        self._budget = budget
        self._limits = Retry(num_retries=0) if policy is None else policy.retry
        self._replayable = request.payload_bytes <= tables.buffer_bytes
        self._repeatable = decision.model_config is not None and may_repeat(
            decision.model_config.idempotent, request.options.idempotent
        )
        self._tried: set[str] = set()
        self._retrying = False

    def __enter__(self) -> Attempts:
        self._budget.begin_request()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_retry()
        self._budget.end_request()

    def next(
        self, snapshot: Snapshot, time_left_s: float | None, failure: AttemptError | None = None
    ) -> tuple[Candidate, Permit] | Halt:
        """The place for the next attempt and the leave for it, or why there is none. `failure` is how
        the attempt before ended, None for the first."""
        self._end_retry()
        if failure is None:
            if self._tried:
                raise ValueError("after an attempt, say how it failed")
            if time_left_s is not None and time_left_s <= 0:
                return Halt.DEADLINE
        else:
            halt = why_no_retry(
                failure,
                self._limits,
                retries_used=len(self._tried) - 1,
                repeatable=self._repeatable,
                replayable=self._replayable,
                time_left_s=time_left_s,
            )
            if halt is not None:
                return halt
        found = self._next_place(snapshot)
        if isinstance(found, Halt):
            return found
        if failure is not None:
            if not self._budget.admit_retry(self._limits):
                return Halt.BUDGET
            self._retrying = True
        self._tried.add(found.variant.endpoint)
        return found, self._permit(snapshot, found)

    def _next_place(self, snapshot: Snapshot) -> Candidate | Halt:
        halt = Halt.NO_PLACE
        for candidate in self._decision.plan:
            endpoint = candidate.variant.endpoint
            state = snapshot.endpoints.get(endpoint)
            if endpoint in self._tried or (state is not None and not state.up):
                continue
            if may_attempt(snapshot, self._decision, candidate):
                return candidate
            halt = Halt.PRIVACY
        return halt

    def _permit(self, snapshot: Snapshot, candidate: Candidate) -> Permit:
        config, options = snapshot.config, self._options
        names = self._decision.privacy
        return Permit(
            compiled(config).wall(names, self._decision.origin).allowed,
            candidate.place,
            (*options.hops, config.gateway.name),
            candidate.device,
            options.idempotent,
            options.max_cost,
        )

    def _end_retry(self) -> None:
        if self._retrying:
            self._retrying = False
            self._budget.end_retry()
