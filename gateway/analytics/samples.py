"""Requests to train on, and their labels.

A sample goes nowhere but where its own set and its model's class of now allow: who takes one names the
place, and asks for nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from edgewire.allowed import decode
from edgewire.places import Place
from edgewire.signals import rows_of
from edgewire.v1 import edge_pb2
from gateway.analytics.consent import Consent
from gateway.core.place import Origin
from gateway.core.training import Sample
from gateway.core.training_run import PlacedSample
from gateway.store.tables import samples
from oip.errors import OipError
from oip.infer import Array, parse_request
from oip.sample import sample_id
from oip.signature import Signature

DAYS_KEPT = 10
"""Of a model's samples as many are kept as one source may take in so many days."""
MOST_BYTES = 2**28
"""Of a model's samples together, whatever their number."""
MOST_BYTES_EACH = 2**22
_ANY = Signature((), ())
_AT_A_TIME = 50


@dataclass(frozen=True, slots=True)
class Kept:
    """A sample. `origin` and `places` (edgewire.allowed as text) say where it may go, `taken_at` is wall
    time, `request` a serialized ModelInferRequest of `rows` rows; `labels`, one a row, are a teacher's."""

    model: str
    id: str
    site: str
    places: str
    version: str
    confidence: float
    taken_at: float
    rows: int
    request: bytes = field(repr=False)
    labels: tuple[int, ...] | None = None


def read(
    sample: edge_pb2.Sample, model: str, origin: Origin, taken_at: float, consent: Consent
) -> Kept | str:
    """A reported sample as it is kept, or why it is not: "privacy", or "nonsense". `model` is the gateway's
    name for it."""
    try:
        allowed = decode(sample.allowed)
    except ValueError:
        return "privacy"
    if not consent.may_keep(model, origin, allowed):
        return "privacy"
    if len(sample.request) > MOST_BYTES_EACH or not 0 <= sample.confidence <= 1:
        return "nonsense"
    try:
        inputs = parse_request(sample.request, _ANY).inputs
        name = sample_id(inputs)
    except (OipError, ValueError):
        return "nonsense"
    if not inputs:
        return "nonsense"
    return Kept(
        model,
        name,
        origin.site or "",
        sample.allowed,
        sample.version,
        sample.confidence,
        taken_at,
        rows_of(inputs),
        sample.request,
    )


async def put(connection: AsyncConnection, kept: Sequence[Kept]) -> None:
    """Store samples; one whose inputs are there already stays as it is."""
    if kept:
        rows = [{name: getattr(one, name) for name in _COLUMNS} for one in kept]
        await connection.execute(insert(samples).on_conflict_do_nothing(), rows)


async def trim(connection: AsyncConnection, model: str, max_per_day: int) -> None:
    """Forget what is too much: the oldest without a label first, then the oldest."""
    order = (samples.c.labels.is_(None), samples.c.taken_at.desc(), samples.c.id)
    ranked = (
        select(
            samples.c.id,
            func.row_number().over(order_by=order).label("number"),
            func.sum(func.length(samples.c.request)).over(order_by=order).label("bytes"),
        )
        .where(samples.c.model == model)
        .subquery()
    )
    much = (ranked.c.number > DAYS_KEPT * max_per_day) | (ranked.c.bytes > MOST_BYTES)
    gone = select(ranked.c.id).where(much)
    await connection.execute(delete(samples).where(samples.c.model == model, samples.c.id.in_(gone)))


class Samples:
    """The samples that ingest kept."""

    def __init__(self, engine: AsyncEngine, consent: Consent) -> None:
        self._engine = engine
        self._consent = consent

    async def listed(self, model: str) -> list[Kept]:
        """All of a model, newest first, without their requests: for people."""
        columns = [samples.c[name] for name in (*_COLUMNS, "labels") if name != "request"]
        order = (samples.c.taken_at.desc(), samples.c.id)
        async with self._engine.begin() as connection:
            rows = await connection.execute(select(*columns).where(samples.c.model == model).order_by(*order))
            return [_kept({**row, "request": b""}) for row in rows.mappings()]

    async def unlabelled(self, model: str, place: Place, most: int, but: Collection[str] = ()) -> list[Kept]:
        """The newest that no teacher has told of and that may go to its `place`, `but` these."""
        may = await self._at(model, place)
        return await self._whole([one for one in may if one.labels is None and one.id not in but][:most])

    async def label(self, model: str, id: str, labels: Sequence[int]) -> bool:
        """A teacher's word: one label for each row. False where there is no such sample (any more), or it
        has another number of rows."""
        this = (samples.c.model == model) & (samples.c.id == id) & (samples.c.rows == len(labels))
        async with self._engine.begin() as connection:
            told = await connection.execute(update(samples).where(this).values(labels=list(labels)))
            return told.rowcount > 0

    async def for_training(
        self, model: str, training: Place, labels: Mapping[str, Sequence[int]] | None = None
    ) -> list[PlacedSample]:
        """Every labelled sample that may go to the training place, by id, with where it may go at all.
        `labels` are the operator's by sample, and go before a teacher's; one that has not as many as the
        sample has rows is left out."""
        whole = await self._whole(await self._chosen(model, training, labels))
        left = [(one, places) for one in whole if (places := self._left(one)) is not None]
        found = await asyncio.to_thread(lambda: [PlacedSample(_sample(one), places) for one, places in left])
        return sorted(found, key=lambda placed: placed.sample.id)

    async def trainable(
        self, model: str, training: Place, labels: Mapping[str, Sequence[int]] | None = None
    ) -> int:
        """How many `for_training` gives, without reading them."""
        return len(await self._chosen(model, training, labels))

    async def _chosen(
        self, model: str, training: Place, labels: Mapping[str, Sequence[int]] | None
    ) -> list[Kept]:
        told = labels or {}
        chosen: list[Kept] = []
        for one in await self._at(model, training):
            mine = told.get(one.id, one.labels)
            if mine is not None and len(mine) == one.rows:
                chosen.append(replace(one, labels=tuple(mine)))
        return chosen

    async def _at(self, model: str, place: Place) -> list[Kept]:
        """Those that may be at a place, newest first, without their requests. Every way out of the store
        asks here."""
        return [one for one in await self.listed(model) if self._may_go(one, place)]

    async def _whole(self, chosen: Sequence[Kept]) -> list[Kept]:
        """With their requests, those that are still there. A few at a time: the store has one writer, who
        waits for readers."""
        found: list[Kept] = []
        for at in range(0, len(chosen), _AT_A_TIME):
            some = {one.id: one for one in chosen[at : at + _AT_A_TIME]}
            (model,) = {one.model for one in some.values()}
            wanted = (samples.c.model == model) & samples.c.id.in_(some)
            async with self._engine.begin() as connection:
                rows = await connection.execute(select(samples.c.id, samples.c.request).where(wanted))
                requests = {row.id: row.request for row in rows}
            found += [replace(one, request=requests[id]) for id, one in some.items() if id in requests]
        return found

    def _may_go(self, one: Kept, place: Place) -> bool:
        try:
            allowed = decode(one.places)
        except ValueError:
            return False
        return self._consent.may_go(one.model, Origin(one.site or None), allowed, place)

    def _left(self, one: Kept) -> str | None:
        """Where a sample may go by now: its class may allow less than when it was kept. None where that cannot
        be told."""
        try:
            return self._consent.left(one.model, Origin(one.site or None), decode(one.places)).encode()
        except ValueError:
            return None


_COLUMNS = ("model", "id", "site", "places", "version", "confidence", "taken_at", "rows", "request")


def _kept(row: Mapping[str, object]) -> Kept:
    labels = row["labels"]
    values = {name: row[name] for name in _COLUMNS}
    return Kept(**values, labels=None if labels is None else tuple(labels))  # pyright: ignore


def _sample(kept: Kept) -> Sample:
    inputs = parse_request(kept.request, _ANY).inputs
    rows = {name: _by_row(array, kept.rows) for name, array in inputs.items()}
    return Sample(kept.id, rows, np.asarray(kept.labels, np.int64))


def _by_row(array: Array, rows: int) -> Array:
    """The array with its rows first: a request that is one row may have none."""
    by_row = array.ndim > 1 and array.shape[0] == rows
    return array if by_row else array[np.newaxis]
