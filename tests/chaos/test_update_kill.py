"""Control is killed anywhere in an update, and the next one brings it to its end: nothing is done twice.

TIDEGATE_KILLS=200 does it as often.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from gateway.rollout.loop_state import from_document
from gateway.store import updates as rows
from gateway.store.database import open_database
from tests.support.update_world import Ledger

KILLS = int(os.environ.get("TIDEGATE_KILLS", "4"))
LIMIT_S = 60.0


async def victim(folder: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.update_victim", str(folder),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def hit(process: asyncio.subprocess.Process, lines: int, after_s: float) -> bool:
    """Kill it a moment after it has told so many phases; False where it was over by then."""
    assert process.stdout is not None
    for _ in range(lines):
        line = await asyncio.wait_for(process.stdout.readline(), LIMIT_S)
        if line in (b"over\n", b""):
            return False
    # The instant is what is tried, so nothing is waited for.
    await asyncio.sleep(after_s)
    if process.returncode is None:
        process.kill()
    return True


async def test_whatever_moment_control_is_killed_in(tmp_path: Path) -> None:
    lots = random.Random(20261201)
    killed = folders = 0
    while killed < KILLS:
        folder = tmp_path / str(folders)
        folder.mkdir()
        folders += 1
        for _ in range(6):
            process = await victim(folder)
            hurt = killed < KILLS and await hit(process, lots.randrange(5), lots.uniform(0, 0.03))
            _, errors = await asyncio.wait_for(process.communicate(), LIMIT_S)
            if not hurt or process.returncode == 0:
                assert process.returncode == 0, errors.decode()
                break
            killed += 1
        else:
            process = await victim(folder)
            _, errors = await asyncio.wait_for(process.communicate(), LIMIT_S)
            assert process.returncode == 0, errors.decode()
        await check(folder)


async def check(folder: Path) -> None:
    ledger = Ledger(folder / "ledger.jsonl")
    assert [line["source"] for line in ledger.of("release")] == ["u1"]
    assert [line["source"] for line in ledger.of("rollout")] == ["u1"]
    assert {line["passed"] for line in ledger.of("judged")} == {True}
    assert len({line["attempt"] for line in ledger.of("train")}) == 1
    engine = open_database(folder)
    async with engine.begin() as connection:
        (state,) = [from_document(r.document) for r in await rows.read(connection) if ":" not in r.id]
    await engine.dispose()
    assert state.phase == "recovered"
    phases = [phase.value for phase, _ in state.times]
    assert phases == [
        "gathering", "training", "measuring", "trying", "deciding", "rolling", "watching", "recovered",
    ]  # fmt: skip
