"""Other people's servers of the Open Inference Protocol, each in an environment of its own.

MLServer and KServe's Python server pin what this project does not. Their environments are large and take
minutes to make, so the tests that want them run only with `TIDEGATE_SERVERS=1`. They are kept under
`build/servers`.
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
SERVERS = ROOT / "build" / "servers"
REQUIREMENTS = {
    "mlserver": ("mlserver==1.7.1",),
    "kserve": ("kserve==0.21.0",),
}
INSTALL_S = 1200


class ServerMissing(Exception):
    """An environment that cannot be had here; the text says why."""


def wanted() -> bool:
    return os.environ.get(WANTED, "") not in ("", "0")


def python_of(server: str) -> Path:
    """The interpreter of a server's environment, which is made if it is not there. Raises ServerMissing."""
    requirements = REQUIREMENTS[server]
    tag = hashlib.sha256(repr((requirements, sys.version_info[:2])).encode()).hexdigest()[:12]
    place = SERVERS / f"{server}-{tag}"
    SERVERS.mkdir(parents=True, exist_ok=True)
    with (SERVERS / f"{server}.lock").open("w") as lock:
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
        raise ServerMissing(f"{command[3]} took more than {INSTALL_S} s") from None
    if done.returncode:
        raise ServerMissing(f"{' '.join(command[2:5])} failed: {done.stderr.strip()[-500:]}")
