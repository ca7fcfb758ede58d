"""What was sent to an OIP server through one gateway, as ModelStatistics has it."""

from __future__ import annotations

import time
from collections import OrderedDict

from oip.counters import Counters, Duration

MAX_KEPT = 2000
"""Model versions that are counted; names and versions are whatever the server calls them."""
MAX_VERSION = 64
"""A longer version is counted as none."""


class _Count:
    __slots__ = ("fail", "fail_s", "last_ms", "success", "success_s")

    def __init__(self) -> None:
        self.success = self.fail = self.last_ms = 0
        self.success_s = self.fail_s = 0.0


class OipCounts:
    """Counts since the gateway started, by model and the version that answered. How long a request waited
    at the server, and how long its model took, nobody tells."""

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[str, str], _Count] = OrderedDict()
        self._answering: dict[str, str] = {}
        """By model, the version that answered last: a failure is counted with it."""

    def answered(self, model: str, version: str, took_s: float) -> None:
        version = version if len(version) <= MAX_VERSION else ""
        count = self._count(model, version)
        self._answering[model] = version
        count.success += 1
        count.success_s += took_s
        count.last_ms = time.time_ns() // 10**6

    def failed(self, model: str, version: str, took_s: float) -> None:
        """`version` is the one that was asked for, "" for none."""
        count = self._count(model, version or self._answering.get(model, ""))
        count.fail += 1
        count.fail_s += took_s

    def versions(self, model: str) -> tuple[str, ...]:
        """Those of which something was counted."""
        return tuple(version for name, version in self._counts if name == model)

    def counters(self, model: str, version: str) -> Counters:
        count = self._counts.get((model, version), _Count())
        return Counters(
            inferences=count.success,
            executions=count.success,
            last_inference_ms=count.last_ms,
            success=Duration(count.success, round(count.success_s * 1e9)),
            fail=Duration(count.fail, round(count.fail_s * 1e9)),
        )

    def _count(self, model: str, version: str) -> _Count:
        count = self._counts.pop((model, version), None) or _Count()
        self._counts[model, version] = count
        while len(self._counts) > MAX_KEPT:
            (gone, _), _ = self._counts.popitem(last=False)
            self._answering.pop(gone, None)
        return count
