"""From what the hub wants to what lies on the disk: verified, then fetched."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

from edge_agent.ports import Hub
from edge_agent.update.disk import Disk
from edge_agent.update.fetch import NotBrought, fetch_blob
from edge_agent.update.plan import Slot, Target
from edge_agent.update.trust import Trust, Unverified
from edge_agent.update.verdict import Refused, names_of, order_of

MAX_BATCH = 2**16
MAX_BATCH_DELAY_MS = 60_000.0


class NoHub(NotBrought):
    """There is none to ask yet."""


class Bringing:
    """Verifies and fetches for `disk`. `hub` is the one that spoke last; `max_bytes` bounds an artifact."""

    def __init__(self, disk: Disk, trust: Path, max_bytes: int) -> None:
        self.hub: Hub | None = None
        self._disk = disk
        self._max_bytes = max_bytes
        self._trust = Trust(trust)
        # Two models may share a file, and the hub gives a device few downloads at once.
        self._download = asyncio.Lock()
        self._updates = 0
        self._none_waits = asyncio.Event()
        self._none_waits.set()
        self._of_a_trial: asyncio.Task[None] | None = None

    async def verify(
        self, target: Target, active: Slot | None, previous: Slot | None = None, *, trial: bool = False
    ) -> int:
        """The order that is signed with a target, once it is certain that it may run here. Raises
        NotBrought, NoHub."""
        if (fault := _impossible(target)) is not None:
            raise NotBrought(fault, again=False)
        if self.hub is None:
            raise NoHub("It waits for the hub.")
        try:
            signed = await self._trust.look_up(names_of(target, active), self.hub)
            return order_of(target, signed, here=self.hub.here, active=active, previous=previous, trial=trial)
        except (Unverified, Refused) as fault:
            raise NotBrought(str(fault)) from None

    async def fetch(self, target: Target) -> None:
        """See that its files lie on the disk. Raises NotBrought, NoHub."""
        self._updates += 1
        self._none_waits.clear()
        try:
            if self._of_a_trial is not None:
                self._of_a_trial.cancel()
            async with self._download:
                await self._fetch(target)
        finally:
            self._updates -= 1
            if not self._updates:
                self._none_waits.set()

    async def fetch_to_try(self, target: Target) -> None:
        """As `fetch`, for a trial: whatever is to serve goes first, and what came of this one stays."""
        while True:
            await self._none_waits.wait()
            async with self._download:
                if self._updates:
                    continue
                work = self._of_a_trial = asyncio.create_task(
                    self._fetch(target), name="tidegate fetch to try"
                )
                try:
                    await asyncio.wait((work,))
                finally:
                    self._of_a_trial = None
                    work.cancel()
                    await asyncio.gather(work, return_exceptions=True)
            if not work.cancelled():
                return work.result()

    async def _fetch(self, target: Target) -> None:
        if self.hub is None:
            raise NoHub("It waits for the hub.")
        for digest, size in target.files:
            await fetch_blob(self._disk, digest, size, self._max_bytes, self.hub.fetch)

    async def close(self) -> None:
        await self._trust.close()


def _impossible(target: Target) -> str | None:
    """Why no device could run a model as it is desired, in one sentence; None where one could."""
    if target.batch_max_size > MAX_BATCH:
        return f"Batches of {target.batch_max_size} are asked for, and this device makes at most {MAX_BATCH}."
    delay = target.batch_delay_ms
    if not (math.isfinite(delay) and 0 <= delay <= MAX_BATCH_DELAY_MS):
        return (
            f"A batch delay of {delay:g} ms is asked for, and this device waits 0 to {MAX_BATCH_DELAY_MS:g}."
        )
    return None
