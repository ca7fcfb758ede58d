"""How long a variant takes: a window of live samples over a stored profile.

Two figures come from it. `figure` is what places are ranked by: live samples once there are enough
fresh ones; until then the profile, and where that is old or missing, whichever is newer. An attempt
cut off by its deadline or its caller is known to take longer than it was given, so it is a sample
of that length where that is news. `answers` is what a place may be refused by for a deadline: real
answers alone, and never few of them, so that nobody who gives up early decides for others.

A failure says nothing about latency, least of all a fast one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import replace
from math import frexp

from gateway.core.decision import Hurry, LatencyFigure, Outcome, Source

STALE_AFTER_S = 600.0
"""Age of the newest sample beyond which a figure is stale."""
WINDOW = 128
"""Samples kept."""
MIN_LIVE = 20
"""Fresh live samples that outweigh a fresh profile, and that may exclude: so many that one slow
answer, such as the first of a new connection, is not their p95."""
SILENCE_S = 30.0
"""After so long without a sample, live figures say how it was, not how it is."""
TRIAL_MS = 250.0
"""A trial that is cut off earlier counts as the share of this that it had."""
PROOF_S = 10.0
"""How long an answer to a hurried attempt holds against the figure."""


def is_stale(figure: LatencyFigure, now: float) -> bool:
    return now - figure.at > STALE_AFTER_S


def is_silent(figure: LatencyFigure, now: float) -> bool:
    """Whether a live figure has had no sample for long enough to be looked at again."""
    return figure.source is Source.LIVE and now - figure.at > SILENCE_S


def from_profile(*, p50_ms: float, p95_ms: float, samples: int, age_s: float, now: float) -> LatencyFigure:
    """A stored measurement as a figure. `age_s` is its age by the wall clock; one from the future
    (a clock set back) counts as new."""
    return LatencyFigure(p50_ms, p95_ms, samples, now - max(0.0, age_s), Source.PROFILE)


def haste(given_ms: float) -> int:
    """The octave of a time: callers in the same one are given times within a factor of two."""
    return max(0, frexp(given_ms)[1])


class LatencyWindow:
    """The latency of one variant as seen by one replica. Not for use from several threads.

    Samples are in ms; `now` is monotonic and never goes back between calls. `given_ms` is the time
    that an attempt has at its begin.
    """

    __slots__ = ("_answers", "_last_trial", "_profile", "_samples", "_trials", "hurry")

    def __init__(self, profile: LatencyFigure | None = None) -> None:
        self._profile = profile
        self._samples = _Samples()
        self._answers = _Samples()
        self._trials = 0.0
        self._last_trial = 0.0
        self.hurry = Hurry()

    def set_profile(self, profile: LatencyFigure | None) -> None:
        """Replace the stored measurement; live samples stay."""
        self._profile = profile
        self._trials = 0.0

    def begin(self, given_ms: float, now: float) -> None:
        """An attempt begins; it is a trial while there is no fresh figure, or a silent one."""
        figure = self.figure(now)
        if figure is None or is_stale(figure, now) or is_silent(figure, now):
            self._trials = self.trials(now) + 1
            self._last_trial = now
        if self._hurried(given_ms, now):
            self.hurry = replace(self.hurry, begun={**self.hurry.begun, haste(given_ms): now})

    def trials(self, now: float) -> float:
        """Attempts begun since the figure became missing, stale or silent, 0 otherwise. One that was
        cut off early counts in part. Trials that brought no sample are forgotten after
        `STALE_AFTER_S`, so that a place that failed is tried again."""
        if self._trials and now - self._last_trial > STALE_AFTER_S:
            self._trials = 0.0
        return self._trials

    def observe(self, outcome: Outcome, elapsed_ms: float, given_ms: float, now: float) -> None:
        """Take what an attempt's end says about latency, if anything."""
        if outcome is Outcome.OK:
            if self._hurried(given_ms, now):
                self._prove(elapsed_ms, now)
            self.record(elapsed_ms, now)
        elif outcome in (Outcome.DEADLINE, Outcome.CANCELLED):
            figure = self.figure(now)
            if figure is not None and elapsed_ms > figure.p50_ms:
                self._samples.add(elapsed_ms, now)
                self._trials = 0.0
            else:
                unspent = 1 - min(1.0, elapsed_ms / TRIAL_MS)
                self._trials = max(0.0, self.trials(now) - unspent)

    def record(self, sample_ms: float, now: float) -> None:
        """Add the latency of one answer."""
        self._samples.add(sample_ms, now)
        self._answers.add(sample_ms, now)
        self._trials = 0.0

    def figure(self, now: float) -> LatencyFigure | None:
        """The figure to rank by, None when nothing was ever measured."""
        enough = self._samples.fresh(MIN_LIVE, now)
        live, profile = self._samples.figure(), self._profile
        if live is None or (not enough and profile is not None and not is_stale(profile, now)):
            return profile
        return live if enough or profile is None or live.at >= profile.at else profile

    def answers(self, now: float) -> LatencyFigure | None:
        """The figure of real answers, None without a profile and enough fresh ones. A stale one is
        a profile's and proves nothing any more."""
        return self._answers.figure() if self._answers.fresh(MIN_LIVE, now) else self._profile

    def _hurried(self, given_ms: float, now: float) -> bool:
        """Whether this is less time than answers take."""
        answers = self.answers(now)
        return answers is not None and not is_stale(answers, now) and given_ms < answers.p50_ms

    def _prove(self, elapsed_ms: float, now: float) -> None:
        """A hurried attempt was answered. The quickest answer holds, lest slow callers undo it; one
        of about its time shows that it still does."""
        quickest = self.hurry.answered_ms
        if elapsed_ms <= quickest or now - self.hurry.answered_at > PROOF_S:
            self.hurry = replace(self.hurry, answered_ms=elapsed_ms, answered_at=now)
        elif elapsed_ms <= 2 * quickest:
            self.hurry = replace(self.hurry, answered_at=now)


class _Samples:
    """The last `WINDOW` samples since the last silence, none of them older than its newest by more
    than `STALE_AFTER_S`."""

    __slots__ = ("_figure", "_ordered", "_values")

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque()
        self._ordered: list[float] = []
        self._figure: LatencyFigure | None = None

    def add(self, sample_ms: float, now: float) -> None:
        values = self._values
        if values and now - values[-1][1] > SILENCE_S:
            values.clear()
            self._ordered.clear()
        while values and (len(values) == WINDOW or now - values[0][1] > STALE_AFTER_S):
            oldest, _ = values.popleft()
            del self._ordered[bisect_left(self._ordered, oldest)]
        values.append((sample_ms, now))
        insort(self._ordered, sample_ms)
        self._figure = None

    def fresh(self, count: int, now: float) -> bool:
        """Whether at least so many are not stale."""
        return len(self._values) >= count and now - self._values[-count][1] <= STALE_AFTER_S

    def figure(self) -> LatencyFigure | None:
        if self._figure is None and self._values:
            ordered = self._ordered
            self._figure = LatencyFigure(
                quantile(ordered, 0.5),
                quantile(ordered, 0.95),
                len(ordered),
                self._values[-1][1],
                Source.LIVE,
            )
        return self._figure


def quantile(ordered: list[float], q: float) -> float:
    """The q-quantile of a sorted, non-empty list, linear between neighbours."""
    at = q * (len(ordered) - 1)
    below = int(at)
    if below + 1 == len(ordered):
        return ordered[below]
    low, high = ordered[below], ordered[below + 1]
    return low + (high - low) * (at - below)
