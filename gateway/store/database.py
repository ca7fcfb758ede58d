"""The gateway's database: `tidegate.db` in the state directory, an SQLite file.

Every transaction begins as a writer's (BEGIN IMMEDIATE), so that what it read cannot change before it
writes, whatever other process has the file open. A commit is on disk before it returns.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.util.exc import CommandError
from sqlalchemy import Engine, NullPool, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

FILE = "tidegate.db"
BUSY_S = 5.0
"""How long a transaction waits for another process's to end."""
MIGRATIONS = Path(__file__).parent / "migrations"


class StoreError(RuntimeError):
    """The database cannot be used. The message names the file and what is wrong with it."""


def migrate(state_dir: Path) -> None:
    """Bring the database of a state directory to this version's schema, and make it where there is
    none. All of it happens or nothing. Raises StoreError."""
    path = state_dir / FILE
    engine: Engine | None = None
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        # SQLite would make it readable by everyone.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        engine = create_engine(_url("sqlite", path), poolclass=NullPool, connect_args={"timeout": BUSY_S})
        _own_transactions(engine)
        config = AlembicConfig()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except OSError as error:
        raise StoreError(f"{path}: {os.strerror(error.errno or 0)}") from None
    except CommandError:
        raise StoreError(f"{path} was written by a newer version of Tidegate: run that one") from None
    except SQLAlchemyError as error:
        raise StoreError(f"{path} cannot be used: {_why(error)}") from None
    finally:
        if engine is not None:
            engine.dispose()


@contextlib.contextmanager
def alone(state_dir: Path) -> Iterator[None]:
    """Be the only gateway on a state directory: another one would not hear of what this one writes.
    Raises StoreError. It ends with the process at the latest."""
    with (state_dir / "gateway.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(
                f"another gateway runs on {state_dir}: give this one a --state-dir of its own"
            ) from None
        yield


def open_database(state_dir: Path) -> AsyncEngine:
    """The migrated database of a state directory. Connections last as long as their transaction."""
    engine = create_async_engine(
        _url("sqlite+aiosqlite", state_dir / FILE), poolclass=NullPool, connect_args={"timeout": BUSY_S}
    )
    _own_transactions(engine.sync_engine)
    return engine


def _why(error: SQLAlchemyError) -> str:
    """SQLite's own words, which name no value of a row."""
    cause = getattr(error, "orig", None)
    return str(cause) if isinstance(cause, sqlite3.Error) else type(error).__name__


def _url(driver: str, path: Path) -> URL:
    return URL.create(driver, database=str(path))


def _own_transactions(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:  # pyright: ignore[reportUnusedFunction]
        # Python's driver would begin a transaction late, at the first write.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begun(connection: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        connection.exec_driver_sql("BEGIN IMMEDIATE")
