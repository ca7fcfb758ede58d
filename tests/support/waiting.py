"""Waiting for something to become true, with a limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def until(holds: Callable[[], bool], timeout_s: float = 15.0) -> None:
    """Return once `holds()`. Fails the test after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not so within {timeout_s} s"
        await asyncio.sleep(0.02)


def until_true(holds: Callable[[], bool], timeout_s: float = 15.0) -> None:
    """The same outside a loop."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not so within {timeout_s} s"
        time.sleep(0.02)
