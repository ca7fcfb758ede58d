"""Updates, the watch over drift, and samples as people and scripts see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.analytics.samples import Kept
from gateway.control.watches import Watch
from gateway.core.config import UpdateConfig
from gateway.core.training_run import RunEvent
from gateway.rollout.loop_state import Trial, Update


def summary_of(state: Update) -> dict[str, Any]:
    """JSON-ready. Instants are seconds since the epoch; `loop_s` is from the first score over its threshold
    to the recovered model."""
    cause = state.cause
    return {
        "id": state.id,
        "model": state.model,
        "phase": state.phase.value,
        "open": state.open,
        "cause": {
            "origin": cause.origin.value,
            "signal": cause.signal or None,
            "score": cause.score if cause.signal else None,
            "threshold": cause.threshold if cause.signal else None,
            "sites": list(cause.sites),
            "since": cause.since or None,
        },
        "began_at": state.times[0][1],
        "changed_at": state.times[-1][1],
        "version": state.version or None,
        "rollout": state.rollout or None,
        "waits_for": state.waits or None,
        "outcome": state.outcome or None,
        "score_after": state.score_after,
        "loop_s": state.loop_s,
    }


def view_of(state: Update, progress: RunEvent | None, log: str) -> dict[str, Any]:
    """All of it. `progress` is of the work that runs now, `log` the end of its log."""
    return {
        **summary_of(state),
        "stages": _stages(state),
        "samples": {"labelled": state.labelled, "kept": state.kept},
        "attempt": state.attempt or None,
        "failures": list(state.failures),
        "progress": None if progress is None else _progress(progress),
        "rules": [
            {
                "name": rule.name,
                "passed": rule.passed,
                "text": rule.sentence,
                "value": rule.value,
                "bound": rule.bound,
            }
            for rule in state.rules
        ],
        "trials": [_trial(trial) for trial in state.trials],
        "log": log,
    }


def watch_view(update: UpdateConfig, watch: Watch) -> dict[str, Any]:
    """`history`: instants and scores, oldest first. `score` None: nothing can be said yet."""
    drift = watch.drift
    return {
        "model": update.model,
        "signal": watch.signal,
        "detector": watch.detector,
        "version": drift.version or None,
        "phase": drift.phase.value,
        "score": drift.score,
        "threshold": update.drift.threshold,
        "values": watch.values,
        "min_samples": update.drift.min_samples,
        "window_s": update.drift.window_s,
        "drifting_since": drift.drifting_since,
        "quiet_until": drift.quiet_until or None,
        "sites": dict(watch.sites),
        "history": [[at, score] for at, score in watch.history],
        "trains": update.train is not None,
    }


def sample_view(one: Kept, told: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """What is known of a sample, but never what is in it. `told` are the operator's labels by sample."""
    labelled = "file" if one.id in told else "teacher" if one.labels is not None else None
    return {
        "id": one.id,
        "site": one.site or None,
        "version": one.version,
        "confidence": one.confidence,
        "rows": one.rows,
        "taken_at": one.taken_at,
        "labelled": labelled,
    }


def _stages(state: Update) -> list[dict[str, Any]]:
    """Each phase with how long it took; None for the one that it is in."""
    ends = [*(at for _, at in state.times[1:]), None]
    return [
        {"phase": phase.value, "at": at, "s": None if end is None else end - at}
        for (phase, at), end in zip(state.times, ends, strict=True)
    ]


def _progress(event: RunEvent) -> dict[str, Any]:
    return {"kind": event.kind.value, "share": event.share, "words": event.words, "attempt": event.attempt}


def _trial(trial: Trial) -> dict[str, Any]:
    report = trial.report
    return {
        "group": trial.group,
        "device": trial.device,
        "began_at": trial.began,
        "outcome": trial.outcome or None,
        "reason": trial.reason or None,
        "p50_ms": report.p50_ms if report is not None and report.runs else None,
        "active_p50_ms": report.active_p50_ms if report is not None and report.active_p50_ms else None,
    }
