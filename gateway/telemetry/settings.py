"""What may be changed of tracing and logging while a gateway runs. Replicas of one share what
was changed; it ends with the last of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.telemetry.spans import Tracing
from oip.settings import LogSettings, TraceSettings, changed_log, changed_trace

TRITONS_RATE = 1000
"""Of a gateway that is configured to trace nothing, once it is told to trace."""
LOGGERS = ("gateway", "oip")


class State(NamedTuple):
    """What the settings are after so many changes."""

    changes: int
    trace: TraceSettings
    log: LogSettings | None


class Settings:
    """The trace and log settings of one process, by the names of Triton's extensions."""

    def __init__(self, tracing: Tracing, sample_ratio: float) -> None:
        self._tracing = tracing
        self._ratio = sample_ratio
        rate = round(1 / sample_ratio) if sample_ratio else TRITONS_RATE
        self._first = self._trace = TraceSettings(sample_ratio > 0, rate)
        self._log: LogSettings | None = None
        self._changes = 0

    @property
    def state(self) -> State:
        return State(self._changes, self._trace, self._log)

    def adopt(self, state: State) -> None:
        """Go on with what another process has, if that has seen more changes."""
        if state.changes <= self._changes:
            return
        self._changes, trace, log = state
        self._set_trace(trace)
        if log is not None:
            self._set_log(log)

    def trace(self, changes: Mapping[str, Sequence[str] | None]) -> Mapping[str, Sequence[str]]:
        """The settings after `changes`, all of them. Raises OipError MALFORMED, and nothing changes then."""
        if changes:
            self._set_trace(changed_trace(self._trace, self._first, changes))
            self._changes += 1
        return self._trace.told()

    def log(self, changes: Mapping[str, object]) -> Mapping[str, bool | int | str]:
        """The like for the log."""
        now = self._log or _log_settings()
        if not changes:
            return now.told()
        self._set_log(changed := changed_log(now, changes))
        self._changes += 1
        return changed.told()

    def _set_trace(self, trace: TraceSettings) -> None:
        self._trace = trace
        self._tracing.sample(self._ratio if trace == self._first else trace.ratio)

    def _set_log(self, log: LogSettings) -> None:
        self._log = log
        for logger in map(logging.getLogger, LOGGERS):
            logger.setLevel(_level(log))
            if not logger.hasHandlers():
                # Without one, Python shows warnings and errors alone.
                logger.addHandler(logging.StreamHandler())


def _log_settings() -> LogSettings:
    level = logging.getLogger(LOGGERS[0]).getEffectiveLevel()
    return LogSettings(
        level <= logging.INFO, level <= logging.WARNING, level <= logging.ERROR, int(level <= logging.DEBUG)
    )


def _level(log: LogSettings) -> int:
    if log.verbose:
        return logging.DEBUG
    if log.info:
        return logging.INFO
    if log.warning:
        return logging.WARNING
    return logging.ERROR if log.error else logging.CRITICAL + 1
