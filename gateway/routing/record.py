"""A decision as the plain record that the operator API shows and the store keeps.

Names, figures and sentences of ours only: no payload, no text of a backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from gateway.core.decision import Attempt, Candidate, Decision


def to_record(decision: Decision, attempts: Sequence[Attempt] = ()) -> dict[str, Any]:
    """JSON-ready. `time` is ISO-8601 in UTC with milliseconds; `privacy` are the decision's `classes`;
    `refused` {reason, message} is there only where the request was refused."""
    record: dict[str, Any] = {
        "id": decision.id,
        "time": _iso(decision.wall_time),
        "model": decision.model,
        "tenant": None,
        "privacy": decision.classes,
        "policy": decision.policy,
        "policy_revision": decision.revision,
        "chosen": decision.plan[0].variant.endpoint if decision.plan else None,
        "fallbacks": [c.variant.endpoint for c in decision.plan[1:]],
        "candidates": [_candidate(c, decision) for c in decision.candidates],
        "attempts": [
            {
                "endpoint": a.endpoint,
                "outcome": a.outcome.value,
                "latency_ms": a.latency_ms,
                "cost": a.cost,
                **({"device": a.device} if a.device else {}),
            }
            for a in attempts
        ],
    }
    if decision.refused is not None:
        record["refused"] = {"reason": decision.refused.value, "message": decision.message}
    return record


def _candidate(candidate: Candidate, decision: Decision) -> dict[str, Any]:
    variant, predicted = candidate.variant, candidate.predicted
    return {
        "endpoint": variant.endpoint,
        "tier": candidate.place.tier.value,
        "model": variant.model or decision.model,
        "version": variant.version or decision.version or None,
        "verdict": candidate.verdict.value,
        "reasons": [{"rule": n.rule, "detail": n.detail} for n in candidate.reasons],
        "predicted": {
            "latency_p50_ms": predicted.latency_p50_ms,
            "latency_p95_ms": predicted.latency_p95_ms,
            "cost": predicted.cost,
            "energy_j": None,
        },
        "scores": dict(candidate.scores),
    }


def _iso(wall_time: float) -> str:
    return datetime.fromtimestamp(wall_time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
