"""How a pool is doing, as Ray Serve sees it. Asking wakes no replica."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.pool.settings import DEPLOYMENT, app_name

START_FAILURE = "PoolStartError"
"""The type of the replica's own word on why it does not start, as Serve's messages name it."""
_OWN_WORD = re.compile(rf"{START_FAILURE}: (.+)")
_LONGEST = 400
SLOW_START_S = 20.0
"""How long a pool without a replica may take to start one before it counts as down."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """`deployed`: Serve knows the pool. `failed`: it has given up starting it. `settled`: every replica that
    it wants runs, as deployed last, and no other. `reason`: why a replica
    did not start, in words without paths, "" where nothing is wrong."""

    deployed: bool
    running: int = 0
    starting: int = 0
    failed: bool = False
    settled: bool = False
    reason: str = ""


def read_status(pool: str) -> PoolStatus:
    """Ask Serve's controller; blocks. Raises what Ray raises when that is gone."""
    from ray import serve

    application = serve.status().applications.get(app_name(pool))
    deployment = None if application is None else application.deployments.get(DEPLOYMENT)
    if application is None or deployment is None:
        return PoolStatus(deployed=False)
    states = {
        str(getattr(state, "value", state)): count for state, count in deployment.replica_states.items()
    }
    status = str(getattr(deployment.status, "value", deployment.status))
    return PoolStatus(
        deployed=True,
        running=states.get("RUNNING", 0),
        starting=states.get("STARTING", 0) + states.get("RECOVERING", 0),
        failed=status == "DEPLOY_FAILED",
        settled=status == "HEALTHY" and application.status == "RUNNING",
        reason=reason_in(deployment.message) if status != "HEALTHY" else "",
    )


def down_because(status: PoolStatus, starting_s: float, least: int) -> str:
    """Why the pool is not to be asked now, in a few words, "" when it is. `starting_s`: for how long replicas
    have been starting while none runs; `least`: how many are to run always."""
    if not status.deployed:
        return "is not deployed on Ray Serve"
    if status.running:
        return ""
    if status.failed:
        return f"does not start: {status.reason or 'Ray Serve gave up'}; it is tried again"
    if starting_s > SLOW_START_S:
        return f"no replica has started for {starting_s:.0f} s: {status.reason or 'none is ready yet'}"
    if least:
        return status.reason or "its first replica is starting"
    return ""


def reason_in(message: str) -> str:
    """Serve's message about a deployment in a few words: the replica's own, if they are in it."""
    if not message:
        return ""
    own = _OWN_WORD.findall(message)
    if own:
        return own[-1][:_LONGEST]
    if "to be scheduled" in message:
        return "no node has the resources for a replica free"
    if "to initialize" in message:
        return "a replica takes long to start"
    if "failed to start" in message or "exception" in message:
        return "its replicas fail to start; Ray's log of the replica says why"
    return ""
