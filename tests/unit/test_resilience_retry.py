from __future__ import annotations

import pytest

from gateway.core.config import Retry
from gateway.core.errors import AttemptError
from gateway.resilience.budget import RetryBudget
from gateway.resilience.deadline import given_deadline, nearest, request_deadline
from gateway.resilience.retry import Halt, may_repeat, why_no_retry
from oip.reasons import Reason


def failed(*, sent: bool = True, retryable: bool = True) -> AttemptError:
    return AttemptError(Reason.UNAVAILABLE, "gone", grpc_status="UNAVAILABLE", sent=sent, retryable=retryable)


@pytest.mark.parametrize(
    ("failure", "used", "repeatable", "replayable", "left", "expected"),
    [
        (failed(), 0, True, True, None, None),
        (failed(), 0, True, True, 0.1, None),
        (failed(retryable=False), 0, True, True, None, Halt.NOT_RETRYABLE),
        (failed(), 0, True, False, None, Halt.NOT_REPLAYABLE),
        (failed(sent=False), 0, True, False, None, Halt.NOT_REPLAYABLE),
        (failed(), 0, False, True, None, Halt.NOT_IDEMPOTENT),
        (failed(sent=False), 0, False, True, None, None),
        (failed(), 2, True, True, None, Halt.NUM_RETRIES),
        (failed(), 1, True, True, None, None),
        (failed(), 0, True, True, 0.0, Halt.DEADLINE),
    ],
)
def test_may_there_be_another(
    failure: AttemptError,
    used: int,
    repeatable: bool,
    replayable: bool,
    left: float | None,
    expected: Halt | None,
) -> None:
    assert (
        why_no_retry(
            failure,
            Retry(num_retries=2),
            retries_used=used,
            repeatable=repeatable,
            replayable=replayable,
            time_left_s=left,
        )
        is expected
    )


@pytest.mark.parametrize(
    ("model", "option", "expected"),
    [(True, None, True), (False, None, False), (False, True, True), (True, False, False)],
)
def test_the_callers_word_counts_first(model: bool, option: bool | None, expected: bool) -> None:
    assert may_repeat(model, option) is expected


def test_budget_is_the_larger_of_share_and_minimum() -> None:
    budget, limits = RetryBudget(), Retry(budget_percent=20, min_concurrent=1)
    for _ in range(9):
        budget.begin_request()
    assert budget.admit_retry(limits)
    assert not budget.admit_retry(limits)
    budget.begin_request()
    assert budget.admit_retry(limits)
    assert not budget.admit_retry(limits)
    budget.end_retry()
    assert budget.admit_retry(limits)
    assert not budget.admit_retry(limits)


def test_no_budget_at_all() -> None:
    budget = RetryBudget()
    budget.begin_request()
    assert not budget.admit_retry(Retry(budget_percent=20, min_concurrent=0))
    assert budget.admit_retry(Retry(budget_percent=100, min_concurrent=0))


def test_what_never_began_cannot_end() -> None:
    with pytest.raises(ValueError, match="request ends"):
        RetryBudget().end_request()
    with pytest.raises(ValueError, match="retry ends"):
        RetryBudget().end_retry()


def test_deadlines() -> None:
    assert nearest(None, 3.0, 2.0) == 2.0
    assert nearest(None, None) is None
    assert request_deadline(100.0, 500, 100.2, 60) == 100.2
    assert request_deadline(100.0, 100, 100.2, 60) == 100.1
    assert request_deadline(100.0, None, 500.0, 60) == 500.0
    assert request_deadline(100.0, 90_000, None, 60) == 190.0
    assert request_deadline(100.0, None, None, 60) == 160.0
    assert given_deadline(100.0, 100, 100.2) == 100.1
    assert given_deadline(100.0, None, None) is None
