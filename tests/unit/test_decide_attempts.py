from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.core.config import Retry
from gateway.core.decision import Decision, Snapshot, VariantState
from gateway.core.errors import AttemptError
from gateway.decide import Attempts, decide, may_attempt
from gateway.resilience.budget import RetryBudget
from gateway.resilience.retry import Halt
from oip.reasons import Reason
from tests.unit.decide_config import (
    NOW,
    Fixed,
    config_of,
    endpoint,
    figure,
    model,
    policy,
    request_of,
    snapshot_of,
)

UNSENT = AttemptError(
    Reason.UNAVAILABLE, "no connection", grpc_status="UNAVAILABLE", sent=False, retryable=True
)
BROKEN = AttemptError(Reason.UNAVAILABLE, "gone", grpc_status="UNAVAILABLE", sent=True, retryable=True)
VERDICT = AttemptError(
    Reason.MALFORMED, "wrong shape", grpc_status="INVALID_ARGUMENT", sent=True, retryable=False
)


def idle(budget: RetryBudget) -> bool:
    """Whether nothing is in flight: what never began cannot end."""
    for end in (budget.end_request, budget.end_retry):
        with pytest.raises(ValueError, match="never began"):
            end()
    return True


class Run:
    """A decision for two places (dear, then cheap) and the attempts along it."""

    def __init__(self, request: Any = None, budget: RetryBudget | None = None, **changes: Any) -> None:
        self.snapshot = snapshot_of(config_of(**changes))
        self.request = request or request_of()
        self.decision: Decision = decide(self.snapshot, self.request, NOW, Fixed())
        self.budget = budget or RetryBudget()
        self.attempts = Attempts(self.snapshot, self.decision, self.request, self.budget, Fixed())

    def next(
        self, failure: AttemptError | None = None, left: float | None = None, snapshot: Snapshot | None = None
    ) -> str | Halt:
        found = self.attempts.next(snapshot or self.snapshot, left, failure)
        return found if isinstance(found, Halt) else found[0].variant.endpoint


def test_each_place_once_best_first() -> None:
    run = Run(policies=[policy(retry={"num_retries": 5})])
    with run.attempts:
        assert run.next() == "dear"
        assert run.next(BROKEN) == "cheap"
        assert run.next(BROKEN) is Halt.NO_PLACE


@pytest.mark.parametrize(
    ("failure", "left", "changes", "expected"),
    [
        (BROKEN, 0.1, {}, "cheap"),
        (VERDICT, None, {}, Halt.NOT_RETRYABLE),
        (BROKEN, 0.0, {}, Halt.DEADLINE),
        (BROKEN, None, {"policies": [policy(retry={"num_retries": 0})]}, Halt.NUM_RETRIES),
        (BROKEN, None, {"models": [model(idempotent=False)]}, Halt.NOT_IDEMPOTENT),
        (UNSENT, None, {"models": [model(idempotent=False)]}, "cheap"),
        (BROKEN, None, {"request": request_of(idempotent=False)}, Halt.NOT_IDEMPOTENT),
        (UNSENT, None, {"request": request_of(idempotent=False)}, "cheap"),
        (
            BROKEN,
            None,
            {"models": [model(idempotent=False)], "request": request_of(idempotent=True)},
            "cheap",
        ),
        (UNSENT, None, {"request": request_of(payload_bytes=4 * 2**20 + 1)}, Halt.NOT_REPLAYABLE),
        (UNSENT, None, {"request": request_of(payload_bytes=4 * 2**20)}, "cheap"),
        (
            BROKEN,
            None,
            {"policies": [policy(retry={"budget_percent": 20, "min_concurrent": 0})]},
            Halt.BUDGET,
        ),
    ],
)
def test_a_second_attempt(
    failure: AttemptError, left: float | None, changes: dict[str, Any], expected: str | Halt
) -> None:
    run = Run(**changes)
    with run.attempts:
        assert run.next() == "dear"
        assert run.next(failure, left) == expected


def test_the_first_attempt_needs_time_too() -> None:
    run = Run()
    with run.attempts:
        assert run.next(left=0.0) is Halt.DEADLINE


def test_a_place_that_went_down_is_passed_over() -> None:
    run = Run()
    down = snapshot_of(run.snapshot.config, down={"dear": "gone"})
    with run.attempts:
        assert run.next(snapshot=down) == "cheap"


def test_the_same_endpoint_is_not_another_place() -> None:
    twins = model(variants=[{"endpoint": "dear", "version": v} for v in ("1", "2")] + [{"endpoint": "cheap"}])
    states = {"cheap": VariantState(True, figure(40), trials=3)}
    run = Run(models=[twins])
    run.snapshot = snapshot_of(run.snapshot.config, states)
    run.decision = decide(run.snapshot, run.request, NOW, Fixed())
    assert [c.variant.endpoint for c in run.decision.plan] == ["dear", "dear", "cheap"]
    with Attempts(run.snapshot, run.decision, run.request, run.budget, Fixed()) as run.attempts:
        assert run.next() == "dear"
        assert run.next(BROKEN) == "cheap"


def test_privacy_is_asked_again_under_the_configuration_of_the_moment() -> None:
    run = Run()
    moved = config_of(
        endpoints=[endpoint("cheap", region="us"), endpoint("dear", region="eu"), endpoint("us")]
    )
    with run.attempts:
        assert run.next() == "dear"
        assert run.next(BROKEN, snapshot=snapshot_of(moved)) is Halt.PRIVACY


def test_what_may_be_attempted() -> None:
    run = Run()
    decision = run.decision
    first = decision.plan[0]
    assert may_attempt(run.snapshot, decision, first)
    excluded = decision.candidates[2]
    assert excluded not in decision.plan
    assert not may_attempt(run.snapshot, decision, excluded)
    assert not may_attempt(run.snapshot, replace(decision, plan=()), first)
    gone = config_of(
        endpoints=[endpoint("cheap", region="eu")], models=[model(variants=[{"endpoint": "cheap"}])]
    )
    assert not may_attempt(snapshot_of(gone), decision, first)
    stricter = config_of(models=[model(privacy="american")])
    assert not may_attempt(snapshot_of(stricter), decision, first)
    lost_class = config_of(
        privacy={"default": "other", "classes": {"other": {"allow": [{"tier": ["site", "cloud"]}]}}}
    )
    assert not may_attempt(snapshot_of(lost_class), decision, first)


def test_a_connection_may_still_lead_to_the_place_as_it_was_decided() -> None:
    run = Run()
    moved = config_of(
        endpoints=[
            endpoint("cheap", region="eu"),
            endpoint("dear", tier="site", site="plant-7"),
            endpoint("us"),
        ],
        privacy={"default": "internal", "classes": {"internal": {"allow": [{"tier": ["site"]}]}}},
    )
    assert not may_attempt(snapshot_of(moved), run.decision, run.decision.plan[0])


def test_the_budget_is_given_back_whatever_happens() -> None:
    budget, one = RetryBudget(), Retry(budget_percent=0, min_concurrent=1)
    run = Run(budget=budget, policies=[policy(retry={"num_retries": 5, "min_concurrent": 1})])

    def go() -> None:
        with run.attempts:
            run.next()
            run.next(BROKEN)
            assert not budget.admit_retry(one), "the retry in flight is not counted"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        go()
    assert idle(budget)


def test_an_attempt_is_not_followed_by_a_first_one() -> None:
    run = Run()
    with run.attempts:
        run.next()
        with pytest.raises(ValueError, match="how it failed"):
            run.next()
