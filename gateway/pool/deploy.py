"""Pools as applications on Ray Serve."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import LoggingConfig

from gateway.core.config import Config
from gateway.pool.config import PoolConfig
from gateway.pool.replica import Pool
from gateway.pool.settings import DEPLOYMENT, PoolSettings, app_name, pools_of

LOOK_S = 0.5
"""How often handles and controller look at the load: what a pool takes to notice a change of it."""
LOOK_BACK_S = 2.0
UPSCALE_S = 0.5
HEALTH_S = 1.0
HEALTH_TIMEOUT_S = 10.0
STOP_S = 20.0
QUEUED = 512
"""Requests of one gateway that may wait for a replica; one more is refused as overloaded."""


def deploy(pool: PoolConfig, settings: PoolSettings, attempt: int = 0) -> None:
    """Put a pool on Ray Serve, which must be started, and return without waiting for replicas. Those that
    run are replaced a few at a time, and finish what they have, unless they were made of the same settings
    in the same attempt; another one has Serve forget that it gave up."""
    serve.run_many(
        [_target(pool, settings, f"{settings.fingerprint}.{attempt}")],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


def undeploy(config: Config) -> None:
    """Take the pools off Ray Serve; returns when their replicas have gone."""
    running = serve.status().applications
    for pool in pools_of(config):
        if app_name(pool.name) in running:
            serve.delete(app_name(pool.name))


def actor_options(resources: Mapping[str, float]) -> dict[str, Any]:
    """Ray's options for one replica. What is not asked for is 0: Ray would take a CPU by itself."""
    own = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU")}
    return {
        "num_cpus": resources.get("CPU", 0),
        "num_gpus": resources.get("GPU", 0),
        **({"resources": own} if own else {}),
    }


def ongoing(pool: PoolConfig, settings: PoolSettings) -> int:
    """Requests that one replica takes at once: twice what it aims for, and enough for a full batch to
    gather behind the one that runs."""
    fullest = max((v.batching.max_size for v in settings.variants if v.batching), default=1)
    return max(math.ceil(2 * pool.replicas.target_ongoing), 2 * fullest)


def _target(pool: PoolConfig, settings: PoolSettings, version: str) -> serve.RunTarget:
    quiet = LoggingConfig(log_level="WARNING", enable_access_log=False)
    scale = AutoscalingConfig(
        min_replicas=pool.replicas.min,
        max_replicas=pool.replicas.max,
        target_ongoing_requests=pool.replicas.target_ongoing,
        metrics_interval_s=LOOK_S,
        look_back_period_s=LOOK_BACK_S,
        upscale_delay_s=UPSCALE_S,
        downscale_delay_s=pool.downscale_s,
    )
    deployment = serve.deployment(
        name=DEPLOYMENT,
        autoscaling_config=scale,
        max_ongoing_requests=ongoing(pool, settings),
        max_queued_requests=QUEUED,
        ray_actor_options=actor_options(settings.resources),
        health_check_period_s=HEALTH_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        graceful_shutdown_timeout_s=STOP_S,
        graceful_shutdown_wait_loop_s=LOOK_S,
        logging_config=quiet,
    )(Pool)
    # Left to itself Serve takes every deployment for a new version, and replaces what runs.
    deployment._version = version
    return serve.RunTarget(
        deployment.bind(settings), name=app_name(settings.name), route_prefix=None, logging_config=quiet
    )
