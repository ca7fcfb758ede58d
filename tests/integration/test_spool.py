"""The spool on a real disk: restarts, damage, a disk that is full, and days without a hub."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from edge_agent.spool import Batch, Spool
from edge_agent.spool.arithmetic import WRITE_BYTES
from edgewire.v1 import edge_pb2
from tests.support.processes import source_env

MB = 2**20


class Clock:
    """Seconds, as the test says."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def window(number: int) -> edge_pb2.Record:
    return edge_pb2.Record(window=edge_pb2.Window(model="digits", version="2", answered=number))


def bulk(number: int, size: int = 100_000) -> edge_pb2.Record:
    return edge_pb2.Record(sample=edge_pb2.Sample(model=str(number), request=bytes(size)))


@asynccontextmanager
async def spool(folder: Path, mb: int = 4, clock: Callable[[], float] | None = None) -> AsyncIterator[Spool]:
    made = Spool(folder / "spool.db", mb * MB, clock or Clock())
    await made.open()
    try:
        yield made
    finally:
        await made.close()


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: what is about size needs no disk that syncs."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else tmp_path) as folder:
        yield Path(folder)


async def front(made: Spool, most: int = 64) -> Batch:
    batch = await made.front(most, 10**6)
    assert batch is not None
    return batch


async def drain(made: Spool) -> tuple[list[int], int, int]:
    """The windows' `answered` in their order, how many numbers gaps cover, and the last number."""
    answered: list[int] = []
    lost, last = 0, 0
    while (batch := await made.front(64, 10**6)) is not None:
        for held in batch.records:
            first = held.record.gap.first or held.record.number
            assert last == 0 or first == last + 1
            last = held.record.number
            if held.record.HasField("gap"):
                lost += last - first + 1
            elif held.record.HasField("window"):
                answered.append(held.record.window.answered)
        await made.forget(batch, batch.last)
    assert made.waiting == 0
    assert not made.grown.is_set()
    return answered, lost, last


async def test_records_come_out_as_they_went_in_with_numbers_ages_and_places(tmp_path: Path):
    clock = Clock()
    async with spool(tmp_path, clock=clock) as made:
        assert await made.front(64, 10**6) is None
        made.append(window(10), b"here")
        clock.now += 1.5
        made.append(window(11))
        made.keep("digits", 3.5)
        assert made.waiting == 2
        assert await made.front(64, 10**6) is None, "nothing is delivered that is not on the disk"
        await made.flush()
        clock.now += 0.25
        batch = await front(made)
        assert [(h.record.number, h.record.age_ms, h.place) for h in batch.records] == [
            (1, 1750, b"here"),
            (2, 250, b""),
        ]
        assert [h.record.window for h in batch.records] == [window(10).window, window(11).window]
        assert len((await front(made, 1)).records) == 1
        await made.forget(batch, 1)
        assert made.waiting == 1
        assert [h.record.number for h in (await front(made)).records] == [2]
        made.append(window(12))
        await made.flush()
        # A hub that says to have counted what it never got is not believed.
        await made.forget(await front(made, 1), 10**9)
        assert [h.record.number for h in (await front(made)).records] == [3]
        await made.forget(await front(made), 3)
        assert made.waiting == 0
        made.append(window(13))
        await made.flush()
        assert [h.record.number for h in (await front(made)).records] == [4], "numbers are never given twice"
    assert (tmp_path / "spool.db").stat().st_mode & 0o777 == 0o600


async def test_a_restart_goes_on_and_knows_no_ages_of_before(tmp_path: Path):
    async with spool(tmp_path) as made:
        made.append(window(1))
        made.keep("digits", 3.5)
        await made.flush()
        name = (await front(made)).spool
        made.append(window(2))  # Written down by `close`.
    again = Spool(tmp_path / "spool.db", 4 * MB, Clock(5.0))
    assert await again.open() == {"digits": 3.5}
    assert again.grown.is_set()
    assert again.waiting == 2
    again.append(window(3))
    await again.flush()
    batch = await front(again)
    assert batch.spool == name
    assert [h.record.number for h in batch.records] == [1, 2, 3]
    assert [h.record.HasField("age_ms") for h in batch.records] == [False, False, True]
    await again.close()


def garbage(path: Path) -> None:
    path.write_bytes(b"\x00not a database" * 1000)


def another_application(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE notes (text)")
    other.close()


def cut_short(path: Path) -> None:
    os.truncate(path, 3 * 4096)


def pages_overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [garbage, another_application, cut_short, pages_overwritten, a_folder])
async def test_what_cannot_be_read_is_set_aside_and_a_new_spool_begins(
    damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with spool(tmp_path) as made:
        for number in range(200):
            made.append(bulk(number, 1000))
        await made.flush()
        name = (await front(made)).spool
    damage(tmp_path / "spool.db")
    async with spool(tmp_path) as made:
        made.append(window(7))
        await made.flush()
        batch = await front(made)
        assert batch.spool != name
        assert [(h.record.number, h.record.window.answered) for h in batch.records] == [(1, 7)]
    assert (tmp_path / "spool.db.unreadable").exists()
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == [
        "the spool is damaged: it is set aside as spool.db.unreadable, and a new one begins"
    ]


async def test_damage_while_it_runs_costs_what_was_there_and_nothing_that_comes(tmp_path: Path):
    async with spool(tmp_path) as made:
        for number in range(400):
            made.append(bulk(number, 1000))
        await made.flush()
        batch = await front(made)
        # Past SQLite's cache, as a failing flash card would.
        made.append(bulk(0, 200_000))
        await made.flush()
        pages_overwritten(tmp_path / "spool.db")
        database = made._database
        assert database is not None
        database._db.execute("PRAGMA cache_size = 0")
        found = await made.front(64, 10**6)
        while found is not None and found.spool == batch.spool:
            await made.forget(found, found.last)
            found = await made.front(64, 10**6)
        made.append(window(7))
        await made.flush()
        found = await front(made)
        assert found.spool != batch.spool
        await made.forget(batch, batch.last)
        assert [h.record.window.answered for h in (await front(made)).records] == [7]


async def test_a_record_whose_body_is_damaged_is_a_gap(tmp_path: Path):
    async with spool(tmp_path) as made:
        for number in (1, 2, 3):
            made.append(window(number))
    with sqlite3.connect(tmp_path / "spool.db") as database:
        database.execute("UPDATE records SET body = x'ffffffff' WHERE number = 2")
    database.close()
    async with spool(tmp_path) as made:
        records = [held.record for held in (await front(made)).records]
        assert [record.WhichOneof("kind") for record in records] == ["window", "gap", "window"]
        assert (records[1].number, records[1].gap.first) == (2, 2)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The limit on a file's size stands for a full disk: a write past it fails in the same place."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


async def test_a_full_disk_loses_nothing_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async with spool(tmp_path) as made:
        made.append(window(1))
        await made.flush()
        caplog.set_level(logging.CRITICAL)
        with files_of_at_most(4096):
            made.append(window(2))
            await made.flush()
            made.append(window(3))
            await made.flush()
            assert made.waiting == 3
        await made.flush()
        assert await drain(made) == ([1, 2, 3], 0, 3)


async def test_a_disk_that_stays_full_becomes_one_gap_and_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with spool(tmp_path) as made:
        caplog.set_level(logging.INFO, "tidegate.agent")
        for number in range(10):
            made.append(window(number))
        await made.flush()
        with files_of_at_most(4096):
            before = (tmp_path / "spool.db").stat().st_size
            for number in range(30):
                made.append(bulk(number))
                await made.flush()
            assert made.waiting <= 10 + WRITE_BYTES // 100_000
            assert (tmp_path / "spool.db").stat().st_size == before
            told = [record.message for record in caplog.records]
            assert len(told) == 1
            assert told[0].startswith("the spool cannot be used: the disk ")
        made.append(window(99))
        await made.flush()
        assert caplog.records[-1].message == "the spool can be used again"
        answered, lost, last = await drain(made)
        assert answered == [*range(10), 99]
        assert last == 41
        assert 30 - WRITE_BYTES // 100_000 <= lost < 30


async def test_a_spool_that_another_process_has_open_waits(tmp_path: Path):
    other = sqlite3.connect(tmp_path / "spool.db", isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("CREATE TABLE held (x)")
    async with spool(tmp_path) as made:
        made.append(window(1))
        await made.flush()
        assert made.waiting == 1
        other.execute("DROP TABLE held")
        other.close()
        (tmp_path / "spool.db").unlink()
        await made.flush()
        assert await drain(made) == ([1], 0, 1)


async def test_a_smaller_bound_is_kept_to_at_the_next_start(tmp_path: Path):
    async with spool(tmp_path, mb=12) as made:
        for number in range(80):
            made.append(bulk(number))
            await made.flush()
        assert made.waiting == 80
    assert (tmp_path / "spool.db").stat().st_size > 7 * MB
    async with spool(tmp_path, mb=4) as made:
        assert size_of(tmp_path) <= 4 * MB
        _, lost, last = await drain(made)
        assert last == 80
        assert 60 <= lost < 80


async def test_a_hundred_thousand_records_without_a_hub(memory: Path):
    """What does not fit becomes one gap at the front; the file stays within its bound all the while."""
    most = 0
    async with spool(memory, mb=4) as made:
        for number in range(1, 100_001):
            made.append(window(number), b"cloud")
            if number % 2000 == 0:
                await made.flush()
                most = max(most, size_of(memory))
        first = (await front(made)).records[0].record
        assert (first.gap.first, made.waiting) == (1, 100_000 - first.number + 1)
        answered, lost, last = await drain(made)
    print(
        f"{most} bytes at most, gap of {lost} records, {len(answered)} delivered, {size_of(memory)} bytes after"
    )
    assert most <= 4 * MB
    assert last == 100_000
    assert lost == first.number
    assert answered == list(range(first.number + 1, 100_001))
    assert len(answered) > 10_000
    assert size_of(memory) < 64 * 1024, "an empty spool gives its room back"


WRITER = """
import asyncio, sys
from pathlib import Path
from edge_agent.spool import Spool
from edgewire.v1 import edge_pb2

async def main():
    spool = Spool(Path(sys.argv[1]), 4 * 2**20)
    await spool.open()
    number = int(sys.argv[2])
    while True:
        for _ in range(3):
            number += 1
            spool.append(edge_pb2.Record(window=edge_pb2.Window(answered=number)))
        await spool.flush()
        print(number, flush=True)
        if number % 2 and (batch := await spool.front(2, 10**6)):
            await spool.forget(batch, batch.last)

asyncio.run(main())
"""


def write_until_killed(folder: Path, begun: int) -> int:
    """The highest number that a process said to have written when it was killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder / "spool.db"), str(begun)],
        stdout=subprocess.PIPE,
        text=True,
        env=source_env(),
    )
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(5)]
    process.kill()
    process.wait()
    said += process.stdout.readlines()
    process.stdout.close()
    return int([line for line in said if line.endswith("\n")][-1])


async def test_kill_9_amid_writing_keeps_all_that_was_written(tmp_path: Path):
    """Numbers go on where they were, and the records with them."""
    written = 0
    for _ in range(3):
        told = await asyncio.to_thread(write_until_killed, tmp_path, written)
        async with spool(tmp_path) as made:
            batch = await made.front(10**6, 10**9)
            assert batch is not None
            numbers = [(held.record.number, held.record.window.answered) for held in batch.records]
            # Each record has the number that the writer gave it, one that no other had before.
            assert all(number == answered for number, answered in numbers)
            assert [number for number, _ in numbers] == list(range(numbers[0][0], numbers[-1][0] + 1))
            written = numbers[-1][0]
        assert written >= told
