"""What answers at the end of every path: fixed answers, or a real Triton."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from gateway.demo.triton import HOST, TritonServer
from tests.bench.processes import Cores, Served, pin, python, serving
from tests.bench.workload import IDENTITY, PAYLOADS, triton_config

Start = Callable[[Path, Cores], AbstractContextManager[Served]]
"""Starts what answers, on the load's core, with a folder for its files."""


@contextmanager
def fixed_backend(work: Path, cores: Cores) -> Iterator[Served]:
    """A process that answers at once, so that a row shows its path and not a model."""
    with serving(python("tests.bench.fixed"), work / "backend.log") as (process, ready):
        if cores.load:
            pin([process.pid], cores.load)
        yield Served({name: ready[name] for name in ("grpc", "http")})


@contextmanager
def triton_backend(work: Path, cores: Cores) -> Iterator[Served]:
    """A real Triton with the workload's models, each an identity in its Python backend."""
    repository = work / "models"
    for payload in PAYLOADS.values():
        version = repository / payload.model / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(IDENTITY)
        (version.parent / "config.pbtxt").write_text(triton_config(payload))
    models = [payload.model for payload in PAYLOADS.values()]
    with TritonServer(repository, load=models, log=work / "triton.log") as server:
        if cores.load:
            pin([server.pid], cores.load)
        yield Served({"grpc": f"{HOST}:{server.grpc_port}", "http": f"{HOST}:{server.http_port}"})


BACKENDS: dict[str, Start] = {"fixed": fixed_backend, "triton": triton_backend}
