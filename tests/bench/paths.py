"""How each path of the table is started, where it listens and which processes carry requests."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.bench import serve_proxy
from tests.bench.processes import Cores, Served, environment, pin, python, serving
from tests.bench.workload import PAYLOADS

Start = Callable[[Served, Path, Cores], AbstractContextManager[Served]]
"""Starts a path before a backend, with a folder for its files."""


@contextmanager
def direct(backend: Served, work: Path, cores: Cores) -> Iterator[Served]:
    """No path at all: the client's and the backend's own share of every other row."""
    yield Served(backend.addresses)


@contextmanager
def portable(backend: Served, work: Path, cores: Cores) -> Iterator[Served]:
    """The gateway's portable lane, with its whole policy decision."""
    config = work / "tidegate.json"
    config.write_text(json.dumps(gateway_config(backend.addresses["grpc"])))
    command = [sys.executable, "-c", "from gateway.cli.main import main; main()", "up", "--json"]
    command += ["-f", str(config), "--lane", "portable", "--state-dir", str(work / "state")]
    for surface in ("grpc", "http", "metrics"):
        command += [f"--{surface}", "127.0.0.1:0"]
    with serving(command, work / "portable.log") as (process, ready):
        if cores.path:
            pin([process.pid], cores.path)
        yield Served({name: ready[name] for name in ("grpc", "http")}, tuple(ready["pids"]["data_plane"]))


@contextmanager
def ray_serve_proxy(backend: Served, work: Path, cores: Cores) -> Iterator[Served]:
    """Ray Serve's own gRPC proxy with tuned flags; see `serve_proxy`."""
    modules = os.pathsep.join([environment()["PYTHONPATH"], str(serve_proxy.MODULES)])
    command = python("tests.bench.serve_proxy", backend.addresses["grpc"])
    env = serve_proxy.FLAGS | {"PYTHONPATH": modules}
    with serving(command, work / "ray-serve-proxy.log", env) as (process, ready):
        if cores.path:
            pin([process.pid], cores.path)
        yield Served({"grpc": ready["grpc"]}, tuple(ready["pids"]))


PATHS: dict[str, Start] = {"direct": direct, "portable": portable, "ray-serve-proxy": ray_serve_proxy}
"""By the names of the table, in its order."""


def gateway_config(backend: str) -> dict[str, object]:
    """A configuration (JSON is YAML) with the workload's models on one endpoint."""
    here = {"tier": "site", "site": "bench"}
    return {
        "version": 1,
        "gateway": {"name": "bench", "location": here},
        "endpoints": [{"name": "backend", "kind": "triton", "url": f"grpc://{backend}", "location": here}],
        "models": [
            {"name": payload.model, "idempotent": True, "variants": [{"endpoint": "backend"}]}
            for payload in PAYLOADS.values()
        ],
        "privacy": {"default": "internal", "classes": {"internal": {"allow": [{"tier": ["site"]}]}}},
        "policies": [{"name": "default", "match": {}, "weights": {"latency": 1.0}}],
    }
