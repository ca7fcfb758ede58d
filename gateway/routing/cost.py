"""What an answer costs, in the configured currency.

    cost = per_request, if that is given
           else per_hour / 3600 / capacity_rps
         + egress_per_gb * (request bytes + response bytes) / 10**9

Never price over the present rate, which would make an idle place infinitely dear. Without a price
an answer costs nothing; with `per_hour` and no measured capacity its cost is not known (None).
"""

from __future__ import annotations

from gateway.core.config import Price

_MAX_BYTES = 2**63
"""A dry run may ask about a size that is larger than any float."""


def predicted_cost(
    price: Price, capacity_rps: float | None, request_bytes: int, response_bytes: float | None
) -> float | None:
    """Cost of an answer not given yet. An unmeasured response size counts as nothing, so that a
    price that is known to be too high is seen to be."""
    compute = _compute(price, capacity_rps)
    if compute is None:
        return None
    return compute + price.egress_per_gb * (min(request_bytes, _MAX_BYTES) + (response_bytes or 0.0)) / 1e9


def attempt_cost(
    price: Price, capacity_rps: float | None, sent_bytes: int, response_bytes: int | None
) -> float | None:
    """Cost of an attempt that ended. Without an answer (`response_bytes` None) only what was sent
    is paid for; `sent_bytes` is 0 when nothing left the gateway."""
    egress = price.egress_per_gb * (sent_bytes + (response_bytes or 0)) / 1e9
    if response_bytes is None:
        return egress
    compute = _compute(price, capacity_rps)
    return None if compute is None else compute + egress


def _compute(price: Price, capacity_rps: float | None) -> float | None:
    if price.per_request is not None:
        return price.per_request
    if not price.per_hour:
        return 0.0
    if capacity_rps is None or not capacity_rps > 0:
        return None
    return price.per_hour / 3600 / capacity_rps
