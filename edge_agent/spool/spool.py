"""The spool as the rest of the agent knows it: put a record in, take the oldest out, forget what is counted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from edge_agent.spool.arithmetic import WRITE_BYTES, cost
from edge_agent.spool.database import Damaged, Database, Row, Unwritable, Waiting, set_aside
from edgewire.v1 import edge_pb2

_log = logging.getLogger("tidegate.agent")

FLUSH_BYTES = 64 * 1024
"""So much in memory is written without being told to."""
T = TypeVar("T")


class Held(NamedTuple):
    """A record with its number and, where it can be told, its age. `place` is what `Spool.append` got."""

    record: edge_pb2.Record
    place: bytes


class Batch(NamedTuple):
    """The oldest records of a spool of this name."""

    spool: str
    records: Sequence[Held]

    @property
    def last(self) -> int:
        return self.records[-1].record.number


class Spool:
    """`path` and its journal take at most `limit_bytes` of the disk, 4 MiB or more. Lives on one loop.

    Nothing raises for a disk that is full, broken or slow: records then wait in memory, at most
    WRITE_BYTES of them, and those that have no room there become a gap. A file that is damaged is set
    aside, and another spool begins.
    """

    def __init__(self, path: Path, limit_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tidegate-spool")
        self._database: Database | None = None
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        self._lost = 0
        """How many records before those that wait had no room to."""
        self._kept: dict[str, float] = {}
        self._on_disk = 0
        self._flushing: asyncio.Task[None] | None = None
        self._told = ""
        self.grown = asyncio.Event()
        """Set when there is something to deliver."""

    @property
    def waiting(self) -> int:
        """How many records wait."""
        return self._on_disk + len(self._waiting)

    async def open(self) -> Mapping[str, float]:
        """Begin, where the last run ended; gives what it kept."""
        return await self._run(lambda database: database.kept()) or {}

    def append(self, record: edge_pb2.Record, place: bytes = b"") -> None:
        """Keep a record, soon. `place` goes with it."""
        one = Waiting(self._clock(), place, record.SerializeToString())
        self._waiting.append(one)
        self._waiting_bytes += cost(one.size)
        self._let_go()
        if self._waiting_bytes >= FLUSH_BYTES:
            self._flush_soon()

    def keep(self, name: str, value: float) -> None:
        """Keep a number together with the records that wait, for the next run."""
        self._kept[name] = value

    async def flush(self) -> None:
        """Write what waits, if it can be written. Cancelled, it goes on by itself."""
        await asyncio.shield(self._flush_soon())

    async def front(self, most: int, most_bytes: int) -> Batch | None:
        """The oldest records that are on the disk, at least one, at most `most`, and of `most_bytes` where
        it is more than one; None when there is none to be had."""
        read = await self._run(lambda database: (database, database.read(most, most_bytes)))
        if read is None or not read[1]:
            return None
        database, rows = read
        now = self._clock()
        return Batch(database.name, [_held(row, database.session, now) for row in rows])

    async def forget(self, batch: Batch, counted: int) -> None:
        """The records of this batch up to the number `counted` are counted."""

        def forget(database: Database) -> None:
            if database.name == batch.spool:
                database.forget(min(counted, batch.last))

        await self._run(forget)

    async def close(self) -> None:
        """Write what waits, and close the file."""
        await self.flush()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    def _flush_soon(self) -> asyncio.Task[None]:
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._write(), name="tidegate spool")
        return self._flushing

    async def _write(self) -> None:
        while self._waiting or self._lost or self._kept:
            taken, lost, kept = list(self._waiting), self._lost, self._kept
            self._waiting.clear()
            self._waiting_bytes, self._lost, self._kept = 0, 0, {}
            if await self._run(lambda database: database.write(lost, taken, kept) or True):  # noqa: B023
                continue
            self._kept = {**kept, **self._kept}
            if self._lost:
                # What came meanwhile had no room itself, so there is none for what was before it.
                self._lost += lost + len(taken)
            else:
                self._lost = lost
                self._waiting.extendleft(reversed(taken))
                self._waiting_bytes += sum(cost(one.size) for one in taken)
                self._let_go()
            return

    def _let_go(self) -> None:
        while self._waiting_bytes > WRITE_BYTES:
            self._waiting_bytes -= cost(self._waiting.popleft().size)
            self._lost += 1

    async def _run(self, use: Callable[[Database], T]) -> T | None:
        """What `use` gives, in the spool's thread; None while the file cannot be used."""
        try:
            found, self._on_disk = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._use, use
            )
        except Unwritable as fault:
            self._tell(f"the spool cannot be used: {fault}; what is counted waits in memory, within a bound")
            self.grown.clear()
            return None
        if self._on_disk:
            self.grown.set()
        else:
            self.grown.clear()
        if self._told:
            _log.info("the spool can be used again")
            self._told = ""
        return found

    def _use(self, use: Callable[[Database], T]) -> tuple[T, int]:
        for _ in range(2):
            try:
                if self._database is None:
                    self._database = Database(self._path, self._limit_bytes)
                return use(self._database), self._database.rows
            except Damaged:
                self._close()
                set_aside(self._path)
                _log.warning(
                    "the spool is damaged: it is set aside as %s.unreadable, and a new one begins",
                    self._path.name,
                )
        raise Unwritable("a new one is damaged as well")

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _tell(self, message: str) -> None:
        """Log what is new: a disk that is full for days is one line."""
        if message != self._told:
            _log.warning("%s", message)
            self._told = message


def _held(row: Row, session: int, now: float) -> Held:
    """A body that cannot be read any more is lost like one that had no room."""
    try:
        record = edge_pb2.Record.FromString(row.body)
    except DecodeError:
        record = edge_pb2.Record(gap=edge_pb2.Gap(first=row.first or row.number))
    record.number = row.number
    if row.session == session:
        record.age_ms = max(0, round((now - row.at) * 1000))
    return Held(record, row.place)
