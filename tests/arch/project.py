"""Where the project lies, and its make targets run as they are, in place or in a copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def make(target: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a target with the tools of this interpreter's environment, which is taken as installed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    env["PYTHONPATH"] = f"{root}:{root / 'proto'}"
    return subprocess.run(
        ["make", f"--old-file={sys.prefix}/installed", f"VENV={sys.prefix}", target],
        cwd=root,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )


def copy_sources(target: Path) -> Path:
    """The packages and what `make layers` reads, in a folder of their own."""
    for name in ("gateway", "edge_agent", "proto"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, target)
    return target
