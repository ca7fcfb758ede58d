from __future__ import annotations

import pytest

from gateway.core.config import Price
from gateway.routing.cost import attempt_cost, predicted_cost


@pytest.mark.parametrize(
    ("price", "capacity", "response", "expected"),
    [
        (Price(), None, None, 0.0),
        (Price(per_request=0.002), None, None, 0.002),
        (Price(per_hour=0.0), None, None, 0.0),
        (Price(per_hour=3.6), 100.0, None, 3.6 / 3600 / 100),
        (Price(per_hour=3.6), None, None, None),
        (Price(per_hour=3.6), 0.0, None, None),
        (Price(egress_per_gb=0.09), None, 500_000_000.0, 0.09),
        (Price(egress_per_gb=0.09), None, None, 0.045),
        (Price(per_hour=3.6, egress_per_gb=0.09), 100.0, 0.0, 1e-5 + 0.045),
    ],
)
def test_predicted(
    price: Price, capacity: float | None, response: float | None, expected: float | None
) -> None:
    found = predicted_cost(price, capacity, 500_000_000, response)
    assert found == (None if expected is None else pytest.approx(expected))


def test_an_attempt_without_an_answer_pays_for_what_it_sent() -> None:
    price = Price(per_request=1.0, egress_per_gb=2.0)
    assert attempt_cost(price, None, 10**9, None) == 2.0
    assert attempt_cost(price, None, 0, None) == 0.0
    assert attempt_cost(price, None, 10**9, 10**9) == 5.0
    assert attempt_cost(Price(per_hour=1.0), None, 1, 1) is None
