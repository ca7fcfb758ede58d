"""May there be another attempt? The part that depends on neither places nor budget."""

from __future__ import annotations

from enum import StrEnum

from gateway.core.config import Retry
from gateway.core.errors import AttemptError


class Halt(StrEnum):
    """Why there is no (further) attempt; bounded, for logs and metrics."""

    NOT_RETRYABLE = "not_retryable"
    """The endpoint's verdict is about the request: another place would say the same."""
    NOT_REPLAYABLE = "not_replayable"
    """The body was too large to be kept."""
    NOT_IDEMPOTENT = "not_idempotent"
    """The request may have been carried out already."""
    NUM_RETRIES = "num_retries"
    DEADLINE = "deadline"
    NO_PLACE = "no_place"
    """Every place of the plan has been tried, or is down by now."""
    PRIVACY = "privacy"
    """Places are left, and the privacy classes forbid them by now."""
    BUDGET = "budget"


def may_repeat(idempotent_model: bool, idempotent_option: bool | None) -> bool:
    """Whether carrying the request out twice is harmless: the caller's word counts before the model's."""
    return idempotent_model if idempotent_option is None else idempotent_option


def why_no_retry(
    failure: AttemptError,
    limits: Retry,
    *,
    retries_used: int,
    repeatable: bool,
    replayable: bool,
    time_left_s: float | None,
) -> Halt | None:
    """Why the request must not be sent again after this failure; None when it may.

    `repeatable` as from `may_repeat`: it is not needed where the request provably never left the
    gateway. `replayable`: the whole body is still here.
    """
    if not failure.retryable:
        return Halt.NOT_RETRYABLE
    if not replayable:
        return Halt.NOT_REPLAYABLE
    if failure.sent and not repeatable:
        return Halt.NOT_IDEMPOTENT
    if retries_used >= limits.num_retries:
        return Halt.NUM_RETRIES
    if time_left_s is not None and time_left_s <= 0:
        return Halt.DEADLINE
    return None
