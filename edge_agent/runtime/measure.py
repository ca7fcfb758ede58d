"""How fast an artifact is on this device, in a worker of its own that serves nobody."""

from __future__ import annotations

import asyncio
import math
from typing import NamedTuple

from edge_agent.runtime.launch import Artifact, TrialFailed, launch, signature_of
from edge_agent.runtime.process import WorkerEnded
from edge_agent.runtime.settings import RuntimeSettings

RUNS = 50
RUNS_S = 5.0
"""No run begins later than so many seconds after the first."""
WARMING = 3
"""The first runs are left out where there are more: they fill caches."""


class Speed(NamedTuple):
    """Of so many runs on the golden inputs, one at a time, in milliseconds."""

    p50_ms: float
    p95_ms: float
    runs: int


async def measure(artifact: Artifact, settings: RuntimeSettings) -> Speed:
    """Load, try and time an artifact. Raises TrialFailed."""
    launched = await launch(artifact, settings, settings.delegates)
    try:
        signature_of(artifact, launched.worker)
        async with asyncio.timeout(RUNS_S + settings.run_timeout_s):
            took = await launched.worker.measure(artifact.golden, RUNS + WARMING, RUNS_S)
    except TimeoutError:
        launched.worker.kill()
        raise TrialFailed(f"a run did not finish within {settings.run_timeout_s:g} s") from None
    except WorkerEnded as fault:
        raise TrialFailed(str(fault)) from None
    finally:
        await launched.worker.close()
    if not took:
        raise TrialFailed("it fails when it is run again")
    steady = sorted(took[WARMING:] or took)
    return Speed(1000 * _quantile(steady, 0.5), 1000 * _quantile(steady, 0.95), len(steady))


def _quantile(ascending: list[float], share: float) -> float:
    """By nearest rank."""
    return ascending[math.ceil(share * len(ascending)) - 1]
