"""What a model counts of its own work, for its statistics. Durations are in nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something was done, and how long that took together."""

    times: int = 0
    ns: int = 0


NEVER = Duration()


@dataclass(frozen=True, slots=True)
class Counters:
    """A model version's work since it was loaded.

    `inferences` counts rows (a request without a batch is one), `executions` runs of the model.
    `last_inference_ms` is the wall-clock time of the last request in milliseconds of the Unix epoch, 0
    before the first. `success` and `fail` are whole requests, `queue` their waiting, `compute` the runs
    they took part in. `batches`: rows in a run -> runs of that size.
    """

    inferences: int = 0
    executions: int = 0
    last_inference_ms: int = 0
    success: Duration = NEVER
    fail: Duration = NEVER
    queue: Duration = NEVER
    compute: Duration = NEVER
    batches: tuple[tuple[int, Duration], ...] = ()
