"""What passed through one gateway to one model of a pool, as ModelStatistics has it."""

from __future__ import annotations

from collections import Counter


class PoolCounts:
    """Counts from the start on; durations in nanoseconds."""

    def __init__(self) -> None:
        self.success = Counter[str]()
        self.fail = Counter[str]()
        self.queue = Counter[str]()
        self.compute = Counter[str]()
        self.rows = 0
        self.runs = 0.0
        self.last_ms = 0
