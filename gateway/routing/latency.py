"""How long a variant takes: a window of live samples over a stored profile.

Live figures are used once there are enough fresh ones; until then the profile speaks, and where
that is old or missing, whichever is newer. Only answers are samples. An attempt cut off by its
deadline or its caller is known to take longer than it was given, so it counts as that long where
that is news; a failure says nothing about latency, least of all a fast one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

from gateway.core.decision import LatencyFigure, Outcome, Source

STALE_AFTER_S = 600.0
"""Age of the newest sample beyond which a figure is stale."""
WINDOW = 128
"""Samples kept."""
MIN_LIVE = 10
"""Fresh live samples that outweigh a fresh profile."""


def is_stale(figure: LatencyFigure, now: float) -> bool:
    return now - figure.at > STALE_AFTER_S


def from_profile(*, p50_ms: float, p95_ms: float, samples: int, age_s: float, now: float) -> LatencyFigure:
    """A stored measurement as a figure. `age_s` is its age by the wall clock; one from the future
    (a clock set back) counts as new."""
    return LatencyFigure(p50_ms, p95_ms, samples, now - max(0.0, age_s), Source.PROFILE)


class LatencyWindow:
    """The latency of one variant as seen by one replica. Not for use from several threads.

    Samples are in ms; `now` is monotonic and never goes back between calls.
    """

    __slots__ = ("_last_trial", "_live", "_profile", "_samples", "_sorted", "_trials")

    def __init__(self, profile: LatencyFigure | None = None) -> None:
        self._profile = profile
        self._samples: deque[tuple[float, float]] = deque()
        self._sorted: list[float] = []
        self._live: LatencyFigure | None = None
        self._trials = 0
        self._last_trial = 0.0

    def set_profile(self, profile: LatencyFigure | None) -> None:
        """Replace the stored measurement; live samples stay."""
        self._profile = profile
        self._trials = 0

    def begin(self, now: float) -> None:
        """An attempt begins; it is a trial while there is no fresh figure."""
        figure = self.figure(now)
        if figure is None or is_stale(figure, now):
            self._trials = self.trials(now) + 1
            self._last_trial = now

    def trials(self, now: float) -> int:
        """Attempts begun since the figure became missing or stale, 0 while it is fresh. Trials that
        brought no sample are forgotten after `STALE_AFTER_S`, so that a place that failed is tried again."""
        if self._trials and now - self._last_trial > STALE_AFTER_S:
            self._trials = 0
        return self._trials

    def observe(self, outcome: Outcome, elapsed_ms: float, now: float) -> None:
        """Take what an attempt's end says about latency, if anything."""
        if outcome is Outcome.OK:
            self.record(elapsed_ms, now)
        elif outcome in (Outcome.DEADLINE, Outcome.CANCELLED):
            figure = self.figure(now)
            if figure is None or elapsed_ms > figure.p50_ms:
                self.record(elapsed_ms, now)

    def record(self, sample_ms: float, now: float) -> None:
        """Add one sample, forgetting the oldest beyond `WINDOW`."""
        if len(self._samples) == WINDOW:
            self._drop_oldest()
        self._samples.append((sample_ms, now))
        insort(self._sorted, sample_ms)
        self._live = None
        self._trials = 0

    def figure(self, now: float) -> LatencyFigure | None:
        """The figure to predict with, None when nothing was ever measured."""
        oldest_fresh = now - STALE_AFTER_S
        samples = self._samples
        enough = len(samples) >= MIN_LIVE and samples[-MIN_LIVE][1] >= oldest_fresh
        if enough:
            while samples[0][1] < oldest_fresh:
                self._drop_oldest()
        profile = self._profile
        if not samples or (not enough and profile is not None and profile.at >= oldest_fresh):
            return profile
        live = self._figure_of_samples()
        return live if enough or profile is None or live.at >= profile.at else profile

    def _figure_of_samples(self) -> LatencyFigure:
        if self._live is None:
            ordered = self._sorted
            self._live = LatencyFigure(
                quantile(ordered, 0.5),
                quantile(ordered, 0.95),
                len(ordered),
                self._samples[-1][1],
                Source.LIVE,
            )
        return self._live

    def _drop_oldest(self) -> None:
        value, _ = self._samples.popleft()
        del self._sorted[bisect_left(self._sorted, value)]
        self._live = None


def quantile(ordered: list[float], q: float) -> float:
    """The q-quantile of a sorted, non-empty list, linear between neighbours."""
    at = q * (len(ordered) - 1)
    below = int(at)
    if below + 1 == len(ordered):
        return ordered[below]
    low, high = ordered[below], ordered[below + 1]
    return low + (high - low) * (at - below)
