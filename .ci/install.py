"""Install the locked environment and the project itself: `python3.11 .ci/install.py .venv`.

Run from the project's root by `make`, whose stamp file this writes (`.venv/installed`). Holds a
lock on the lock file while it works, so that two makes at once install once. Needs nothing but Python 3.11 and its
venv module; pip's own configuration says where packages come from.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

INPUTS = ("requirements.lock", "pyproject.toml")


def main(venv: Path) -> int:
    wanted = hashlib.sha256(b"".join(Path(name).read_bytes() for name in INPUTS)).hexdigest()
    stamp = venv / "installed"
    with Path(INPUTS[0]).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        usable = is_usable(venv)
        if usable and stamp.is_file() and stamp.read_text() == wanted:
            stamp.touch()
            return 0
        if not usable and subprocess.run([sys.executable, "-m", "venv", "--clear", venv]).returncode:
            print(
                f"make: {sys.executable} cannot make a virtual environment"
                " (on Debian: apt-get install python3.11-venv)",
                file=sys.stderr,
            )
            return 1
        stamp.unlink(missing_ok=True)
        print(
            f"installing the locked environment into {venv}, which takes minutes the first time", flush=True
        )
        pip = [venv / "bin" / "python", "-m", "pip", "install", "--no-input", "--quiet"]
        for arguments in (
            ["--require-hashes", "-r", "requirements.lock"],
            ["--no-deps", "--no-build-isolation", "-e", "."],
        ):
            failed = subprocess.run([*pip, *arguments]).returncode
            if failed:
                return failed
        stamp.write_text(wanted)
    return 0


def is_usable(venv: Path) -> bool:
    """Whether the environment is of this Python and was made where it lies: the paths in the
    scripts of one that was moved or copied lead elsewhere."""
    pip = venv / "bin" / "pip"
    if not pip.is_file() or str(pip.parent.absolute()) not in pip.read_text(errors="replace"):
        return False
    check = f"import pip, sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    return subprocess.run([venv / "bin" / "python", "-c", check], capture_output=True).returncode == 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
