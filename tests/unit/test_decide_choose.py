from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.decision import (
    Decision,
    Hurry,
    LatencyFigure,
    Note,
    Source,
    VariantKey,
    VariantState,
    Verdict,
)
from gateway.core.place import Origin
from gateway.core.request import Request
from gateway.decide import decide
from gateway.routing.latency import MIN_LIVE, PROOF_S, SILENCE_S, haste
from oip.reasons import Reason
from tests.unit.decide_config import (
    NOW,
    Fixed,
    config_of,
    endpoint,
    figure,
    measured,
    model,
    policy,
    request_of,
    snapshot_of,
)

MEASURED = {
    "cheap": measured(40, 80),
    "dear": measured(10, 20),
    "us": measured(5, 6),
}


def decided(
    variants: dict[str, VariantState] | None = None,
    down: dict[str, str] | None = None,
    request: Any = None,
    **changes: Any,
) -> Decision:
    snapshot = snapshot_of(config_of(**changes), variants or MEASURED, down)
    return decide(snapshot, request or request_of(), NOW, Fixed())


def plan(decision: Decision) -> list[str]:
    return [c.variant.endpoint for c in decision.plan]


def notes(decision: Decision, name: str) -> list[Note]:
    (candidate,) = [c for c in decision.candidates if c.variant.endpoint == name]
    return list(candidate.reasons)


def rules(decision: Decision, name: str) -> list[str]:
    return [note.rule for note in notes(decision, name)]


def test_a_plan_and_what_is_said_of_it() -> None:
    decision = decided()
    assert plan(decision) == ["dear", "cheap"]
    assert [c.verdict for c in decision.candidates] == [
        Verdict.ELIGIBLE,
        Verdict.CHOSEN,
        Verdict.EXCLUDED,
    ]
    assert decision.candidates[1].scores == {"latency": 1.0, "total": 1.0}
    assert decision.candidates[0].scores == {"latency": 0.25, "total": 0.25}
    assert decision.candidates[2].scores == {}
    assert notes(decision, "us") == [Note("privacy", "class 'internal' does not allow this place")]
    assert decision.candidates[2].predicted.latency_p50_ms == 5
    assert decision.refused is None
    assert (decision.policy, decision.revision, decision.privacy) == ("default", "rev-1", ("internal",))
    assert decision.origin == Origin("plant-7")
    assert decision.plan[0] is decision.candidates[1]


def test_the_cheapest_first_unless_a_requirement_says_no() -> None:
    cost_first = policy(weights={"cost": 1.0})
    assert plan(decided(policies=[cost_first])) == ["cheap", "dear"]
    strict = decided(policies=[{**cost_first, "require": {"latency_p95_ms": 50}}])
    assert plan(strict) == ["dear"]
    assert notes(strict, "cheap") == [Note("require.latency_p95_ms", "p95 80.0 ms is over 50 ms")]


def test_each_requirement_and_limit_has_its_rule() -> None:
    decision = decided(policies=[policy(require={"max_cost_per_1k": 2})])
    assert rules(decision, "dear") == ["require.max_cost_per_1k"]
    decision = decided(request=request_of(max_cost=0.002))
    assert rules(decision, "dear") == ["max_cost"]
    decision = decided(request=request_of(time_left_s=0.039))
    assert rules(decision, "cheap") == ["deadline"]
    assert plan(decided(request=request_of(time_left_s=0.040))) == ["dear", "cheap"]
    graded = model(variants=[{"endpoint": "cheap", "quality": 0.7}, {"endpoint": "dear", "quality": 0.9}])
    decision = decided(models=[graded], policies=[policy(require={"min_quality": 0.8})])
    assert rules(decision, "cheap") == ["require.min_quality"]
    assert plan(decision) == ["dear"]


def test_health_excludes() -> None:
    decision = decided(down={"dear": "connection refused"})
    assert plan(decision) == ["cheap"]
    assert notes(decision, "dear") == [Note("health", "the endpoint is down: connection refused")]
    unready = {**MEASURED, "dear": VariantState(False, figure(10))}
    assert rules(decided(unready), "dear") == ["health"]
    unasked = {**MEASURED, "dear": VariantState(None, figure(10))}
    assert plan(decided(unasked)) == ["dear", "cheap"]


def test_what_is_not_known_never_excludes_and_is_tried() -> None:
    hourly = endpoint("dear", region="eu", price={"per_hour": 3.6})
    places = [endpoint("cheap", region="eu", price={"per_request": 0.001}), hourly]
    two = model(variants=[{"endpoint": "cheap"}, {"endpoint": "dear"}])
    demanding = policy(
        weights={"cost": 1, "latency": 1},
        require={"latency_p95_ms": 100, "max_cost_per_1k": 5, "min_quality": 0.5},
    )
    changes = {"endpoints": places, "models": [two], "policies": [demanding]}
    for trials, order in [(2, ["dear", "cheap"]), (3, ["cheap", "dear"])]:
        states = {
            "cheap": measured(40, 80),
            "dear": VariantState(True, trials=trials),
        }
        decision = decided(states, request=request_of(time_left_s=0.05), **changes)
        if trials == 2:
            assert decision.candidates[1].scores["total"] == 1.0
            assert rules(decision, "dear")[:3] == ["unmeasured", "unmeasured", "unmeasured"]
            assert set(plan(decision)) == set(order)
        else:
            assert decision.candidates[1].scores["total"] == 0.0
            assert plan(decision) == order


def test_a_stale_figure_is_probed_once_and_refuses_no_deadline() -> None:
    strict = [policy(require={"latency_p95_ms": 50})]

    def stale(trials: int) -> dict[str, VariantState]:
        return {
            "cheap": measured(40, 80, age_s=601, trials=trials),
            "dear": measured(10, 20),
        }

    probed = decided(stale(0), policies=strict)
    assert set(plan(probed)) == {"cheap", "dear"}
    assert probed.candidates[0].scores["latency"] == 1.0
    assert rules(probed, "cheap")[0] == "stale"
    assert rules(decided(stale(1), policies=strict), "cheap") == ["require.latency_p95_ms"]
    for trials in (0, 1):
        hurried = decided(stale(trials), request=request_of(time_left_s=0.03))
        assert set(plan(hurried)) == {"cheap", "dear"}


def test_versions() -> None:
    versions = model(
        variants=[
            {"endpoint": "cheap", "version": "1"},
            {"endpoint": "dear", "version": "2"},
            {"endpoint": "us"},
        ]
    )
    public = {"models": [versions], "request": request_of(version="2", privacy=None)}
    decision = decided(**public)
    assert plan(decision) == ["dear"]
    assert rules(decision, "cheap") == ["version"]
    pinned = model(variants=versions["variants"][:2])
    refused = decided(models=[pinned], request=request_of(version="9"))
    assert refused.refused is Reason.UNKNOWN_VERSION
    assert refused.message == "Request for unknown model: 'digits' version 9 is not found"
    open_version = model(variants=[{"endpoint": "dear"}])
    assert plan(decided(models=[open_version], request=request_of(version="9"))) == ["dear"]


def test_a_version_of_none_of_the_places_that_a_request_may_go_to_is_unknown() -> None:
    # "us" may have any version, but the class keeps the request from it.
    versions = model(variants=[{"endpoint": "cheap", "version": "1"}, {"endpoint": "us"}])
    refused = decided(models=[versions], request=request_of(version="9"))
    assert rules(refused, "us") == ["privacy"]
    assert refused.refused is Reason.UNKNOWN_VERSION
    down = decided(down={"cheap": "gone"}, models=[versions], request=request_of(version="1"))
    assert down.refused is Reason.NO_CANDIDATE


@pytest.mark.parametrize("version", ["1.0", "01", " 1", "1 ", "+1", "-1", "1x", "v1", "\uff11", str(2**63)])
def test_a_version_that_is_no_number_in_its_one_spelling_is_refused(version: str) -> None:
    open_version = model(variants=[{"endpoint": "dear"}])
    refused = decided(models=[open_version], request=request_of(version=version))
    assert refused.refused is Reason.MALFORMED
    assert refused.message.startswith(
        f"failed to get model version from specified version string '{version}'"
    )


@pytest.mark.parametrize("version", ["0", "1", "10", str(2**63 - 1)])
def test_a_number_is_a_version(version: str) -> None:
    open_version = model(variants=[{"endpoint": "dear"}])
    assert plan(decided(models=[open_version], request=request_of(version=version))) == ["dear"]


def test_measurements_are_kept_by_what_the_endpoint_calls_the_model() -> None:
    renamed = model(variants=[{"endpoint": "cheap", "model": "mnist", "version": "3"}])
    snapshot = snapshot_of(config_of(models=[renamed]), MEASURED)
    known = {VariantKey("cheap", "mnist", "3"): measured(7)}
    decision = decide(
        type(snapshot)(snapshot.config, "r", snapshot.endpoints, known), request_of(), NOW, Fixed()
    )
    assert decision.candidates[0].predicted.latency_p50_ms == 7


def test_relaxing_drops_requirements_in_order_and_says_so() -> None:
    strict = policy(
        require={"latency_p95_ms": 50, "max_cost_per_1k": 2},
        on_no_candidate={"relax": ["cost", "latency"]},
    )
    decision = decided(policies=[strict])
    assert plan(decision) == ["dear"]
    assert rules(decision, "dear") == ["relaxed", "score"]
    assert rules(decision, "cheap") == ["require.latency_p95_ms"]
    decision = decided(policies=[{**strict, "on_no_candidate": {"relax": ["latency", "cost"]}}])
    assert plan(decision) == ["cheap"]
    decision = decided(policies=[{**strict, "on_no_candidate": "reject"}])
    assert decision.refused is Reason.NO_CANDIDATE


def test_relaxing_never_touches_privacy_deadline_or_the_callers_cost() -> None:
    lenient = policy(require={"latency_p95_ms": 1}, on_no_candidate={"relax": ["latency", "cost", "quality"]})
    assert plan(decided(policies=[lenient])) == ["dear", "cheap"]
    just_tried = measured(40, hurry=Hurry({haste(20.0): NOW}))
    hurried = decided(
        {"cheap": just_tried, "dear": measured(10)},
        policies=[lenient],
        request=request_of(time_left_s=0.02, max_cost=0.002),
    )
    assert hurried.refused is Reason.NO_CANDIDATE
    assert rules(hurried, "cheap") == ["deadline", "require.latency_p95_ms"]
    assert rules(hurried, "dear") == ["max_cost", "require.latency_p95_ms"]


def test_refused_because_no_place_is_allowed() -> None:
    decision = decided(request=request_of(privacy="american"))
    assert decision.refused is Reason.PRIVACY
    assert decision.message == (
        "No endpoint of model 'digits' is in a place that classes 'internal' and 'american' allow"
    )
    assert decision.plan == ()
    assert notes(decision, "us") == [Note("privacy", "class 'internal' does not allow this place")]
    assert notes(decision, "dear") == [Note("privacy", "class 'american' does not allow this place")]


def test_refused_because_there_is_no_time() -> None:
    for left in (0.0, -1.0, math.nan):
        decision = decided(request=request_of(time_left_s=left))
        assert decision.refused is Reason.DEADLINE
    assert notes(decision, "dear") == [Note("deadline", "no time is left")]


SLOW = {"cheap": measured(40, 80), "dear": measured(100)}


def test_where_time_alone_excludes_the_quickest_is_tried_and_then_not_for_a_second() -> None:
    decision = decided(SLOW, request=request_of(time_left_s=0.03))
    assert plan(decision) == ["cheap"]
    assert notes(decision, "cheap")[0] == Note(
        "hurried", "answers take 40.0 ms and 30.0 ms are left: tried all the same"
    )
    assert rules(decision, "dear") == ["deadline"]

    def tried(place: str, ago_s: float, given_ms: float = 30.0) -> dict[str, VariantState]:
        hurry = Hurry({haste(given_ms): NOW - ago_s})
        return {**SLOW, place: replace(SLOW[place], hurry=hurry)}

    hurried = request_of(time_left_s=0.03)
    assert decided(tried("cheap", 0.99), request=hurried).refused is Reason.DEADLINE
    assert decided(tried("dear", 0.99), request=hurried).refused is Reason.DEADLINE
    assert plan(decided(tried("cheap", 1.0), request=hurried)) == ["dear"], "not asked for longest"
    assert plan(decided(tried("dear", 1.0), request=hurried)) == ["cheap"]
    assert plan(decided(tried("cheap", 0.1, given_ms=15.9), request=hurried)) == ["cheap"]


@pytest.mark.parametrize(
    ("change", "request_"),
    [
        ({}, request_of(time_left_s=0.03, max_cost=0.0001)),
        ({"policies": [policy(require={"latency_p95_ms": 10})]}, request_of(time_left_s=0.03)),
    ],
)
def test_nothing_is_tried_in_a_hurry_that_another_rule_excludes(
    change: dict[str, Any], request_: Request
) -> None:
    assert decided(SLOW, request=request_, **change).plan == ()


def test_a_hurried_answer_of_late_outweighs_the_figure() -> None:
    def proven(ago_s: float) -> dict[str, VariantState]:
        hurry = Hurry({haste(7.0): NOW}, answered_ms=8.0, answered_at=NOW - ago_s)
        return {"cheap": measured(40, 80), "dear": measured(100, hurry=hurry)}

    assert plan(decided(proven(PROOF_S), request=request_of(time_left_s=0.05))) == ["cheap", "dear"]
    assert plan(decided(proven(PROOF_S + 1), request=request_of(time_left_s=0.05))) == ["cheap"]
    assert plan(decided(proven(1), request=request_of(time_left_s=0.009))) == ["dear"]
    assert rules(decided(proven(1), request=request_of(time_left_s=0.007)), "dear") == ["deadline"]


def test_what_was_cut_off_ranks_a_place_and_refuses_nobody() -> None:
    grey = VariantState(True, figure(1000), answers=None)
    decision = decided({"cheap": grey, "dear": measured(10)}, request=request_of(time_left_s=0.06))
    assert plan(decision) == ["dear", "cheap"]
    assert decision.candidates[0].scores["latency"] == 0.01


def test_a_few_samples_miss_no_requirement() -> None:
    few = LatencyFigure(30, 80, MIN_LIVE - 1, NOW, Source.LIVE)
    strict = [policy(require={"latency_p95_ms": 50})]
    for latency, expected in [
        (few, ["dear", "cheap"]),
        (replace(few, samples=MIN_LIVE), ["dear"]),
        (replace(few, source=Source.PROFILE), ["dear"]),
    ]:
        states = {"cheap": VariantState(True, latency), "dear": measured(10)}
        assert plan(decided(states, policies=strict)) == expected


def test_place_shut_out_by_a_slow_spell_is_looked_at_again() -> None:
    """Once it has been silent for a while one attempt may go there, whatever the requirement says."""
    strict = [policy(require={"latency_p95_ms": 50})]

    def planned(age_s: float, trials: int = 0) -> list[str]:
        spell = LatencyFigure(30, 80, MIN_LIVE, NOW - age_s, Source.LIVE)
        states = {"cheap": VariantState(True, spell, trials=trials), "dear": measured(10)}
        return plan(decided(states, policies=strict))

    assert planned(SILENCE_S) == ["dear"]
    assert planned(SILENCE_S + 1) == ["dear", "cheap"]
    assert planned(SILENCE_S + 1, trials=1) == ["dear"]


HOSTILE = (0.0, -1.0, math.nan, math.inf, -math.inf, 1e308, 5e-324)


@pytest.mark.parametrize("weights", [{"latency": 1}, {"cost": 1}, {"cost": 1, "latency": 1, "quality": 1}])
@pytest.mark.parametrize("require", [{"latency_p95_ms": 50, "max_cost_per_1k": 1}, {}])
def test_hostile_numbers_decide_something(weights: dict[str, float], require: dict[str, float]) -> None:
    config = config_of(
        endpoints=[
            endpoint("cheap", region="eu", price={"per_hour": 3.6, "egress_per_gb": 0.1}),
            endpoint("dear", region="eu", price={"per_hour": 1e300, "egress_per_gb": 1e300}),
            endpoint("us", region="us"),
        ],
        policies=[policy(weights=weights, require=require)],
    )
    for number in HOSTILE:
        latency = LatencyFigure(number, number, 50, number, Source.LIVE)
        bad = VariantState(
            True, latency, number, number, number, latency, Hurry({haste(30.0): number}, number, number)
        )
        for states in ({"cheap": bad, "dear": bad}, {"cheap": bad, "dear": measured(10)}):
            for size in (0, 10**400):
                for left in (*HOSTILE, 0.03, None):
                    request = request_of(
                        payload_bytes=size, time_left_s=left, max_cost=number if require else None
                    )
                    decision = decide(snapshot_of(config, states), request, NOW, Fixed())
                    assert (decision.refused is None) == bool(decision.plan)
                    for c in decision.candidates:
                        assert all(math.isfinite(value) for value in c.scores.values())


def test_a_refusal_does_not_grow_with_the_number_of_places() -> None:
    names = [f"{i:03}-{'n' * 120}" for i in range(150)]
    many = config_of(
        endpoints=[endpoint(name, region="eu") for name in names],
        models=[model(variants=[{"endpoint": name} for name in names])],
    )
    decision = decide(snapshot_of(many, down=dict.fromkeys(names, "d" * 500)), request_of(), NOW, Fixed())
    assert decision.message.endswith("; and 144 more")
    assert decision.message.count(" (health): ") == 6
    assert len(decision.message) < 2048


def test_refused_with_the_first_rule_of_each_place() -> None:
    decision = decided(down={"cheap": "", "dear": "timed out"})
    assert decision.refused is Reason.NO_CANDIDATE
    assert decision.message == (
        "No place can answer model 'digits' under policy 'default':"
        " cheap (health): the endpoint is down;"
        " dear (health): the endpoint is down: timed out;"
        " us (privacy): class 'internal' does not allow this place"
    )


def test_policies_by_name() -> None:
    policies = [
        policy(name="for-others", match={"models": ["other"]}),
        policy(name="costly", match={"privacy": ["public"]}, weights={"cost": 1}),
        policy(),
    ]
    assert decided(policies=policies).policy == "default"
    assert decided(policies=policies, request=request_of(privacy="public")).policy == "costly"
    named = decided(policies=policies, request=request_of(policy="for-others"))
    assert named.refused is Reason.BAD_OPTION
    assert named.message == "Policy 'for-others' of tidegate-policy does not match this request"
    unknown = decided(policies=policies, request=request_of(policy="none"))
    assert unknown.refused is Reason.BAD_OPTION
    assert unknown.message == "Unknown policy 'none' in tidegate-policy"


@pytest.mark.parametrize(("site", "expected"), [(None, "local"), ("plant-9", "default")])
def test_a_policys_site_is_the_callers_or_the_origins(site: str | None, expected: str) -> None:
    policies = [policy(name="local", match={"sites": ["plant-7"]}), policy()]
    assert decided(policies=policies, request=request_of(site=site)).policy == expected


def test_unknown_names() -> None:
    decision = decided(request=request_of("nope"))
    assert decision.refused is Reason.UNKNOWN_MODEL
    assert decision.message == "Request for unknown model: 'nope' is not found"
    assert (decision.privacy, decision.model_config) == ((), None)
    decision = decided(request=request_of(privacy="nope"))
    assert decision.refused is Reason.BAD_OPTION
    assert decision.privacy == ("internal",)


def test_a_name_without_end_does_not_fill_records_and_messages() -> None:
    decision = decided(request=request_of("x" * 10_000))
    assert len(decision.model) == 256
    assert len(decision.message) < 400


def test_weights_share_equals() -> None:
    canary = model(
        variants=[
            {"endpoint": "cheap", "version": "1", "weight": 9},
            {"endpoint": "cheap", "version": "2", "weight": 1},
            {"endpoint": "dear", "version": "1", "weight": 0},
        ]
    )
    config = config_of(models=[canary])
    same = measured(10)
    known = {VariantKey(e, "digits", v): same for e, v in [("cheap", "1"), ("cheap", "2"), ("dear", "1")]}
    snapshot = snapshot_of(config)
    snapshot = type(snapshot)(config, "r", snapshot.endpoints, known)
    rng = random.Random(7)
    first = [decide(snapshot, request_of(), NOW, rng).plan[0].variant for _ in range(2000)]
    canaries = sum(v.version == "2" for v in first)
    assert 150 < canaries < 250
    assert all(v.endpoint == "cheap" for v in first)
    last = decide(snapshot, request_of(), NOW, rng)
    assert {c.variant.endpoint for c in last.plan} == {"cheap", "dear"}
    assert last.plan[0].reasons[-1] == Note("score", "drawn by weight among 3 equals")
