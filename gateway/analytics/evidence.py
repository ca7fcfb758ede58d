"""What was counted, by version, place and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from edgewire.places import Tier
from edgewire.signals import CONFIDENCE, latency_quantile
from gateway.analytics.windows import UNDATED, Known, Sums, Where
from gateway.core.evidence import Evidence, Histogram
from gateway.store.tables import evidence, report_sources


@dataclass(frozen=True, slots=True)
class SignalWindows:
    """A signal over time: a histogram for each bucket in which something was counted, oldest first, of all
    places and of each site ("" for places without one)."""

    total: Sequence[Histogram] = ()
    sites: Mapping[str, Sequence[Histogram]] = field(default_factory=dict[str, Sequence[Histogram]])


class EvidenceBook:
    """Reads what ingest wrote. A while is from `since` to `until`, wall time: what was reported of buckets
    that begin in it; what came without a known age is in none."""

    def __init__(self, engine: AsyncEngine, known: Known) -> None:
        self._engine = engine
        self._known = known

    async def evidence(
        self,
        model: str,
        version: str,
        since: float,
        until: float,
        site: str | None = None,
        tier: Tier | None = None,
    ) -> Evidence:
        """Everything of a version in a while, of places of that site and that tier; None asks for neither."""
        sums = Sums()
        for where, _, one in await self._rows(model, version, since, until):
            if where.suits(site, tier):
                sums.add(one)
        return sums.evidence(self._known.edges(model, version) or {})

    async def windows(
        self, model: str, version: str, signal: str, since: float, until: float
    ) -> SignalWindows:
        edges = self._known.edges(model, version) or {}
        total: dict[int, Histogram] = {}
        sites: dict[str, dict[int, Histogram]] = {}
        for where, bucket, one in await self._rows(model, version, since, until):
            histogram = one.histogram(signal, edges)
            if histogram is None:
                continue
            for found in (total, sites.setdefault(where.site, {})):
                found[bucket] = found[bucket].plus(histogram) if bucket in found else histogram
        return SignalWindows(
            _in_order(total), {site: _in_order(found) for site, found in sorted(sites.items())}
        )

    async def view(self, model: str, since: float = 0.0) -> list[dict[str, Any]]:
        """For people: each version at each place since then, and what came without a known age besides."""
        found: dict[tuple[str, Where], Sums] = {}
        undated: dict[tuple[str, Where], int] = {}
        async with self._engine.begin() as connection:
            rows = (await connection.execute(select(evidence).where(evidence.c.model == model))).all()
        for row in rows:
            key, one = (row.version, Where.read(row.site)), Sums.of_document(row.document)
            if row.bucket != UNDATED and row.bucket < since:
                continue
            if row.bucket == UNDATED:
                undated[key] = one.answered + sum(one.failed.values())
            found.setdefault(key, Sums()).add(one)
        return [
            {**self._figures(model, *key, sums), "undated": undated.get(key, 0)}
            for key, sums in sorted(found.items())
        ]

    async def lost(self) -> int:
        """Records of all sources that never came."""
        async with self._engine.begin() as connection:
            return (await connection.execute(select(func.sum(report_sources.c.lost)))).scalar() or 0

    async def _rows(
        self, model: str, version: str, since: float, until: float
    ) -> list[tuple[Where, int, Sums]]:
        of = (evidence.c.model == model) & (evidence.c.version == version)
        of &= (evidence.c.bucket >= max(0.0, since)) & (evidence.c.bucket < until)
        async with self._engine.begin() as connection:
            rows = (await connection.execute(select(evidence).where(of))).all()
        return [(Where.read(row.site), row.bucket, Sums.of_document(row.document)) for row in rows]

    def _figures(self, model: str, version: str, where: Where, sums: Sums) -> dict[str, Any]:
        edges = self._known.edges(model, version) or {}
        confidence = sums.histogram(CONFIDENCE, edges)
        p50, p95 = (latency_quantile(sums.latency, share) for share in (0.5, 0.95))
        return {
            "version": version,
            **where._asdict(),
            "requests": sums.answered + sum(sums.failed.values()),
            "errors": sums.evidence(edges).failed,
            "failed": dict(sorted(sums.failed.items())),
            "latency_p50_ms": None if p50 is None else p50 * 1000,
            "latency_p95_ms": None if p95 is None else p95 * 1000,
            "confidence_mean": None if confidence is None else confidence.mean,
        }


def _in_order(found: Mapping[int, Histogram]) -> list[Histogram]:
    return [found[bucket] for bucket in sorted(found)]
