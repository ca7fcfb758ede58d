"""How a device runs models."""

from __future__ import annotations

from dataclasses import dataclass

from edge_agent.delegates import DEFAULT_CHAIN, DelegateSpec


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """`delegates` are tried in order. `memory_mb` bounds one worker's address space, in MiB; a worker
    needs about 400 of it before it has a model. `max_queue`: requests that may wait for one model;
    `max_artifact_mb`: the largest artifact that is fetched, in MiB. `trial_timeout_s`: from a new
    worker to its first answer; `run_timeout_s`: a run that takes longer ends its worker. `probation_s`: so
    long a new model serves before the device no longer goes back from it by itself. `worker` is the module that
    runs as a worker: it speaks the frames of `edge_agent.runtime.worker`."""

    delegates: tuple[DelegateSpec, ...] = DEFAULT_CHAIN
    threads: int = 1
    memory_mb: int = 2048
    trial_timeout_s: float = 60.0
    run_timeout_s: float = 60.0
    max_queue: int = 256
    max_artifact_mb: int = 512
    probation_s: float = 600.0
    worker: str = "edge_agent.runtime.worker"

    def __post_init__(self) -> None:
        if not self.delegates:
            raise ValueError("name at least one delegate: builtin runs every model that the runtime can")
        if self.threads < 1 or self.memory_mb < 1 or self.max_queue < 1 or self.max_artifact_mb < 1:
            raise ValueError("threads, memory_mb, max_queue and max_artifact_mb must be at least 1")
