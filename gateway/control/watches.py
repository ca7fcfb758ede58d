"""The watch over every model's drift: looks at the evidence, asks the monitor, and remembers both."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.control.update_ports import Evidence, Releases
from gateway.core.config import UpdateConfig
from gateway.core.config.updates import report_interval_s
from gateway.core.evidence import Histogram, summed
from gateway.core.plugins import discover
from gateway.core.release import Release
from gateway.drift._interface import Detector
from gateway.drift.monitor import Drift, Look, Phase, Settings, Update, of_document, step
from gateway.rollout.loop_messages import DriftSeen
from gateway.rollout.loop_state import Cause, Origin
from gateway.store import updates as rows

logger = logging.getLogger(__name__)

PREFIX = "drift:"
"""In the table of updates, the id of a model's watch is this and its name."""
QUIET_WINDOWS = 6
"""After an update the drift that goes on sets off no other one for so many windows."""
LOOKS_PER_WINDOW = 10
HISTORY = 240
"""Scores that are remembered."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A model's watch. `values`: how many there were in the last window; `history`: instants and scores,
    oldest first; `over_since`: when the score was first at the threshold, of those in a row that it is now."""

    signal: str
    detector: str
    drift: Drift = field(default_factory=Drift)
    values: int = 0
    history: tuple[tuple[float, float], ...] = ()
    over_since: float | None = None
    sites: Mapping[str, float] = field(default_factory=dict[str, float])
    """Scores of the sites that have enough values of their own."""
    looked_at: float = 0.0


class Watches:
    """Raises OipError nowhere: a look that cannot be taken is told to the log and taken again."""

    def __init__(
        self,
        engine: AsyncEngine,
        updates: Sequence[UpdateConfig],
        releases: Releases,
        evidence: Evidence,
        wall: Callable[[], float] = time.time,
    ) -> None:
        detectors = discover("gateway.drift")
        self._engine = engine
        self._updates = {update.model: update for update in updates}
        self._detectors: dict[str, Detector] = {
            update.model: detectors[update.drift.detector]() for update in updates
        }
        self._releases = releases
        self._evidence = evidence
        self._wall = wall
        self._watches = {
            update.model: Watch(update.drift.signal, update.drift.detector) for update in updates
        }

    def take(self, stored: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on from what is stored, by model. What was watched by another signal or detector begins anew."""
        for model, document in stored.items():
            watch, fresh = _read(document), self._watches.get(model)
            if fresh is not None and (watch.signal, watch.detector) == (fresh.signal, fresh.detector):
                self._watches[model] = watch

    def of(self, model: str) -> Watch | None:
        return self._watches.get(model)

    def all(self) -> Mapping[str, Watch]:
        return dict(self._watches)

    async def look(self, updating: Callable[[str, float], bool]) -> list[tuple[str, Cause]]:
        """Look at every model that it is time for. Answers those that are to be updated, and why. `updating`:
        whether a model has been in an update at any time since an instant."""
        found: list[tuple[str, Cause]] = []
        for model, update in self._updates.items():
            now = self._wall()
            if now - self._watches[model].looked_at < _interval(update):
                continue
            try:
                asked = await self._look(update, now, updating(model, self._watches[model].looked_at))
            except SQLAlchemyError as error:
                logger.warning("the drift of a model cannot be looked at (%s)", type(error).__name__)
                continue
            if asked is not None:
                found.append((model, asked))
        return found

    def seen(self, model: str, version: str) -> DriftSeen | None:
        """The drift of a version since it has stood; None before the first look at it."""
        watch, update = self._watches.get(model), self._updates.get(model)
        if watch is None or update is None or watch.drift.version != version:
            return None
        drift = watch.drift
        if drift.score is None or (drift.over and drift.phase is not Phase.DRIFTING):
            few = f"{watch.values} of {update.drift.min_samples} values of version {version} so far"
            return DriftSeen(None, False, "" if drift.score is not None else few)
        return DriftSeen(drift.score, drift.phase is Phase.DRIFTING)

    async def _look(self, update: UpdateConfig, now: float, updating: bool) -> Cause | None:
        model, watch = update.model, self._watches[update.model]
        version = self._releases.standing().get(model)
        if version is None:
            return None
        release = self._releases.get(model, version)
        found = await self._evidence.windows(
            model, version, watch.signal, now - update.drift.window_s, now + 1
        )
        reference, detector = _reference(release, watch.signal), self._detectors[model]
        settings = Settings(
            update.drift.threshold,
            update.drift.min_samples,
            update.drift.window_s,
            QUIET_WINDOWS * update.drift.window_s,
        )
        look = Look(version, reference, found.total, updating)
        drift, commands = step(watch.drift, look, now, settings, detector)
        total = summed(h for h in found.total if h.edges == found.total[-1].edges)
        values = 0 if total is None else total.total
        scored = drift.score is not None and values >= update.drift.min_samples
        watch = replace(watch, drift=drift, values=values, looked_at=now)
        if scored and drift.score is not None:
            watch = replace(
                watch,
                history=(*watch.history, (now, drift.score))[-HISTORY:],
                over_since=(watch.over_since or now) if drift.score >= update.drift.threshold else None,
                sites=_by_site(drift, found.sites, detector, update.drift.min_samples),
            )
        await self._write(model, watch, now)
        self._watches[model] = watch
        if not any(isinstance(command, Update) for command in commands):
            return None
        return self._cause(update, watch)

    def _cause(self, update: UpdateConfig, watch: Watch) -> Cause:
        threshold = update.drift.threshold
        sites = tuple(site for site, score in watch.sites.items() if score >= threshold)
        since = watch.over_since or watch.drift.drifting_since or watch.looked_at
        return Cause(Origin.DRIFT, watch.signal, watch.drift.score or 0.0, threshold, sites, since)

    async def _write(self, model: str, watch: Watch, now: float) -> None:
        async with self._engine.begin() as connection:
            await rows.write(connection, rows.Row(PREFIX + model, model, False, now, _document(watch)))


def _interval(update: UpdateConfig) -> float:
    """No look is worth taking more often than anything reports."""
    return max(report_interval_s([update]), update.drift.window_s / LOOKS_PER_WINDOW)


def _reference(release: Release, signal: str) -> Histogram | None:
    found = release.reference.get(signal)
    return None if found is None else Histogram(found.edges, found.counts)


def _by_site(
    drift: Drift, sites: Mapping[str, Sequence[Histogram]], detector: Detector, least: int
) -> dict[str, float]:
    reference = drift.reference
    if reference is None:
        return {}
    usable = {site: [h for h in some if h.edges == reference.edges] for site, some in sites.items()}
    return {
        site: detector.score(reference, some)
        for site, some in usable.items()
        if sum(h.total for h in some) >= max(1, least // len(usable))
    }


def _document(watch: Watch) -> dict[str, Any]:
    return {
        "signal": watch.signal,
        "detector": watch.detector,
        "drift": watch.drift.to_document(),
        "values": watch.values,
        "history": [list(entry) for entry in watch.history],
        "over_since": watch.over_since,
        "sites": dict(watch.sites),
    }


def _read(document: Mapping[str, Any]) -> Watch:
    return Watch(
        document["signal"],
        document["detector"],
        of_document(document["drift"]),
        document["values"],
        tuple((at, score) for at, score in cast("list[tuple[float, float]]", document["history"])),
        document["over_since"],
        document["sites"],
    )
