"""What a worker process does to itself before it touches anything from outside."""

from __future__ import annotations

import ctypes
import os
import resource
import signal

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` is gone, even amid a run of native code."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")
    if os.getppid() != parent:
        raise SystemExit("the agent ended before this worker began")


def limit_memory(megabytes: int) -> None:
    """Bound the address space, and leave no core file of what callers sent."""
    size = megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def environment() -> dict[str, str]:
    """The agent's, less its own settings: a library that a worker loads reads no token of the agent's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    # Pools of threads that numpy would start take address space and run nothing here.
    return {**kept, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
