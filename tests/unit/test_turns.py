"""Locks between the processes of one gateway."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from gateway.store.turns import Lead, turn
from tests.support.waiting import until_true


def test_one_leads_until_it_ends(tmp_path: Path) -> None:
    first, second = Lead(tmp_path, "pool"), Lead(tmp_path, "pool")
    assert first.held()
    assert first.held()
    assert not second.held()
    assert Lead(tmp_path, "other").held()
    first.leave()
    assert second.held()
    assert not first.held()


def test_who_is_alone_leads() -> None:
    assert Lead(None, "pool").held()


def test_a_process_that_is_killed_leaves_its_lead(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, time; from gateway.store.turns import Lead\n"
        "lead = Lead(pathlib.Path(sys.argv[1]), 'pool'); assert lead.held(); print('led', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "led\n"
        mine = Lead(tmp_path, "pool")
        assert not mine.held()
        process.kill()
    until_true(mine.held)


async def test_turns_come_one_after_the_other(tmp_path: Path) -> None:
    at_it: list[int] = []
    most: list[int] = []

    async def work(number: int) -> None:
        async with turn(tmp_path, "follow"):
            at_it.append(number)
            most.append(len(at_it))
            await asyncio.sleep(0.01)
            at_it.remove(number)

    await asyncio.gather(*map(work, range(5)))
    assert most == [1] * 5
