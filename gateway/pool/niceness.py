"""Who gives way to whom on a machine that is busy.

Ray starts its workers at niceness WORKERS, behind whatever else runs there. The gateway answers requests, so it
has its workers start as any process does; work that nobody waits for steps aside by itself.
"""

from __future__ import annotations

import os

NICENESS_SWITCH = "RAY_worker_niceness"
WORKERS = 15


def step_aside() -> None:
    """Have this thread, and what it starts, give way to what answers requests."""
    os.setpriority(os.PRIO_PROCESS, 0, max(WORKERS, os.getpriority(os.PRIO_PROCESS, 0)))
