"""Start and stop the gateway on Ray Serve, from the process that the operator started."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray._private import utils as ray_utils
from ray.exceptions import RayError
from ray.serve.config import HTTPOptions, ProxyLocation
from ray.serve.exceptions import RayServeException
from ray.serve.schema import LoggingConfig

from gateway.pool.deploy import undeploy
from gateway.serve.control import EDGE_HUB, Control
from gateway.serve.crossing import APP
from gateway.serve.hub import EdgeHub
from gateway.serve.planes import DATA_PLANE
from gateway.serve.replica import DataPlane
from gateway.serve.settings import Address, HubSettings, Listen, ReplicaSettings

ONGOING_OPERATOR_CALLS = 100
HEALTH_S = 2.0
"""How often Serve looks whether a part is still there, to replace one that is not."""
STOP_MARGIN_S = 10.0
DESCRIBE_S = 60.0
AGAIN_S = 0.05
HUB_STOP_S = 10.0
FREE_PORTS = range(16_384, 32_768)
"""Below those that Linux gives to outgoing connections."""
QUIET = LoggingConfig(log_level="WARNING", enable_access_log=False)
FOLDER_PREFIX = "tidegate-"
HUB_SOCKET = "hub.sock"
HOMES_SOCKET = "homes.sock"
MAX_SOCKET_PATH = 100
"""A unix socket's path is at most 107 bytes long."""


class StartError(RuntimeError):
    """The gateway could not start; the message says why in one sentence."""


class StopError(RuntimeError):
    """The gateway stopped, but not as it should; the message says how in one sentence."""


@contextlib.contextmanager
def running(
    settings: ReplicaSettings, source: str, asked_to_stop: Callable[[], bool]
) -> Iterator[dict[str, Any]]:
    """Run the gateway; yields what it serves: `{"http": "IP:PORT", "grpc": ..., "metrics": ...,
    "edge": ... or None, "pids": {...}, "endpoints": {NAME: what is wrong, or ""}}`; or `{}`, and nothing
    runs, when it was asked to stop before it served. The caller's signal handlers stay in place.

    Joins the cluster that RAY_ADDRESS names, else starts one of its own. On leaving, requests in
    flight are finished (at most `settings.drain_s`); then the devices are parted from, and the own Ray is
    stopped as a whole, or the gateway's application is taken off the cluster. Raises StartError, and
    StopError on leaving.
    """
    address = os.environ.get("RAY_ADDRESS")
    if settings.shared and sys.platform != "linux":
        raise StartError("gateway.replicas above 1 needs Linux, which shares a port's connections out")
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with contextlib.ExitStack() as stack:
        if address is None:
            _refuse_taken(settings.listen, stack)
        settings = replace(settings, listen=_resolved(settings.listen, stack))
        folder = stack.enter_context(_private_folder())
        inside = None if settings.listen.edge is None else folder / HUB_SOCKET
        settings = replace(settings, homes=folder / HOMES_SOCKET, inside=inside)
        try:
            with _signals_left_alone():
                ray.init(
                    address=address or "local",
                    include_dashboard=False if address is None else None,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    configure_logging=False,
                )
        except Exception as error:  # Ray says by a bare Exception that its processes took too long
            raise StartError(f"Ray did not start: {_first_line(error)}") from error
        stack.callback(ray.shutdown)
        if asked_to_stop():
            yield {}
            return
        try:
            _start_serve()
            if asked_to_stop():
                yield {}
                return
            if address is not None:
                stack.callback(undeploy, settings.config)
                stack.callback(serve.delete, APP)
            parts = _deploy(settings, source)
            serving = _described(parts, settings.config.gateway.replicas.max)
        except StartError:
            raise
        except (RayError, RayServeException, RuntimeError, TimeoutError, ValueError) as error:
            raise StartError(f"the gateway did not start on Ray Serve: {_first_line(error)}") from error
        yield serving
        _drain(parts, settings.drain_s)


@contextlib.contextmanager
def _signals_left_alone() -> Iterator[None]:
    """Ray takes SIGTERM for itself when it starts, twice over. Its Python handler leaves in the middle of
    whatever runs, which is mostly Ray's own code, and that aborts. Its native one, which no caller of
    Python's `signal` sees, prints a stack and aborts the process in the end; ours go over it again."""
    utils: Any = ray_utils
    take, utils.set_sigterm_handler = utils.set_sigterm_handler, lambda _: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = take
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.getsignal(number))


def _first_line(error: Exception) -> str:
    """Ray's messages go on with stacks and advice."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _described(parts: dict[str, Any], data_planes: int) -> dict[str, Any]:
    """What is served and by which processes, once all of them serve. Raises StartError with the words of a part that did not start."""
    found: dict[str, Any] = {"edge": None}
    pids: dict[str, list[int]] = {}
    for name, handle in parts.items():
        replicas = _all_described(handle, data_planes if name == "data_plane" else 1)
        for told in replicas:
            if "failure" in told:
                raise StartError(told["failure"])
        pids[name] = [told.pop("pid") for told in replicas]
        states = [told.pop("endpoints") for told in replicas if "endpoints" in told]
        found |= replicas[0]
        if states:
            found["endpoints"] = {name: _trouble(state[name] for state in states) for name in states[0]}
    return {**found, "pids": pids}


def _all_described(handle: Any, count: int) -> list[dict[str, Any]]:
    """What each of so many replicas says. A new handle may hear of them one after the other."""
    until = time.monotonic() + DESCRIBE_S
    while True:
        told: list[dict[str, Any]] = handle.broadcast("describe").results(timeout_s=DESCRIBE_S)
        if len(told) >= count:
            return told
        if time.monotonic() > until:
            raise TimeoutError(f"{len(told)} of {count} replicas came up within {DESCRIBE_S:.0f} s")
        time.sleep(AGAIN_S)


def _trouble(states: Iterable[str]) -> str:
    """What some replica finds wrong with an endpoint; "" where none does."""
    return next(filter(None, states), "")


def _drain(parts: dict[str, Any], drain_s: float) -> None:
    """Requests first: those that run may need the devices."""
    for name, limit_s in (("data_plane", drain_s + STOP_MARGIN_S), ("hub", HUB_STOP_S)):
        if name not in parts:
            continue
        try:
            parts[name].broadcast("drain").results(timeout_s=limit_s)
        except (TimeoutError, RayError, RayServeException) as error:
            raise StopError(
                f"requests may have been cut off: the drain failed ({type(error).__name__})"
            ) from error


def _start_serve() -> None:
    serve.start(http_options=HTTPOptions(location=ProxyLocation.Disabled), logging_config=QUIET)


def _deploy(settings: ReplicaSettings, source: str) -> dict[str, Any]:
    """Start the gateway's own deployments; returns the handles of control, data plane and, if there is
    one, hub."""
    common: dict[str, Any] = {
        "max_ongoing_requests": ONGOING_OPERATOR_CALLS,
        "ray_actor_options": {"num_cpus": 0},
        "health_check_period_s": HEALTH_S,
        "logging_config": QUIET,
    }
    control = serve.deployment(name="Control", **common)(Control).bind(settings, source)
    names = {"control": "Control", "data_plane": DATA_PLANE}
    parts: list[Any] = [control]
    if settings.inside is not None and settings.listen.edge is not None:
        hub = serve.deployment(name=EDGE_HUB, **common)(EdgeHub)
        hub_settings = HubSettings(settings.config, settings.listen.edge, settings.inside, settings.state_dir)
        parts.append(hub.bind(hub_settings, control))
        names["hub"] = EDGE_HUB
    data_plane = serve.deployment(
        name=DATA_PLANE,
        num_replicas=settings.config.gateway.replicas.max,
        graceful_shutdown_timeout_s=settings.drain_s + STOP_MARGIN_S,
        **common,
    )(DataPlane)
    serve.run(data_plane.bind(settings, *parts), name=APP, route_prefix=None)
    return {name: serve.get_deployment_handle(deployment, APP) for name, deployment in names.items()}


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder that only this user can enter, with a path short enough for a socket in it."""
    root = tempfile.gettempdir()
    if len(os.fsencode(root)) > MAX_SOCKET_PATH - len(f"/{FOLDER_PREFIX}xxxxxxxx/{HOMES_SOCKET}"):
        root = "/tmp"
    for folder in Path(root).glob(f"{FOLDER_PREFIX}*"):
        _remove_left(folder)
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, dir=root) as name:
        held = os.open(name, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Path(name)
        finally:
            os.close(held)


def _remove_left(folder: Path) -> None:
    """Remove the folder of a gateway that was killed. One that lives holds a lock on its own, and has
    it before there is a socket in it."""
    with contextlib.suppress(OSError):
        if folder.lstat().st_uid != os.getuid() or not (folder / HOMES_SOCKET).is_socket():
            return
        held = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(held)


def _resolved(listen: Listen, claims: contextlib.ExitStack) -> Listen:
    """Port 0 becomes a free port now, so that a replica that is replaced comes back where it was. No other
    gateway takes it before `claims` is closed."""
    ports = {name: address if address.port else _free(address, claims) for name, address in _given(listen)}
    return replace(listen, **ports)


def _refuse_taken(listen: Listen, claims: contextlib.ExitStack) -> None:
    """Find out about an address that cannot be had before Ray has started, not after. Those that can are
    claimed until `claims` is closed: replicas share their ports, and would with another gateway's too."""
    shown = {"http": "HTTP", "grpc": "gRPC"}
    for name, address in _given(listen):
        try:
            socket.create_server(address, family=address.family).close()
            if address.port:
                _claim(address, claims)
        except OSError as error:
            raise StartError(
                f"{shown.get(name, name)}: cannot listen on {address}: {os.strerror(error.errno or 0)}"
            ) from error


def _given(listen: Listen) -> list[tuple[str, Address]]:
    """Every listener there is to be, by its name in Listen."""
    named = ((field.name, getattr(listen, field.name)) for field in fields(listen))
    return [(name, address) for name, address in named if address is not None]


def _free(address: Address, claims: contextlib.ExitStack) -> Address:
    """A free port that no outgoing connection gets by chance, so that it is still free when the replica
    binds it, and again when that is replaced."""
    for port in (*random.sample(FREE_PORTS, 20), 0):
        with (
            contextlib.suppress(OSError),
            socket.create_server((address.host, port), family=address.family) as probe,
        ):
            found = Address(address.host, probe.getsockname()[1])
            _claim(found, claims)
            return found
    raise StartError(f"there is no free port on {address.host}")


def _claim(address: Address, claims: contextlib.ExitStack) -> None:
    """Tell other gateways on this machine that the address is taken, though nobody may listen there now. Raises
    OSError for one that is. The name is nowhere on disk, and is free when the process ends; only Linux has
    such names."""
    if sys.platform == "linux":
        claim = claims.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        claim.bind(f"\0tidegate-{address}")
