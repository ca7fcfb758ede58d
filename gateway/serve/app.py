"""Start and stop the gateway on Ray Serve, from the process that the operator started."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import HTTPOptions, ProxyLocation
from ray.serve.exceptions import RayServeException
from ray.serve.schema import LoggingConfig

from gateway.serve.control import APP, DATA_PLANE, Control
from gateway.serve.replica import DataPlane
from gateway.serve.settings import Address, Listen, ReplicaSettings

ONGOING_OPERATOR_CALLS = 100
STOP_MARGIN_S = 10.0


class StartError(RuntimeError):
    """The gateway could not start; the message says why in one sentence."""


class StopError(RuntimeError):
    """The gateway stopped, but not as it should; the message says how in one sentence."""


@contextlib.contextmanager
def running(settings: ReplicaSettings, source: str) -> Iterator[dict[str, Any]]:
    """Run the gateway; yields what it serves: `{"http": "IP:PORT", "grpc": ..., "metrics": ...,
    "pids": {...}, "endpoints": {NAME: what is wrong, or ""}}`.

    Joins the cluster that RAY_ADDRESS names, else starts one of its own. On leaving, requests in
    flight are finished (at most `settings.drain_s`); then the own Ray is stopped as a whole, or the
    gateway's application is taken off the cluster. Raises StartError, and StopError on leaving.
    """
    address = os.environ.get("RAY_ADDRESS")
    if address is None:
        _refuse_taken(settings.listen)
    settings = replace(settings, listen=_resolved(settings.listen))
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        ray.init(
            address=address or "local",
            include_dashboard=False if address is None else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise StartError(f"Ray did not start: {error}") from error
    try:
        handle = _deploy(settings, source)
        described: dict[str, Any] = handle.describe.remote().result(timeout_s=60)
        if "failure" in described:
            raise StartError(described["failure"])
        pid = described.pop("pid")
        yield {**described, "pids": {"data_plane": [pid]}}
        try:
            handle.drain.remote().result(timeout_s=settings.drain_s + STOP_MARGIN_S)
        except (TimeoutError, RayError, RayServeException) as error:
            raise StopError(
                f"requests may have been cut off: the drain failed ({type(error).__name__})"
            ) from error
    finally:
        if address is not None:
            serve.delete(APP)
        ray.shutdown()


def _deploy(settings: ReplicaSettings, source: str) -> Any:
    quiet = LoggingConfig(log_level="WARNING", enable_access_log=False)
    serve.start(http_options=HTTPOptions(location=ProxyLocation.Disabled), logging_config=quiet)
    control = serve.deployment(
        name="Control",
        num_replicas=1,
        max_ongoing_requests=ONGOING_OPERATOR_CALLS,
        ray_actor_options={"num_cpus": 0},
        logging_config=quiet,
    )(Control)
    data_plane = serve.deployment(
        name=DATA_PLANE,
        num_replicas=1,
        max_ongoing_requests=ONGOING_OPERATOR_CALLS,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=settings.drain_s + STOP_MARGIN_S,
        health_check_period_s=2,
        logging_config=quiet,
    )(DataPlane)
    bound = data_plane.bind(settings, control.bind(settings.config, settings.revision, source))
    try:
        return serve.run(bound, name=APP, route_prefix=None)
    except RuntimeError as error:
        raise StartError(f"the gateway did not start on Ray Serve: {error}") from error


def _resolved(listen: Listen) -> Listen:
    """Port 0 becomes a free port now, so that a replica that is replaced comes back where it was."""
    return Listen(*(address if address.port else _free(address) for address in _fields(listen)))


def _refuse_taken(listen: Listen) -> None:
    """Find out about an address that cannot be had before Ray has started, not after."""
    for name, address in zip(("HTTP", "gRPC", "metrics"), _fields(listen), strict=True):
        try:
            socket.create_server(address, family=address.family).close()
        except OSError as error:
            raise StartError(
                f"{name}: cannot listen on {address}: {os.strerror(error.errno or 0)}"
            ) from error


def _fields(listen: Listen) -> tuple[Address, Address, Address]:
    return listen.http, listen.grpc, listen.metrics


def _free(address: Address) -> Address:
    with socket.create_server((address.host, 0), family=address.family) as probe:
        return Address(address.host, probe.getsockname()[1])
