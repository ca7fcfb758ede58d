"""The registry over its real database: what is stored, and what a fault leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.registry.devices import Enrolled
from gateway.registry.registry import Registry
from gateway.store.database import FILE, migrate, open_database
from oip.errors import OipError
from oip.reasons import Reason
from tests.support.processes import source_env

ONE, OTHER = b"1" * 32, b"2" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    migrate(tmp_path)
    return tmp_path


def registry(folder: Path, now: float = 1000.0) -> Registry:
    return Registry(open_database(folder), lambda: now)


async def test_what_one_registry_stored_another_reads(folder: Path):
    issued = await registry(folder).issue("plant-7", {"soc": "imx8mp"}, "", 60)
    assert issued.expires_at == 1060.0
    enrolled = await registry(folder).enrol(issued.text, "cam-7a", ONE)
    assert enrolled == Enrolled("cam-7a", "plant-7", {"soc": "imx8mp"}, ONE)
    await registry(folder).drain("cam-7a", True)
    assert await registry(folder).devices() == (Enrolled("cam-7a", "plant-7", {"soc": "imx8mp"}, ONE, True),)
    await registry(folder).drain("cam-7a", False)
    await registry(folder).revoke("cam-7a")
    (device,) = await registry(folder).devices()
    assert (device.drained, device.revoked) == (False, True)


async def test_revoked_name_is_enrolled_anew_and_the_old_credential_is_gone(folder: Path):
    book = registry(folder)
    first = await book.issue("plant-7", {}, "cam-7a", 60)
    await book.enrol(first.text, "", ONE)
    await book.revoke("cam-7a")
    second = await book.issue("plant-9", {}, "cam-7a", 60)
    with pytest.raises(OipError, match="makes a new one"):
        await book.enrol(second.text, "", ONE)
    await book.enrol(second.text, "", OTHER)
    assert await book.devices() == (Enrolled("cam-7a", "plant-9", {}, OTHER),)
    with pytest.raises(OipError, match="used already"):
        await book.enrol(first.text, "", ONE)


async def test_tokens_are_long_never_alike_and_stored_as_digests_alone(folder: Path):
    book = registry(folder)
    texts = {(await book.issue("plant-7", {}, "", 60)).text for _ in range(20)}
    assert len(texts) == 20
    assert all(len(text) >= 43 and not text.startswith("-") for text in texts)
    raw = (folder / FILE).read_bytes()
    assert not [text for text in texts if text.encode() in raw]


async def test_only_the_gateways_user_can_read_the_file(folder: Path):
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600


async def test_of_many_who_redeem_one_token_at_once_one_gets_it(folder: Path):
    books = [registry(folder) for _ in range(3)]
    issued = await books[0].issue("plant-7", {}, "", 60)
    asked = [(books[i % 3], f"cam-{i % 4}", bytes([i % 4]) * 32) for i in range(12)]
    ended = await asyncio.gather(
        *(book.enrol(issued.text, name, digest) for book, name, digest in asked), return_exceptions=True
    )
    won = {device.name for device in ended if isinstance(device, Enrolled)}
    assert len(won) == 1
    assert len(await books[0].devices()) == 1
    assert sum(isinstance(e, Enrolled) for e in ended) == 3
    assert {e.reason for e in ended if isinstance(e, OipError)} == {Reason.FORBIDDEN}


async def test_database_that_fails_is_one_sentence_without_a_path(
    folder: Path, caplog: pytest.LogCaptureFixture
):
    book = registry(folder)
    issued = await book.issue("plant-7", {}, "", 60)
    (folder / FILE).write_bytes(b"not a database, but long enough to be taken for the head of one" * 100)
    with pytest.raises(OipError) as caught:
        await book.enrol(issued.text, "cam-7a", ONE)
    assert caught.value.reason is Reason.UNAVAILABLE
    assert str(folder) not in caught.value.message
    assert issued.text not in caplog.text


CRASH = """
import asyncio, os, signal, sys
from pathlib import Path
from sqlalchemy import event
from gateway.registry.registry import Registry
from gateway.store.database import open_database

engine = open_database(Path(sys.argv[1]))
left = int(sys.argv[3])
at = sys.argv[4]

def die(*_):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

if at == "statement":
    event.listen(engine.sync_engine, "after_cursor_execute", die)
else:
    event.listen(engine.sync_engine, "commit", die)
device = asyncio.run(Registry(engine, lambda: 1000.0).enrol(sys.argv[2], "cam-7a", b"1" * 32))
print(device.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("at", "left"), [("statement", 4), ("statement", 5), ("commit", 0), ("commit", 9)])
async def test_kill_in_an_enrolment_leaves_all_of_it_or_nothing(folder: Path, at: str, left: int):
    issued = await registry(folder).issue("plant-7", {}, "", 60)
    book = Registry(open_database(folder), lambda: 1000.0)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", CRASH, str(folder), issued.text, str(left), at],
        env={**source_env(), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    acknowledged = done.stdout == "cam-7a\n"
    assert acknowledged == (left == 9)
    assert bool(await book.devices()) == acknowledged
    # The device asks again, as it does when no answer came.
    assert (await book.enrol(issued.text, "cam-7a", ONE)).name == "cam-7a"
    assert os.listdir(folder) == [FILE]
