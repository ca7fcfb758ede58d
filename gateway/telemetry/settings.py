"""What may be changed of tracing and logging while a gateway runs: the process's own, until it ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from gateway.telemetry.spans import Tracing
from oip.settings import LogSettings, TraceSettings, changed_log, changed_trace

TRITONS_RATE = 1000
"""Of a gateway that is configured to trace nothing, once it is told to trace."""
LOGGERS = ("gateway", "oip")


class Settings:
    """The trace and log settings of one process, by the names of Triton's extensions."""

    def __init__(self, tracing: Tracing, sample_ratio: float) -> None:
        self._tracing = tracing
        self._ratio = sample_ratio
        rate = round(1 / sample_ratio) if sample_ratio else TRITONS_RATE
        self._first = self._trace = TraceSettings(sample_ratio > 0, rate)
        self._log: LogSettings | None = None

    def trace(self, changes: Mapping[str, Sequence[str] | None]) -> Mapping[str, Sequence[str]]:
        """The settings after `changes`, all of them. Raises OipError MALFORMED, and nothing changes then."""
        self._trace = changed_trace(self._trace, self._first, changes)
        self._tracing.sample(self._ratio if self._trace == self._first else self._trace.ratio)
        return self._trace.told()

    def log(self, changes: Mapping[str, object]) -> Mapping[str, bool | int | str]:
        """The like for the log."""
        now = self._log or _log_settings()
        if not changes:
            return now.told()
        self._log = changed_log(now, changes)
        loggers = [logging.getLogger(name) for name in LOGGERS]
        for logger in loggers:
            logger.setLevel(_level(self._log))
            if not logger.hasHandlers():
                # Without one, Python shows warnings and errors alone.
                logger.addHandler(logging.StreamHandler())
        return self._log.told()


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
