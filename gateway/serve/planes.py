"""The data plane as control sees it: one, whatever the number of its replicas.

What is a replica's own is asked of all and put together: counts and metrics are added up, and views show what
any replica finds wrong. Questions that each could answer go to one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gateway.core.release import Release
from gateway.pipeline.served import Counts, summed
from gateway.pipeline.siblings import Kind
from gateway.serve import merged_views
from gateway.serve.crossing import ask, ask_all, value_of
from gateway.serve.measuring import ANOTHER
from gateway.telemetry.merged import Families, Scrapes, as_text
from gateway.telemetry.metrics import ToldGauge
from gateway.telemetry.settings import State
from oip.errors import OipError
from oip.reasons import Reason

DATA_PLANE = "DataPlane"
WHAT = "the data plane"
MOST_ENDED = 32
"""Replicas that have ended and whose counts are still told apart."""


class Planes:
    """Calls raise OipError where no replica can be asked. Lives on one loop, but for `scrape`."""

    def __init__(self) -> None:
        self._scrapes = Scrapes()
        self._counts: dict[str, Counts] = {}
        """Of each replica, as it was when it last told them."""
        self._turn = asyncio.Lock()
        """Held by what must not be done twice at a time."""

    async def follow(self, release: Release) -> Mapping[str, str]:
        """By endpoint "" where every replica has it serve the release, else why not. One of them moves it; they
        are told once more so that the others know of that."""
        found: dict[str, str] = {}
        told_first = await self._values("follow", release)
        again = await self._values("follow", release) if len(told_first) > 1 else told_first
        for told in again:
            for endpoint, why in told.items():
                found[endpoint] = found.get(endpoint) or why
        return found

    async def teach(self, model: str, teacher: str, request: bytes, allowed: str) -> Sequence[int]:
        return await self._one("teach", model, teacher, request, allowed)

    async def gauges(self, rows: Sequence[ToldGauge]) -> None:
        await self._values("gauges", rows)

    async def endpoints_view(self) -> list[dict[str, Any]]:
        return merged_views.endpoints(await self._values("endpoints_view"))

    async def models_view(self) -> list[dict[str, Any]]:
        return merged_views.models(await self._values("models_view"))

    async def dry_run(self, query: dict[str, Any]) -> dict[str, Any]:
        """As one of the replicas would decide."""
        return await self._one("dry_run", query)

    async def decision(self, decision_id: str) -> dict[str, Any] | None:
        """Of the replica that has it, if one has it still."""
        return next(filter(None, await self._values("decision", decision_id)), None)

    async def measure(self, endpoint: str, model: str, version: str) -> dict[str, Any]:
        async with self._turn:
            if any(await self._values("measuring")):
                raise OipError(Reason.OVERLOADED, ANOTHER)
            return await self._one("measure", endpoint, model, version)

    async def measurement(self, number: str) -> dict[str, Any]:
        """Of the replica that makes it."""
        told = await ask_all(DATA_PLANE, WHAT, "measurement", number)
        return value_of(next((answer for answer in told if "value" in answer), told[0]))

    async def counts(self) -> Counts:
        """What all replicas have served, those included that have ended."""
        told: dict[str, Counts] = dict(await self._values("counts"))
        ended = {name: counts for name, counts in self._counts.items() if name not in told}
        while len(ended) > MOST_ENDED:
            first, second, *_ = ended
            ended[second] = summed([ended.pop(first), ended[second]])
        self._counts = {**ended, **told}
        return summed(self._counts.values())

    async def change(self, kind: Kind, changes: Mapping[str, Any]) -> None:
        async with self._turn:
            await self._values("change", kind, changes)

    async def settings(self) -> State:
        """Those of the replica that has seen the most changes."""
        return max(await self._values("settings"), key=lambda state: state.changes)

    async def look(self, endpoints: Collection[str]) -> None:
        await self._values("look", endpoints)

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """One scrape for all replicas. While none can be asked, what lasts of those that were."""
        told: Mapping[str, Families] = {}
        with contextlib.suppress(OipError):
            told = dict(await self._values("metrics"))
        return await asyncio.to_thread(as_text, self._scrapes.take(told), accept)

    async def _one(self, method: str, *args: Any) -> Any:
        return await ask(DATA_PLANE, WHAT, method, *args)

    async def _values(self, method: str, *args: Any) -> list[Any]:
        """What each replica says. Raises what any of them raised."""
        return [value_of(answer) for answer in await ask_all(DATA_PLANE, WHAT, method, *args)]
