"""Running a program of this project and reading what it prints."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def source_env() -> dict[str, str]:
    """The environment with this source tree importable, installed or not."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}


def output_of(command: Sequence[str]) -> str:
    """Its stdout. Fails for a status other than 0."""
    done = subprocess.run(command, env=source_env(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
