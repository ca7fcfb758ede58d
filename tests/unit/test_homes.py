"""The homes of sequences: the book, its journal, and the socket that replicas ask."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway.control import homes as module
from gateway.control.homes import KeptHomes
from gateway.core import homes as book_module
from gateway.core.homes import IDLE_S, Home, HomeBook
from gateway.serve import asked_homes
from gateway.serve.asked_homes import AskedHomes
from gateway.serve.homes_desk import HomesDesk
from oip.errors import OipError
from oip.reasons import Reason
from tests.support.waiting import until

AT_T1, AT_T2 = Home("t1", "a"), Home("t2", "b")


def kept(folder: Path) -> KeptHomes:
    homes = KeptHomes(folder / "homes.log")
    assert homes.open(0.0)
    return homes


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short enough for a socket's path."""
    return tmp_path_factory.mktemp("h")


def test_what_lies_idle_is_forgotten_and_a_step_keeps_it() -> None:
    book = HomeBook()
    book.begin("s", AT_T1, 0.0)
    assert book.find("s", IDLE_S) == AT_T1
    assert book.find("s", 2 * IDLE_S) == AT_T1
    assert book.find("s", 3 * IDLE_S + 1) is None
    assert len(book) == 0


def test_of_too_many_those_that_lay_idle_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "MOST", 3)
    book = HomeBook()
    for name in "abc":
        book.begin(name, AT_T1, 0.0)
    book.find("a", 1.0)
    book.begin("d", AT_T1, 2.0)
    assert {name for name in "abcd" if book.find(name, 3.0)} == {"a", "c", "d"}


def test_a_control_that_was_killed_has_its_homes_again(folder: Path) -> None:
    before = kept(folder)
    before.begin("s", AT_T1, 0.0)
    before.begin("over", AT_T1, 0.0)
    before.begin("s", AT_T2, 1.0)
    before.end("over", AT_T1.beginning)
    before.end("s", AT_T1.beginning)
    before.close()
    after = kept(folder)
    assert (after.find("s", 0.0), after.find("over", 0.0), len(after)) == (AT_T2, None, 1)


def test_a_line_that_was_cut_off_never_was(folder: Path) -> None:
    before = kept(folder)
    before.begin("s", AT_T1, 0.0)
    before.close()
    log = folder / "homes.log"
    whole = log.read_bytes()
    log.write_bytes(whole + b'["s", "t2", "b')
    after = kept(folder)
    assert after.find("s", 0.0) == AT_T1
    after.begin("u", AT_T2, 0.0)
    after.close()
    assert kept(folder).find("u", 0.0) == AT_T2


def test_the_journal_belongs_to_one_process(folder: Path) -> None:
    first, second = kept(folder), KeptHomes(folder / "homes.log")
    assert not second.open(0.0)
    first.begin("s", AT_T1, 0.0)
    first.close()
    assert second.open(0.0)
    assert second.find("s", 0.0) == AT_T1


def test_where_the_journal_cannot_be_written_the_sequence_stays_where_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = kept(folder)
    homes.begin("s", AT_T1, 0.0)
    written = os.pwrite

    def full(file: int, content: bytes, at: int) -> int:
        return written(file, content[:-2], at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        homes.begin("s", AT_T2, 0.0)
    assert homes.find("s", 0.0) == AT_T1
    monkeypatch.setattr(os, "pwrite", written)
    homes.end("s", AT_T1.beginning)
    homes.close()
    assert len(kept(folder)) == 0


def test_a_long_journal_is_written_anew_with_what_holds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPACT_BYTES", 1000)
    homes = kept(folder)
    homes.begin("stays", AT_T2, 0.0)
    for number in range(1000):
        homes.begin(f"s{number}", Home("t1", str(number)), 0.0)
        homes.end(f"s{number}", str(number))
    homes.begin("last", AT_T1, 0.0)
    assert (folder / "homes.log").stat().st_size < 2000
    assert not KeptHomes(folder / "homes.log").open(0.0)
    homes.close()
    again = kept(folder)
    assert (again.find("stays", 0.0), again.find("last", 0.0), len(again)) == (AT_T2, AT_T1, 2)


@contextlib.asynccontextmanager
async def desk(folder: Path) -> AsyncIterator[HomesDesk]:
    serving = HomesDesk(folder / "homes.sock")
    await serving.start()
    try:
        yield serving
    finally:
        await serving.close()


async def test_replicas_agree_through_the_desk(folder: Path) -> None:
    async with desk(folder):
        one, other = AskedHomes(folder / "homes.sock"), AskedHomes(folder / "homes.sock")
        assert await one.find("s") is None
        await one.begin("s", AT_T1)
        assert await other.find("s") == AT_T1
        await other.begin("s", AT_T2)
        one.end("s", AT_T1.beginning)
        assert await one.find("s") == AT_T2
        other.end("s", AT_T2.beginning)
        assert await other.find("s") is None
        await one.close()
        await other.close()


async def test_a_question_waits_for_a_control_that_is_started_again(folder: Path) -> None:
    asked = AskedHomes(folder / "homes.sock")
    async with desk(folder):
        await asked.begin("s", AT_T1)
    finding = asyncio.create_task(asked.find("s"))
    beginning = asyncio.create_task(asked.begin("u", AT_T2))
    await asyncio.sleep(0)
    async with desk(folder):
        assert await finding == AT_T1
        await beginning
        assert await asked.find("u") == AT_T2
    await asked.close()


@pytest.mark.parametrize("loops", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_that_has_just_gone_is_made_again(folder: Path, loops: Any) -> None:
    """Whatever is asked between its end and the reader's hearing of it. Serve's loop is uvloop's."""

    async def ask() -> None:
        async with desk(folder):
            asked = AskedHomes(folder / "homes.sock")
            await asked.begin("s", AT_T1)
            for question in (lambda: asked.find("s"), lambda: asked.begin("s", AT_T2)):
                for _ in range(3):
                    writer = asked._writer
                    if writer is not None:
                        writer.close()
                        await asyncio.sleep(0)
                    asked.end("other", "x")
                    await question()
            assert await asked.find("s") == AT_T2
            await asked.close()

    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(ask())


async def test_a_control_that_stays_away_is_a_clear_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asked_homes, "WAIT_S", 0.2)
    asked = AskedHomes(folder / "homes.sock")
    with pytest.raises(
        OipError, match="control is not available, which knows where sequences are"
    ) as refused:
        await asked.find("s")
    assert refused.value.reason is Reason.UNAVAILABLE
    asked.end("s", "a")
    await asked.close()


async def test_a_journal_that_cannot_be_written_is_a_clear_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(folder):
        asked = AskedHomes(folder / "homes.sock")
        assert await asked.find("s") is None
        monkeypatch.setattr(os, "pwrite", lambda *_: 0)
        with pytest.raises(OipError, match=r"cannot be kept \(No space left on device\); try again"):
            await asked.begin("s", AT_T1)
        monkeypatch.undo()
        assert await asked.find("s") is None
        await asked.close()


async def test_the_next_control_waits_until_the_last_one_has_ended(folder: Path) -> None:
    old = KeptHomes(folder / "homes.log")
    assert old.open(0.0)
    old.begin("s", AT_T1, 0.0)
    asked = AskedHomes(folder / "homes.sock")
    async with desk(folder):
        finding = asyncio.create_task(asked.find("s"))
        await asyncio.sleep(0.3)
        assert not finding.done()
        old.begin("s", AT_T2, 0.0)
        old.close()
        assert await finding == AT_T2
    await asked.close()


async def test_who_talks_nonsense_is_left_alone(folder: Path) -> None:
    async with desk(folder):
        await until(lambda: (folder / "homes.sock").exists())
        reader, writer = await asyncio.open_unix_connection(folder / "homes.sock")
        writer.write(b"nonsense\n")
        assert await reader.read() == b""
        writer.close()
        asked = AskedHomes(folder / "homes.sock")
        assert await asked.find("s") is None
        await asked.close()
