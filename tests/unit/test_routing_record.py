from __future__ import annotations

import json
from dataclasses import replace

from gateway.core.decision import Attempt, Outcome, VariantKey, VariantState
from gateway.decide import decide
from gateway.routing.record import to_record
from tests.unit.decide_config import NOW, Fixed, config_of, figure, model, request_of, snapshot_of

NAMES = [
    "id",
    "time",
    "model",
    "tenant",
    "privacy",
    "policy",
    "policy_revision",
    "chosen",
    "fallbacks",
    "candidates",
    "attempts",
]


def test_the_record_of_an_answer() -> None:
    renamed = model(
        variants=[
            {"endpoint": "cheap"},
            {"endpoint": "dear", "model": "mnist", "version": "3"},
            {"endpoint": "us"},
        ]
    )
    known = {
        VariantKey("cheap", "digits", ""): VariantState(True, figure(40, 80)),
        VariantKey("dear", "mnist", "3"): VariantState(True, figure(10)),
    }
    snapshot = replace(snapshot_of(config_of(models=[renamed])), variants=known)
    decision = decide(snapshot, request_of(privacy="public"), NOW, Fixed())
    attempts = [
        Attempt("dear", Outcome.UNAVAILABLE, 1.5, 0.0),
        Attempt("cheap", Outcome.OK, 40.0, 0.001),
    ]
    record = to_record(decision, attempts)
    assert list(record) == NAMES
    assert json.loads(json.dumps(record)) == record
    assert record["time"] == "2023-11-14T22:13:20.123Z"
    assert (record["id"], record["tenant"]) == ("id-1", None)
    assert record["privacy"] == "internal&public"
    assert (record["chosen"], record["fallbacks"]) == ("dear", ["cheap"])
    assert record["attempts"] == [
        {"endpoint": "dear", "outcome": "unavailable", "latency_ms": 1.5, "cost": 0.0},
        {"endpoint": "cheap", "outcome": "ok", "latency_ms": 40.0, "cost": 0.001},
    ]
    cheap, dear, us = record["candidates"]
    assert cheap == {
        "endpoint": "cheap",
        "tier": "cloud",
        "model": "digits",
        "version": None,
        "verdict": "eligible",
        "reasons": [{"rule": "score", "detail": "a fallback: its total is behind, or an equal was drawn"}],
        "predicted": {"latency_p50_ms": 40, "latency_p95_ms": 80, "cost": 0.001, "energy_j": None},
        "scores": {"latency": 0.25, "total": 0.25},
    }
    assert (dear["model"], dear["version"], dear["verdict"]) == ("mnist", "3", "chosen")
    assert us["verdict"] == "excluded"
    assert us["reasons"] == [{"rule": "privacy", "detail": "class 'internal' does not allow this place"}]


def test_the_record_of_a_refusal() -> None:
    record = to_record(decide(snapshot_of(config_of()), request_of("nope"), NOW, Fixed()))
    assert list(record) == [*NAMES, "refused"]
    assert record["refused"] == {
        "reason": "unknown_model",
        "message": "Request for unknown model: 'nope' is not found",
    }
    assert (record["chosen"], record["policy"], record["candidates"]) == (None, "", [])
