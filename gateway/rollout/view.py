"""A rollout as people and scripts see it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from gateway.rollout.fleet import SHOWN
from gateway.rollout.halting import Figures
from gateway.rollout.state import ENDED, Phase, State
from gateway.rollout.waves import size_of


def view_of(state: State) -> dict[str, Any]:
    """JSON-ready. `state` is running, paused, rolling_back, rolled_back or done."""
    look = state.look
    back = state.phase in (Phase.RETURNING, Phase.ROLLED_BACK)
    return {
        "id": state.id,
        "model": state.model,
        "from": state.old or None,
        "to": state.new,
        "state": _word(state),
        "phase": state.phase.value,
        "open": state.open,
        "waits_for": look.lacks or None,
        "cause": state.cause or None,
        "outcome": _outcome(state),
        "forced": state.forced,
        "source": state.source,
        "began_at": state.began,
        "seen_at": look.at,
        "devices": {
            "able": look.able,
            "connected": look.connected,
            "waiting": 0 if back else look.able - state.taken,
            "moving": len(state.moving),
            "confirmed": len(state.confirmed),
            "failed": len(state.failed),
            "returned": len(state.returned),
            "excluded": look.unfit,
        },
        "waves": list(_waves(state)),
        "followers": dict(state.outcomes or {}),
        "evidence": {
            "new": _figures(look.new),
            "old": _figures(look.old),
            "before": _figures(look.before),
        },
        "failures": dict(islice(sorted(state.failed.items()), SHOWN)),
        "excluded": dict(look.why_unfit),
        "events": [{"at": at, "text": text} for at, text in state.events],
        "plan": state.plan.model_dump(mode="json"),
    }


def _word(state: State) -> str:
    if state.paused:
        return "paused"
    ends = {Phase.DONE: "done", Phase.RETURNING: "rolling_back", Phase.ROLLED_BACK: "rolled_back"}
    return ends.get(state.phase, "running")


def _outcome(state: State) -> str | None:
    """done, halted or aborted; None while it is open and goes forward."""
    if state.phase is Phase.DONE:
        return "done"
    return ("aborted" if state.aborted else "halted") if state.cause else None


def _waves(state: State) -> Iterator[dict[str, Any]]:
    """`size` in devices, by what is able now; `serving` of them have the new version."""
    for number, wanted in enumerate(state.plan.waves):
        ended = number < len(state.sizes)
        if ended:
            word = "passed" if state.sizes[number] else "skipped"
        elif number == state.wave and state.phase in (Phase.MOVING, Phase.SOAKING):
            word = state.phase.value
        else:
            word = "stopped" if state.cause else "to come"
        size = size_of(wanted, state.look.able)
        yield {
            "wanted": wanted,
            "size": size,
            "serving": min(size, len(state.confirmed)),
            "failed": min(size, len(state.failed)) if state.phase not in ENDED else 0,
            "state": word,
        }


def _figures(figures: Figures) -> dict[str, Any]:
    return {
        "answered": figures.answered,
        "failed": figures.failed,
        "error_rate": figures.error_rate,
        "p95_ms": None if figures.p95_s is None else figures.p95_s * 1000,
        "confidence": figures.confidence,
    }
