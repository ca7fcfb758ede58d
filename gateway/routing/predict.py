"""What an attempt at one variant would take, from what is known about it now."""

from __future__ import annotations

from typing import NamedTuple

from gateway.core.config import ModelConfig, Price, VariantConfig
from gateway.core.decision import Prediction, VariantKey, VariantState
from gateway.routing.cost import predicted_cost
from gateway.routing.latency import is_stale

UNMEASURED_TRIALS = 3
"""How often a variant without any figure is tried before it has to wait behind measured ones."""
STALE_TRIALS = 1
"""How often a variant with a stale figure is tried before that figure counts again."""


class Outlook(NamedTuple):
    """A prediction and how far to believe it.

    `stale`: the latency figure is old. `probing`: it is old or missing and the variant has not
    been tried often enough since.
    """

    predicted: Prediction
    stale: bool
    probing: bool


def key_of(model: ModelConfig, variant: VariantConfig) -> VariantKey:
    """Under what a variant's measurements are kept."""
    return VariantKey(variant.endpoint, variant.model or model.name, variant.version or "")


def predict(state: VariantState, price: Price, request_bytes: int, now: float) -> Outlook:
    figure = state.latency
    cost = predicted_cost(price, state.capacity_rps, request_bytes, state.response_bytes)
    if figure is None:
        return Outlook(Prediction(None, None, cost), False, state.trials < UNMEASURED_TRIALS)
    stale = is_stale(figure, now)
    return Outlook(
        Prediction(figure.p50_ms, figure.p95_ms, cost), stale, stale and state.trials < STALE_TRIALS
    )
