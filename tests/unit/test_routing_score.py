from __future__ import annotations

import pytest

from gateway.core.config import Price, Weights
from gateway.core.decision import LatencyFigure, Prediction, Source, VariantState
from gateway.routing.pick import Order, order
from gateway.routing.predict import predict
from gateway.routing.score import SCORERS, score, shares
from gateway.routing.scorers._interface import View
from tests.unit.decide_config import Fixed


def view(
    p50: float | None = None,
    cost: float | None = None,
    quality: float | None = None,
    *,
    probing: bool = False,
) -> View:
    return View(p50, cost, quality, probing)


def test_every_weight_has_its_scorer() -> None:
    assert set(SCORERS) == set(Weights.model_fields)


@pytest.mark.parametrize(
    ("kind", "views", "expected"),
    [
        ("latency", [view(10), view(40), view(None), view(None, probing=True)], [1.0, 0.25, 0.0, 1.0]),
        ("latency", [view(10), view(5, probing=True)], [1.0, 1.0]),
        ("latency", [view(0), view(5)], [1.0, 0.0]),
        ("latency", [view(None), view(None)], [0.0, 0.0]),
        ("cost", [view(cost=0.1), view(cost=0.4), view(), view(probing=True)], [1.0, 0.25, 0.0, 1.0]),
        ("cost", [view(cost=0.0), view(cost=0.4)], [1.0, 0.0]),
        ("quality", [view(quality=0.9), view(), view(quality=0.0)], [0.9, 0.5, 0.0]),
    ],
)
def test_scorers(kind: str, views: list[View], expected: list[float]) -> None:
    assert SCORERS[kind].score(views) == pytest.approx(expected)


def test_total_is_the_weighted_mean_of_what_has_weight() -> None:
    parts = shares(Weights(cost=3, latency=1))
    assert dict(parts) == {"cost": 0.75, "latency": 0.25}
    found = score(parts, [view(10, 0.4), view(40, 0.1)])
    assert found[0] == pytest.approx({"cost": 0.25, "latency": 1.0, "total": 0.75 * 0.25 + 0.25})
    assert found[1] == pytest.approx({"cost": 1.0, "latency": 0.25, "total": 0.75 + 0.25 * 0.25})


def test_order_is_by_total_and_equals_are_drawn_by_weight() -> None:
    assert order([0.2, 0.9, 0.5], [1, 1, 1], Fixed()) == Order((1, 2, 0), 1)
    assert order([0.90, 0.91], [1, 3], Fixed(0.24)) == Order((1, 0), 2)
    assert order([0.90, 0.91], [1, 3], Fixed(0.76)) == Order((0, 1), 2)
    assert order([0.89, 0.91], [3, 1], Fixed(0.76)) == Order((0, 1), 2)
    assert order([0.88, 0.91], [3, 1], Fixed(0.76)) == Order((1, 0), 1)
    assert order([], [], Fixed()) == Order((), 0)


def test_weight_zero_yields_to_equals_only() -> None:
    assert order([0.91, 0.90], [0, 1], Fixed()).indices == (1, 0)
    assert order([0.91, 0.50], [0, 1], Fixed()).indices == (0, 1)
    assert order([0.91, 0.90], [0, 0], Fixed()).indices == (0, 1)


@pytest.mark.parametrize(
    ("state", "stale", "probing"),
    [
        (VariantState(), False, True),
        (VariantState(trials=2), False, True),
        (VariantState(trials=3), False, False),
        (VariantState(latency=LatencyFigure(1, 2, 9, 400.0, Source.LIVE)), False, False),
        (VariantState(latency=LatencyFigure(1, 2, 9, 399.0, Source.LIVE)), True, True),
        (VariantState(latency=LatencyFigure(1, 2, 9, 399.0, Source.LIVE), trials=1), True, False),
    ],
)
def test_what_is_probed(state: VariantState, stale: bool, probing: bool) -> None:
    outlook = predict(state, Price(per_request=3.0), 10, 1000.0)
    assert (outlook.stale, outlook.probing) == (stale, probing)
    p50, p95 = (None, None) if state.latency is None else (1, 2)
    assert outlook.predicted == Prediction(p50, p95, 3.0)
