"""What an attempt at one variant would take, from what is known about it now."""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple

from gateway.core.config import ModelConfig, Price, VariantConfig
from gateway.core.decision import Prediction, Source, VariantKey, VariantState
from gateway.routing.cost import predicted_cost
from gateway.routing.latency import MIN_LIVE, PROOF_S, is_silent, is_stale

UNMEASURED_TRIALS = 3
"""How often a variant without any figure is tried before it has to wait behind measured ones."""
STALE_TRIALS = 1
"""How often a variant with a stale or silent figure is tried before that figure counts again."""


class Outlook(NamedTuple):
    """A prediction and how far to believe it.

    `stale`: the latency figure is old. `probing`: it is old or missing and the variant has not
    been tried often enough since. `firm`: it may exclude, being neither probed, nor silent and
    about to be looked at again, nor made of a few live samples. `answer_ms`: how long answers take, as far as a deadline may be refused by it.
    """

    predicted: Prediction
    stale: bool
    probing: bool
    firm: bool
    answer_ms: float | None


def key_of(model: ModelConfig, variant: VariantConfig) -> VariantKey:
    """Under what a variant's measurements are kept."""
    return VariantKey(variant.endpoint, variant.model or model.name, variant.version or "")


def predict(state: VariantState, price: Price, request_bytes: int, now: float) -> Outlook:
    """A figure that is no finite number counts as not measured."""
    figure = state.latency
    cost = _measured(predicted_cost(price, state.capacity_rps, request_bytes, state.response_bytes))
    if figure is None or not isfinite(figure.p50_ms + figure.p95_ms):
        probing = state.trials < UNMEASURED_TRIALS
        return Outlook(Prediction(None, None, cost), False, probing, False, None)
    stale = is_stale(figure, now)
    untried = state.trials < STALE_TRIALS
    probing = stale and untried
    looked_at_again = is_silent(figure, now) and untried
    return Outlook(
        Prediction(figure.p50_ms, figure.p95_ms, cost),
        stale,
        probing,
        not (probing or looked_at_again) and (figure.source is Source.PROFILE or figure.samples >= MIN_LIVE),
        answer_ms(state, now),
    )


def answer_ms(state: VariantState, now: float) -> float | None:
    """How long answers take: their median, or less where a hurried attempt was answered of late.
    None without fresh evidence, which is no reason to refuse anybody."""
    answers, hurry = state.answers, state.hurry
    if answers is None or is_stale(answers, now):
        return None
    proven = now - hurry.answered_at <= PROOF_S
    return _measured(min(answers.p50_ms, hurry.answered_ms) if proven else answers.p50_ms)


def _measured(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
