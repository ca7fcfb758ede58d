"""The levels that log settings change are the process's; other tests need them as they were."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.telemetry.settings import LOGGERS


@contextmanager
def at_warning() -> Iterator[None]:
    """Warnings and errors are logged, and afterwards what was before."""
    before = {name: logging.getLogger(name).level for name in LOGGERS}
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
