"""Handing out the places of a plan, one at a time: the only way dispatch gets one.

Whoever sends a request holds an `Attempts` and asks it for the next place before each attempt. It
asks the privacy wall again, under the configuration and for the devices of that moment, so a class
that was tightened, an endpoint that was moved or a device that went to another site between decision
and retry is respected without anybody thinking of it.
"""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType

from edgewire.allowed import AllowedSet
from gateway.core.config import Retry
from gateway.core.decision import Candidate, Decision, Snapshot
from gateway.core.errors import AttemptError
from gateway.core.ports import Permit
from gateway.core.request import Request
from gateway.decide.groups import pick, reach_group
from gateway.decide.tables import GROUP_PLACE, Compiled, Wall, compiled
from gateway.resilience.budget import RetryBudget
from gateway.resilience.retry import Halt, may_repeat, why_no_retry
from gateway.routing.pick import Rng
from gateway.routing.predict import key_of


def may_attempt(snapshot: Snapshot, decision: Decision, candidate: Candidate) -> bool:
    """Whether data of the decided request may go to the candidate now.

    It must be in the plan, or be a device of a group that is. Its place, as decided and as declared or
    enrolled by now, must be allowed by all classes of the decision, by the one the model has by now and
    by what a peer left. A class, endpoint or device that is gone allows nothing. A group without a
    device chosen may be attempted when one of its devices may.
    """
    planned = replace(candidate, device="", place=GROUP_PLACE) if candidate.device else candidate
    if planned not in decision.plan:
        return False
    tables = compiled(snapshot.config)
    return _open(tables, snapshot, wall_of(tables, decision, decision.allowed), decision, candidate)


def wall_of(tables: Compiled, decision: Decision, allowed: AllowedSet | None) -> Wall:
    """The wall for a decided request under other tables: the model's class of now counts too."""
    names = decision.privacy
    model = tables.models.get(decision.model)
    if model is not None and model.privacy not in names:
        names = (*names, model.privacy)
    return tables.wall(names, decision.origin, allowed)


class Attempts:
    """The attempts of one request, as a context: inside it the request counts in the retry budget.

    `snapshot` is the one that was decided on; `rng` draws among devices. `next` gives each endpoint of
    the plan at most once, best first, passing over those that have gone down since the decision; of a
    device group it gives one device after the other, each at most once.
    """

    def __init__(
        self, snapshot: Snapshot, decision: Decision, request: Request, budget: RetryBudget, rng: Rng
    ) -> None:
        tables = compiled(snapshot.config)
        policy = tables.by_name.get(decision.policy)
        self._decision = decision
        self._decided = snapshot.config
        self._options = request.options
        self._version = request.version
        self._budget = budget
        self._rng = rng
        # Another place would begin a state of its own, and the same one might count a step twice.
        once = policy is None or request.home is not None
        self._limits = Retry(num_retries=0) if policy is None or once else policy.retry
        self._replayable = request.payload_bytes <= tables.buffer_bytes
        self._repeatable = decision.model_config is not None and may_repeat(
            decision.model_config.idempotent, request.options.idempotent
        )
        self._made = 0
        self._tried: set[str] = set()
        self._tried_devices: set[str] = set()
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
        the attempt before ended, None for the first. A candidate of a group comes with `device` and
        that device's place."""
        self._end_retry()
        if failure is None:
            if self._made:
                raise ValueError("after an attempt, say how it failed")
            if time_left_s is not None and time_left_s <= 0:
                return Halt.DEADLINE
        else:
            halt = why_no_retry(
                failure,
                self._limits,
                retries_used=self._made - 1,
                repeatable=self._repeatable,
                replayable=self._replayable,
                time_left_s=time_left_s,
            )
            if halt is not None:
                return halt
        wall = wall_of(compiled(snapshot.config), self._decision, self._left(snapshot))
        found = self._next_place(snapshot, wall)
        if isinstance(found, Halt):
            return found
        if failure is not None:
            if not self._budget.admit_retry(self._limits):
                return Halt.BUDGET
            self._retrying = True
        self._made += 1
        if found.device:
            self._tried_devices.add(found.device)
        else:
            self._tried.add(found.variant.endpoint)
        return found, self._permit(snapshot, found, wall)

    def _left(self, snapshot: Snapshot) -> AllowedSet | None:
        """What narrows the classes: a peer's set, and after a reload what was decided on. A class that
        was widened meanwhile is for those who ask from now on."""
        if snapshot.config is self._decided:
            return self._decision.allowed
        decision = self._decision
        return compiled(self._decided).wall(decision.privacy, decision.origin, decision.allowed).allowed

    def _next_place(self, snapshot: Snapshot, wall: Wall) -> Candidate | Halt:
        tables = compiled(snapshot.config)
        halt = Halt.NO_PLACE
        for candidate in self._decision.plan:
            endpoint = candidate.variant.endpoint
            state = snapshot.endpoints.get(endpoint)
            if endpoint in self._tried or (state is not None and not state.up):
                continue
            if not _open(tables, snapshot, wall, self._decision, candidate):
                halt = Halt.PRIVACY
                continue
            if endpoint not in tables.groups:
                return candidate
            chosen = self._with_device(snapshot, wall, candidate)
            if chosen is not None:
                return chosen
        return halt

    def _with_device(self, snapshot: Snapshot, wall: Wall, candidate: Candidate) -> Candidate | None:
        assert self._decision.model_config is not None
        key = key_of(self._decision.model_config, candidate.variant)
        if not key.version:
            key = key._replace(version=self._version)
        device = pick(snapshot, key, wall, self._tried_devices, self._rng)
        return None if device is None else replace(candidate, device=device.name, place=device.place)

    def _permit(self, snapshot: Snapshot, candidate: Candidate, wall: Wall) -> Permit:
        options = self._options
        return Permit(
            wall.allowed,
            candidate.place,
            (*options.hops, snapshot.config.gateway.name),
            candidate.device,
            options.idempotent,
            options.max_cost,
        )

    def _end_retry(self) -> None:
        if self._retrying:
            self._retrying = False
            self._budget.end_retry()


def _open(tables: Compiled, snapshot: Snapshot, wall: Wall, decision: Decision, candidate: Candidate) -> bool:
    """Whether the wall lets a candidate of the plan through, at its place of now and as decided: a
    connection may still lead to where an endpoint was."""
    endpoint = candidate.variant.endpoint
    if endpoint not in tables.groups:
        declared = tables.places.get(endpoint)
        if declared is None or candidate.device or wall.of(declared):
            return False
        return declared == candidate.place or not wall.of(candidate.place)
    if candidate.device:
        group = snapshot.groups.get(endpoint)
        device = None if group is None else group.devices.get(candidate.device)
        return device is not None and not wall.of(device.place) and not wall.of(candidate.place)
    if candidate.place != GROUP_PLACE or decision.model_config is None:
        return False
    return not reach_group(snapshot, key_of(decision.model_config, candidate.variant), wall).refused_by
