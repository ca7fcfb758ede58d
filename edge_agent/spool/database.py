"""The spool's SQLite file. Used by one thread at a time."""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from edge_agent.spool.arithmetic import GAP_BYTES, PAGE_BYTES, Entry, cost, cut, room
from edgewire.v1 import edge_pb2

_FORMAT = 1
_SPOOL = re.compile(r"[0-9a-f]{32}")
_CHECKPOINT_PAGES = 64
_SIZE = "length(place) + length(body)"
_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE records (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  first INTEGER,          -- of a gap, else NULL
  session INTEGER NOT NULL,
  at REAL NOT NULL,       -- monotonic, of the session
  place BLOB NOT NULL,    -- an edgewire.v1.Place: the gateway that its values were counted for
  body BLOB NOT NULL      -- an edgewire.v1.Record without number and age
);
CREATE TABLE spool (name TEXT NOT NULL, session INTEGER NOT NULL);
CREATE TABLE kept (name TEXT PRIMARY KEY, value REAL NOT NULL);
PRAGMA user_version = {_FORMAT};
"""
_READING = frozenset({sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ})

P = ParamSpec("P")
T = TypeVar("T")


class Damaged(Exception):
    """The file is no spool, or holds one no longer."""


class Unwritable(Exception):
    """The file cannot be used at the moment; the text is a clause that says why."""


class Row(NamedTuple):
    """A record as it is kept. `first` None: no gap."""

    number: int
    first: int | None
    session: int
    at: float
    place: bytes
    body: bytes


class Waiting(NamedTuple):
    """A record that is to be kept. `at` is an instant of this session's monotonic clock."""

    at: float
    place: bytes
    body: bytes

    @property
    def size(self) -> int:
        return len(self.place) + len(self.body)


class Database:
    """`path` with its journal takes at most `limit_bytes`. Made where it is missing. Raises Damaged and
    Unwritable, from every method."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._pages, self._limit = room(limit_bytes)
        with _faults(path):
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            with _faults(path):
                self._begin()
        except BaseException:
            self._db.close()
            raise

    def _begin(self) -> None:
        run = self._db.execute
        # One process has the file: without this its index of the journal would be a third file.
        run("PRAGMA locking_mode = EXCLUSIVE")
        run(f"PRAGMA page_size = {PAGE_BYTES}")
        run("PRAGMA auto_vacuum = INCREMENTAL")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
        run(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        run("PRAGMA journal_size_limit = 0")
        (form,) = run("PRAGMA user_version").fetchone()
        if not form and not run("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            self._make()
        elif form != _FORMAT or run("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise Damaged
        run("UPDATE spool SET session = session + 1")
        found = run("SELECT name, session FROM spool").fetchall()
        if len(found) != 1 or not _SPOOL.fullmatch(found[0][0]):
            raise Damaged
        self.name: str = found[0][0]
        self.session: int = found[0][1]
        sequence = run("SELECT seq FROM sqlite_sequence WHERE name = 'records'").fetchone()
        self._next: int = 1 + (sequence[0] if sequence else 0)
        self.rows, self._held = 0, 0
        for (size,) in run(f"SELECT {_SIZE} FROM records"):
            self.rows += 1
            self._held += cost(size)
        with self._transaction():
            self._make_room(0)
        self._db.executescript("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")
        run(f"PRAGMA max_page_count = {self._pages}")

    def _make(self) -> None:
        self._db.executescript(_TABLES)
        self._db.execute("INSERT INTO spool VALUES (?, 0)", (secrets.token_hex(16),))
        self._db.execute("COMMIT")

    def kept(self) -> Mapping[str, float]:
        """What `write` kept under names."""
        with _faults():
            return dict(self._db.execute("SELECT name, value FROM kept").fetchall())

    def write(self, lost: int, waiting: Sequence[Waiting], kept: Mapping[str, float]) -> None:
        """Keep records, all or none, after a gap for `lost` ones before them; the oldest go where there is
        no room."""
        with _faults():
            before = self.rows, self._held, self._next
            try:
                with self._transaction():
                    self._write(lost, waiting, kept)
            except BaseException:
                self.rows, self._held, self._next = before
                raise

    def read(self, most: int, most_bytes: int) -> Sequence[Row]:
        """The oldest records: one, and more while they are at most `most` and `most_bytes` together."""
        found: list[Row] = []
        with _faults():
            for row in self._db.execute("SELECT * FROM records ORDER BY number LIMIT ?", (most,)):
                most_bytes -= len(row[5])
                if found and most_bytes < 0:
                    break
                found.append(Row(*row))
        return found

    def forget(self, last: int) -> None:
        """Every record up to this number."""
        with _faults():
            sizes = self._db.execute(f"SELECT {_SIZE} FROM records WHERE number <= ?", (last,)).fetchall()
            if not sizes:
                return
            with self._transaction():
                self._db.execute("DELETE FROM records WHERE number <= ?", (last,))
            self.rows -= len(sizes)
            self._held -= sum(cost(size) for (size,) in sizes)
            if not self.rows:
                # Room that others on the device may need meanwhile.
                self._db.executescript("PRAGMA incremental_vacuum")

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._db.close()

    def _write(self, lost: int, waiting: Sequence[Waiting], kept: Mapping[str, float]) -> None:
        self._make_room(sum(cost(one.size) for one in waiting) + (cost(GAP_BYTES) if lost else 0))
        if lost:
            first, self._next = self._next, self._next + lost
            self._insert_gap(first, self._next - 1)
        for one in waiting:
            self._insert(Row(self._next, None, self.session, *one))
            self._next += 1
        self._db.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", kept.items())

    def _make_room(self, wanted: int) -> None:
        rows = self._db.execute(f"SELECT number, first, {_SIZE} FROM records ORDER BY number")
        entries = (Entry(number, first or number, size) for number, first, size in rows)
        making = cut(entries, self._held + wanted - self._limit)
        rows.close()
        if making is None:
            return
        self._db.execute("DELETE FROM records WHERE number <= ?", (making.last,))
        self.rows -= making.entries
        self._held -= making.freed + cost(GAP_BYTES)
        self._insert_gap(making.first, making.last)

    def _insert_gap(self, first: int, last: int) -> None:
        body = edge_pb2.Record(gap=edge_pb2.Gap(first=first)).SerializeToString()
        self._insert(Row(last, first, 0, 0.0, b"", body))

    def _insert(self, row: Row) -> None:
        self._db.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)", row)
        self.rows += 1
        self._held += cost(len(row.place) + len(row.body))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise


def set_aside(path: Path) -> None:
    """Give the file another name, so that a new spool can begin. Raises Unwritable."""
    try:
        for journal in (path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            journal.unlink(missing_ok=True)
        path.replace(path.with_name(f"{path.name}.unreadable"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise Unwritable(f"it is damaged and cannot be set aside ({os.strerror(error.errno or 0)})") from None


@contextmanager
def _faults(opening: Path | None = None) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        kind = code & 0xFF
        not_ours = (
            sqlite3.SQLITE_CORRUPT,
            sqlite3.SQLITE_NOTADB,
            sqlite3.SQLITE_ERROR,
            sqlite3.SQLITE_MISMATCH,
        )
        unreadable = kind == sqlite3.SQLITE_CANTOPEN and opening is not None and opening.exists()
        if kind in not_ours or code in _READING or unreadable:
            raise Damaged from None
        raise Unwritable(_why(kind)) from None
    except OSError as error:
        raise Unwritable(os.strerror(error.errno or 0)) from None


def _why(kind: int) -> str:
    if kind == sqlite3.SQLITE_FULL:
        return "the disk is full"
    if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "another process has it open"
    return "the disk cannot be written"
