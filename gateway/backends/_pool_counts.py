"""What passed through one gateway to one model of a pool, as ModelStatistics has it."""

from __future__ import annotations

import time
from collections import defaultdict

from oip.counters import Counters, Duration


class _Sum:
    def __init__(self) -> None:
        self.times = 0.0
        self.seconds = 0.0

    def add(self, seconds: float, times: float = 1.0) -> None:
        self.times += times
        self.seconds += seconds

    def duration(self) -> Duration:
        return Duration(round(self.times), round(self.seconds * 1e9))


class PoolCounts:
    """Counts since the gateway started, over all replicas. A run that several requests shared is counted
    in shares, which add up when all of them came this way."""

    def __init__(self) -> None:
        self._success, self._fail, self._queue, self._compute = _Sum(), _Sum(), _Sum(), _Sum()
        self._inferences = 0
        self._runs = 0.0
        self._batches = defaultdict[int, _Sum](_Sum)
        self._last_ms = 0

    def answered(
        self, took_s: float, queued_s: float, ran_s: float, rows: int, run_rows: int, together: int
    ) -> None:
        """One answer: seconds in all, in the replica's queue and in the model; its rows; rows and
        requests of the run it was part of."""
        self._success.add(took_s)
        self._queue.add(queued_s)
        self._compute.add(ran_s)
        self._inferences += rows
        self._runs += 1 / together
        self._batches[run_rows].add(ran_s / together, 1 / together)
        self._last_ms = time.time_ns() // 10**6

    def failed(self, took_s: float) -> None:
        """One request that a replica refused or failed."""
        self._fail.add(took_s)

    def counters(self) -> Counters:
        return Counters(
            inferences=self._inferences,
            executions=round(self._runs),
            last_inference_ms=self._last_ms,
            success=self._success.duration(),
            fail=self._fail.duration(),
            queue=self._queue.duration(),
            compute=self._compute.duration(),
            batches=tuple((rows, total.duration()) for rows, total in sorted(self._batches.items())),
        )
