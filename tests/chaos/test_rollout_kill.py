"""Whoever carries rollouts out is killed at random moments, again and again: each version ends as it would
have, and nothing happens twice. A few kills here; TIDEGATE_KILLS=200 for as many as that."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

from gateway.store.database import FILE
from tests.support.processes import source_env
from tests.support.rollout_world import World

KILLS = int(os.environ.get("TIDEGATE_KILLS", "4"))


def test_kills_at_random_moments_change_nothing_of_the_outcome(tmp_path: Path):
    command = [sys.executable, "-m", "tests.support.rollout_world", str(tmp_path), str(KILLS), "5"]
    done = subprocess.run(command, env=source_env(), capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stderr) == (0, "")
    with sqlite3.connect(tmp_path / FILE) as database:
        rows = database.execute(
            "SELECT json_extract(document, '$.new'), json_extract(document, '$.phase') FROM rollouts"
        ).fetchall()
    last = 3 + KILLS // 4
    expected = {str(n): "done" if n % 2 == 0 else "rolled_back" for n in range(2, last + 1)}
    assert len(rows) == len(expected)
    assert dict(rows) == expected

    world = World.load(tmp_path / "world.json")
    good = [version for version, phase in expected.items() if phase == "done"]
    bad = [version for version, phase in expected.items() if phase != "done"]
    assert [line for line in world.log if line.startswith("stands")] == [f"stands {v}" for v in good]
    assert [line for line in world.log if line.startswith("withdrawn")] == [f"withdrawn {v}" for v in bad]
    assert [line for line in world.log if line.startswith("ordered")] == [
        f"ordered {int(version) - 1}" for version in bad
    ]
    for device in world.devices.values():
        assert device.serves == good[-1]
        assert device.refused == 0
        forward = [version for version in device.switches if version in good]
        tried = [version for version in device.switches if version in bad]
        assert len(tried) == len(set(tried))
        assert len(forward) == len(good) + len(tried), "each good version once, and once more after each bad"
