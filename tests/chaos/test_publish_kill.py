"""Whoever publishes is killed at random moments: devices always see a whole signed view in which all that
was acknowledged is, and the next one makes the rest good. TIDEGATE_KILLS=200 for as many as that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import source_env

KILLS = int(os.environ.get("TIDEGATE_KILLS", "4"))


@pytest.mark.timeout(900)
def test_kills_at_random_moments_leave_a_whole_signed_view(tmp_path: Path):
    command = [sys.executable, "-m", "tests.support.publish_victim", str(tmp_path), str(KILLS), "11"]
    done = subprocess.run(command, env=source_env(), capture_output=True, text=True, timeout=880)
    assert (done.returncode, done.stderr) == (0, "")
    after = json.loads(done.stdout)
    print(after)
    assert sum(after.values()) == KILLS
    assert len(after) > 2, "the moments are spread over a publication"
