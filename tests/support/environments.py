"""Other people's programs, each in an environment of its own, since they pin what this project does not.

Making one takes from seconds to minutes and a package index, so what wants them runs only with
`TIDEGATE_SERVERS=1`. They are kept under `build/servers`. What we write for them to run is in `foreign`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.processes import ROOT

WANTED = "TIDEGATE_SERVERS"
ENVIRONMENTS = ROOT / "build" / "servers"
REQUIREMENTS = {
    "mlserver": ("mlserver==1.7.1",),
    "kserve": ("kserve==0.21.0",),
    "schemathesis": ("schemathesis==4.32.5",),
}
INSTALL_S = 1200
FOREIGN = Path(__file__).with_name("foreign")


class EnvironmentMissing(Exception):
    """An environment that cannot be had here; the text says why."""


def wanted() -> bool:
    return os.environ.get(WANTED, "") not in ("", "0")


def environ_of() -> dict[str, str]:
    """The variables of a program that runs there: it finds what is in `foreign`, and nothing else of ours."""
    return {**os.environ, "PYTHONPATH": str(FOREIGN)}


def python_of(name: str) -> Path:
    """The interpreter of an environment, which is made if it is not there. Raises EnvironmentMissing."""
    requirements = REQUIREMENTS[name]
    tag = hashlib.sha256(repr((requirements, sys.version_info[:2])).encode()).hexdigest()[:12]
    place = ENVIRONMENTS / f"{name}-{tag}"
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with (ENVIRONMENTS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "installed").exists():
            shutil.rmtree(place, ignore_errors=True)
            _run([sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, str(place)])
            python = str(place / "bin" / "python")
            _run([sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, *requirements])
            (place / "installed").touch()
    return place / "bin" / "python"


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise EnvironmentMissing(f"{command[3]} took more than {INSTALL_S} s") from None
    if done.returncode:
        raise EnvironmentMissing(f"{' '.join(command[2:5])} failed: {done.stderr.strip()[-500:]}")
