"""What one of several processes on a machine may do at a time, by locks that end with the process.

`folder` is one that these processes share and no others use; None: there is one process alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path

AGAIN_S = 0.05
"""How often a lock is tried again."""


class Lead:
    """Who leads in what is called `name`: the first that asks, until it ends."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self._path = None if folder is None else folder / f"{name}.lock"
        self._lock = -1

    def held(self) -> bool:
        """Whether this process leads, from now on at the latest. Raises OSError."""
        if self._path is None or self._lock >= 0:
            return True
        lock = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._lock = lock
        return True

    def leave(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@contextlib.asynccontextmanager
async def turn(folder: Path | None, name: str) -> AsyncIterator[None]:
    """Wait until nobody else is at it, and be at it. Raises OSError."""
    lead = Lead(folder, name)
    while True:
        if lead.held():
            break
        await asyncio.sleep(AGAIN_S)
    try:
        yield
    finally:
        lead.leave()
