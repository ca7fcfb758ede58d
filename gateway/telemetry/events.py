"""What the gateway says about a request: one frozen event each, told to the metrics.

Instants are seconds of the monotonic clock. Events hold bounded names and numbers only, never
payload, header values or an endpoint's own words.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.decision import Decision, Outcome
from gateway.telemetry.names import NONE, OK
from oip.reasons import Reason


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision was taken, be it a refusal."""

    decision: Decision
    started: float
    ended: float


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """One attempt ended. `predicted_p50_ms` is None where the variant was not measured."""

    model: str
    endpoint: str
    outcome: Outcome
    started: float
    ended: float
    cost: float | None
    predicted_p50_ms: float | None = None
    tenant: str = NONE


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """A request ended, answered (`reason` None) or not. `trace_id` (32 hex digits) only if its trace
    is kept."""

    received: float
    ended: float
    reason: Reason | None = None
    model: str = NONE
    policy: str = NONE
    privacy: str = NONE
    tier: str = NONE
    tenant: str = NONE
    trace_id: str | None = None

    @property
    def code(self) -> str:
        return OK if self.reason is None else self.reason.value
