"""What must hold of scores, plans, windows and budgets whatever the numbers are."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from gateway.core.config import Retry, Weights
from gateway.core.decision import Verdict
from gateway.decide import decide
from gateway.resilience.budget import RetryBudget
from gateway.routing.latency import MIN_LIVE, WINDOW, LatencyWindow
from gateway.routing.pick import EQUAL_WITHIN, order
from gateway.routing.score import SCORERS, score, shares
from gateway.routing.scorers._interface import View
from tests.property.decide_worlds import random_world

figures = st.none() | st.floats(0, 1e9, allow_subnormal=False)
views = st.builds(View, figures, figures, st.none() | st.floats(0, 1), st.booleans())
weight = st.floats(0, 100, allow_subnormal=False)
weights = st.tuples(weight, weight, weight).filter(any)


@given(st.lists(views, max_size=8), weights)
def test_scores_stay_in_range(seen: list[View], given_weights: tuple[float, float, float]) -> None:
    cost, latency, quality = given_weights
    for scores in score(shares(Weights(cost=cost, latency=latency, quality=quality)), seen):
        assert all(0.0 <= value <= 1.0 for value in scores.values())


@given(st.lists(views, min_size=1, max_size=6), st.integers(0, 5), st.floats(0, 1))
def test_getting_faster_or_cheaper_never_lowers_the_own_score(
    seen: list[View], at: int, factor: float
) -> None:
    at %= len(seen)
    own = seen[at]
    if own.latency_p50_ms is None or own.cost is None:
        return
    better = list(seen)
    better[at] = own._replace(latency_p50_ms=own.latency_p50_ms * factor, cost=own.cost * factor)
    for kind in ("latency", "cost"):
        assert SCORERS[kind].score(better)[at] >= SCORERS[kind].score(seen)[at] - 1e-12


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 5)), min_size=1, max_size=8),
    st.floats(0, 1, exclude_max=True),
)
def test_an_order_is_a_permutation_with_a_best_or_an_equal_first(
    candidates: list[tuple[float, int]], drawn: float
) -> None:
    class Rng:
        def random(self) -> float:
            return drawn

    totals, shares_ = [t for t, _ in candidates], [w for _, w in candidates]
    indices, _ = order(totals, shares_, Rng())
    assert sorted(indices) == list(range(len(candidates)))
    first = indices[0]
    assert totals[first] >= max(totals) - EQUAL_WITHIN - 1e-6
    if shares_[first] == 0:
        equals = [i for i, t in enumerate(totals) if t >= max(totals) - EQUAL_WITHIN]
        assert all(shares_[i] == 0 for i in equals)
    rest = [totals[i] for i in indices[1:]]
    assert rest == sorted(rest, reverse=True)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=5).filter(lambda w: sum(w) > 0), st.integers(0, 99))
def test_equals_get_their_shares(by_weight: list[int], seed: int) -> None:
    rng, draws = random.Random(seed), 3000
    firsts = [order([0.5] * len(by_weight), by_weight, rng).indices[0] for _ in range(draws)]
    for i, own in enumerate(by_weight):
        assert abs(firsts.count(i) / draws - own / sum(by_weight)) < 0.06


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=3 * WINDOW))
def test_window_quantiles_are_numpys(samples: list[float]) -> None:
    window = LatencyWindow()
    for sample in samples:
        window.record(sample, 1.0)
    figure = window.figure(1.0)
    kept = samples[-WINDOW:]
    assert figure is not None
    assert figure.samples == len(kept)
    np.testing.assert_allclose([figure.p50_ms, figure.p95_ms], np.quantile(kept, [0.5, 0.95]), rtol=1e-9)
    assert figure.p50_ms <= figure.p95_ms


@given(st.lists(st.tuples(st.floats(0.001, 1e4), st.floats(0, 400)), min_size=1, max_size=300))
def test_a_window_forgets_what_is_old(steps: list[tuple[float, float]]) -> None:
    window, now, log = LatencyWindow(), 0.0, list[tuple[float, float]]()
    for sample, pause in steps:
        now += pause
        window.record(sample, now)
        log.append((sample, now))
        figure = window.figure(now)
        assert figure is not None
        assert figure.at == now
        fresh = [s for s, at in log[-WINDOW:] if at >= now - 600]
        if len(fresh) >= MIN_LIVE:
            np.testing.assert_allclose(figure.p50_ms, np.quantile(fresh, 0.5), rtol=1e-9)


class Budget(RuleBasedStateMachine):
    """Requests come and go and try to retry; an admitted retry never was over the limit."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = RetryBudget()
        self.requests = 0
        self.retries = 0

    @rule()
    def begin(self) -> None:
        self.budget.begin_request()
        self.requests += 1

    @precondition(lambda self: self.requests > 0)
    @rule()
    def end(self) -> None:
        self.budget.end_request()
        self.requests -= 1

    @rule(percent=st.floats(0, 100), at_least=st.integers(0, 5))
    def retry(self, percent: float, at_least: int) -> None:
        limit = max(at_least, percent / 100 * self.requests)
        if self.budget.admit_retry(Retry(budget_percent=percent, min_concurrent=at_least)):
            self.retries += 1
            assert self.retries <= limit + 1e-9
        else:
            assert self.retries + 1 > limit - 1e-9

    @precondition(lambda self: self.retries > 0)
    @rule()
    def end_retry(self) -> None:
        self.budget.end_retry()
        self.retries -= 1


TestBudget = Budget.TestCase


@given(st.integers(0, 2**32))
def test_a_plan_is_the_eligible_candidates_once_each(seed: int) -> None:
    rng = random.Random(seed)
    world = random_world(rng)
    decision = decide(world.snapshot, world.request, 1000.0, rng)
    eligible = [c for c in decision.candidates if c.verdict is not Verdict.EXCLUDED]
    assert sorted(map(id, decision.plan)) == sorted(map(id, eligible))
    assert [c.verdict for c in decision.plan] == [
        Verdict.ELIGIBLE if i else Verdict.CHOSEN for i in range(len(decision.plan))
    ]
    assert (decision.refused is None) == bool(decision.plan)
    assert bool(decision.message) != bool(decision.plan)
    for candidate in decision.candidates:
        assert candidate.reasons
        assert all(0.0 <= value <= 1.0 for value in candidate.scores.values())
        assert bool(candidate.scores) == (candidate.verdict is not Verdict.EXCLUDED)
