"""What Ray must find in the environment when it is first imported."""

from __future__ import annotations

import os

from gateway.pool.loopback import LOOPBACK_SWITCH
from gateway.pool.niceness import NICENESS_SWITCH


def prepare() -> None:
    """Call before anything imports Ray: no usage reports, no spare workers, none that gives way to everything
    else, and a Ray of our own stays on loopback."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # The workers that Ray would start in advance are never used here, and load while the first requests come.
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    os.environ.setdefault(NICENESS_SWITCH, "0")
    if "RAY_ADDRESS" not in os.environ:
        os.environ[LOOPBACK_SWITCH] = "0"
