"""Updates and the watch over drift, as rows of one table: each a document under its id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import delete, select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.tables import updates


class Row(NamedTuple):
    """`open`: there is more to do."""

    id: str
    model: str
    open: bool
    changed_at: float
    document: Mapping[str, Any]


async def read(connection: AsyncConnection) -> list[Row]:
    """Every row, the last changed first. Raises SQLAlchemyError, as everything here does."""
    query = select(updates).order_by(updates.c.changed_at.desc(), updates.c.id.desc())
    return [Row(*row) for row in (await connection.execute(query)).all()]


async def write(connection: AsyncConnection, row: Row) -> None:
    """In place of the one with the same id, if there is one."""
    statement = insert(updates).values(**row._asdict())
    changed = {name: statement.excluded[name] for name in ("model", "open", "changed_at", "document")}
    await connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_=changed))


async def forget(connection: AsyncConnection, id: str) -> None:
    await connection.execute(delete(updates).where(updates.c.id == id))
