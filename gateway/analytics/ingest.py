"""Reports taken in: each record once, whatever becomes of calls, devices and this process.

Reports that come while a transaction runs share the next one, so that a thousand devices cost no thousand
commits. What comes of a report is on disk before it is answered.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import delete, func, select, tuple_
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from edgewire.places import Place
from edgewire.v1 import edge_pb2
from gateway.analytics import samples
from gateway.analytics.consent import Consent
from gateway.analytics.samples import Kept
from gateway.analytics.windows import (
    UNDATED,
    Key,
    Known,
    Mark,
    Sums,
    Where,
    bucket_of,
    read_window,
    take,
)
from gateway.core.evidence import KEPT_S
from gateway.core.place import Origin
from gateway.store.tables import evidence, report_sources
from oip.errors import OipError
from oip.reasons import Reason

logger = logging.getLogger(__name__)

SILENT_S = 30 * 86400
"""A source that has not reported for so long is forgotten."""
SPOOLS = 8
"""Most spools of one source that are remembered: each new file on a device is one."""
BUSY_SHARE = 0.25
"""Of the time, at most so much goes into taking reports: those who report wait for the rest of it."""
LONGEST_PAUSE_MS = 10_000
_ROWS = 100
"""Rows named in one statement."""
_SPOOL = re.compile(r"[0-9a-f]{32}")


class _Report(NamedTuple):
    source: str
    place: Place
    request: edge_pb2.DeliverRequest
    done: asyncio.Future[edge_pb2.DeliverReply]


@dataclass(slots=True)
class _Batch:
    """What one transaction writes besides the marks."""

    sums: dict[Key, Sums] = field(default_factory=dict[Key, Sums])
    kept: list[Kept] = field(default_factory=list[Kept])
    refused: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    lost: list[str] = field(default_factory=list[str])


class Ingest:
    """`bucket_s` is how fine evidence is kept by time: the shortest interval at which anything reports.
    `wall` gives seconds since the epoch. Belongs to one loop."""

    def __init__(
        self,
        engine: AsyncEngine,
        known: Known,
        consent: Consent,
        bucket_s: int,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._known = known
        self._consent = consent
        self._bucket_s = max(1, bucket_s)
        self._wall = wall
        self._waiting: list[_Report] = []
        self._writer: asyncio.Task[None] | None = None
        self._refused: Counter[tuple[str, str]] = Counter()
        self._pruned_at = -math.inf

    async def take(
        self, source: str, place: Place, request: edge_pb2.DeliverRequest
    ) -> edge_pb2.DeliverReply:
        """Count what is new in a report of `source`, a device's name behind "device:" or a replica's behind
        "gateway:", which tells of `place`. Raises OipError: MALFORMED for a spool without an id, and
        UNAVAILABLE where the database fails; nothing is counted then, and the report may come again."""
        if not _SPOOL.fullmatch(request.spool):
            raise OipError(Reason.MALFORMED, "The spool's id is not 32 lower-case hex digits.")
        done: asyncio.Future[edge_pb2.DeliverReply] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Report(source, place, request, done))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all(), name="take reports")
        return await done

    def refused(self, model: str) -> Mapping[str, int]:
        """How much of what was reported of a model was refused since this process began, by why. "" is for
        models that are not known."""
        return {why: count for (name, why), count in self._refused.items() if name == model}

    async def close(self) -> None:
        """Wait for what is under way."""
        if self._writer is not None:
            await self._writer

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                reports, self._waiting = self._waiting, []
                began = time.monotonic()
                try:
                    counted = await self._write(reports)
                except Exception as error:
                    for report in reports:
                        if not report.done.done():
                            report.done.set_exception(_told(error))
                    continue
                took_ms = (time.monotonic() - began) * 1000
                pause_ms = min(LONGEST_PAUSE_MS, math.ceil(took_ms * (1 / BUSY_SHARE - 1)))
                for report, number in zip(reports, counted, strict=True):
                    if not report.done.done():
                        report.done.set_result(edge_pb2.DeliverReply(counted=number, pause_ms=pause_ms))
        finally:
            self._writer = None

    async def _write(self, reports: Sequence[_Report]) -> list[int]:
        """How far each report's spool is counted, once that is on disk."""
        now = self._wall()
        batch = _Batch()
        try:
            async with self._engine.begin() as connection:
                marks = await _marks(connection, reports)
                counted: list[int] = []
                for report in reports:
                    key = (report.source, report.request.spool)
                    marks[key] = self._count(report, marks[key], batch, now)
                    counted.append(marks[key].counted)
                await _store_marks(connection, marks, now)
                await _add(connection, batch.sums, now)
                await self._keep(connection, batch)
                if not self._pruned_at <= now < self._pruned_at + self._bucket_s:
                    await _prune(connection, now)
        except SQLAlchemyError as error:
            logger.error("reports cannot be stored: %s", getattr(error, "orig", None) or error)
            text = f"reports cannot be stored ({type(error).__name__}); they are kept where they are"
            raise OipError(Reason.UNAVAILABLE, text) from None
        self._pruned_at = now
        self._refused.update(batch.refused)
        for line in batch.lost:
            logger.warning("%s", line)
        return counted

    def _count(self, report: _Report, mark: Mark, batch: _Batch, now: float) -> Mark:
        """Add to the batch what is new in a report."""
        found = take(mark, report.request.records)
        origin = self._consent.origin_of(report.source, report.place)
        if found.refused:
            batch.refused["", "nonsense"] += found.refused
        if found.holes:
            never = sum(last - first + 1 for first, last in found.holes)
            upto = f"records {found.holes[0][0]} to {found.holes[-1][1]}"
            batch.lost.append(f"{report.source} never sent {never} of {upto}: they count as lost")
        for record in found.new:
            age_ms = record.age_ms if record.HasField("age_ms") else None
            if record.HasField("window"):
                where, bucket = str(Where.of(report.place)), bucket_of(age_ms, now, self._bucket_s)
                self._window(record.window, report.source, origin, where, bucket, batch)
            elif record.HasField("sample"):
                self._sample(record.sample, report.source, origin, now - (age_ms or 0) / 1000, batch)
        return found.mark

    def _window(
        self, window: edge_pb2.Window, source: str, origin: Origin, where: str, bucket: int, batch: _Batch
    ) -> None:
        model = self._consent.model_of(source, window.model)
        edges = None if model is None else self._known.edges(model, window.version)
        if model is None or edges is None:
            batch.refused[model or "", "unknown model" if model is None else "unknown version"] += 1
            return
        read = read_window(window, edges, self._consent.may_count(model, origin))
        if read is None:
            batch.refused[model, "nonsense"] += 1
            return
        sums, refused = read
        batch.sums.setdefault(Key(model, window.version, where, bucket), Sums()).add(sums)
        batch.refused.update({(model, why): count for why, count in refused.items()})

    def _sample(
        self, sample: edge_pb2.Sample, source: str, origin: Origin, taken_at: float, batch: _Batch
    ) -> None:
        model = self._consent.model_of(source, sample.model)
        if model is None or self._known.edges(model, sample.version) is None:
            batch.refused[model or "", "unknown model" if model is None else "unknown version"] += 1
            return
        read = samples.read(sample, model, origin, taken_at, self._consent)
        if isinstance(read, str):
            batch.refused[model, read] += 1
        else:
            batch.kept.append(read)

    async def _keep(self, connection: AsyncConnection, batch: _Batch) -> None:
        await samples.put(connection, batch.kept)
        for model in {kept.model for kept in batch.kept}:
            update = self._consent.update_of(model)
            assert update is not None, "a sample was kept that nobody wants"
            await samples.trim(connection, model, update.samples.max_per_day)


def _told(error: Exception) -> OipError:
    """One for each who waits: an exception that several raise would gather their frames."""
    if isinstance(error, OipError):
        return OipError(error.reason, error.message)
    logger.error("reports cannot be counted", exc_info=error)
    return OipError(Reason.INTERNAL, "reports cannot be counted: the gateway's log says why")


async def _marks(connection: AsyncConnection, reports: Sequence[_Report]) -> dict[tuple[str, str], Mark]:
    marks = {(report.source, report.request.spool): Mark() for report in reports}
    pair = tuple_(report_sources.c.source, report_sources.c.spool)
    for keys in _chunks(list(marks)):
        for row in await connection.execute(select(report_sources).where(pair.in_(keys))):
            marks[row.source, row.spool] = Mark(row.counted, row.lost)
    return marks


async def _store_marks(
    connection: AsyncConnection, marks: Mapping[tuple[str, str], Mark], now: float
) -> None:
    rows = [
        {"source": source, "spool": spool, "counted": mark.counted, "lost": mark.lost, "changed_at": now}
        for (source, spool), mark in marks.items()
    ]
    write = insert(report_sources)
    changed = {name: write.excluded[name] for name in ("counted", "lost", "changed_at")}
    await connection.execute(
        write.on_conflict_do_update(index_elements=["source", "spool"], set_=changed), rows
    )


async def _add(connection: AsyncConnection, sums: Mapping[Key, Sums], now: float) -> None:
    """Add to what is stored. What has no known time remembers when it was last added to."""
    if not sums:
        return
    totals = dict(sums)
    columns = (evidence.c.model, evidence.c.version, evidence.c.site, evidence.c.bucket)
    for keys in _chunks(list(sums)):
        for row in await connection.execute(select(evidence).where(tuple_(*columns).in_(keys))):
            stored = Sums.of_document(row.document)
            key = Key(row.model, row.version, row.site, row.bucket)
            stored.add(sums[key])
            totals[key] = stored
    rows = [
        {
            "model": key.model,
            "version": key.version,
            "site": key.where,
            "bucket": key.bucket,
            "document": {**total.to_document(), **({"at": now} if key.bucket == UNDATED else {})},
        }
        for key, total in totals.items()
    ]
    write = insert(evidence)
    names = [column.name for column in columns]
    await connection.execute(
        write.on_conflict_do_update(index_elements=names, set_={"document": write.excluded.document}), rows
    )


async def _prune(connection: AsyncConnection, now: float) -> None:
    """Forget old evidence, silent sources, and of a source with many spools those it left long ago."""
    old = (evidence.c.bucket != UNDATED) & (evidence.c.bucket < now - KEPT_S)
    await connection.execute(delete(evidence).where(old))
    undated = select(evidence).where(evidence.c.bucket == UNDATED)
    for row in (await connection.execute(undated)).all():
        if row.document["at"] < now - KEPT_S:
            this = (evidence.c.model == row.model) & (evidence.c.version == row.version)
            this &= (evidence.c.site == row.site) & (evidence.c.bucket == UNDATED)
            await connection.execute(delete(evidence).where(this))
    await connection.execute(delete(report_sources).where(report_sources.c.changed_at < now - SILENT_S))
    age = func.row_number().over(
        partition_by=report_sources.c.source, order_by=report_sources.c.changed_at.desc()
    )
    ranked = select(report_sources.c.source, report_sources.c.spool, age.label("age")).subquery()
    left = select(ranked.c.source, ranked.c.spool).where(ranked.c.age > SPOOLS)
    await connection.execute(
        delete(report_sources).where(tuple_(report_sources.c.source, report_sources.c.spool).in_(left))
    )


def _chunks(keys: list[Any]) -> list[list[Any]]:
    return [keys[at : at + _ROWS] for at in range(0, len(keys), _ROWS)]
