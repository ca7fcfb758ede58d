"""What was served of each model, for its statistics: every request once, however many attempts it took.

A request counts from when a place is chosen for it: it is answered or it fails, under the version that
answered or that its caller asked for. What names no version that ever answered counts under the highest
there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from oip.counters import Counters, Duration

MOST_VERSIONS = 64
"""Told apart of one model: endpoints may call their versions what they like."""


@dataclass(slots=True)
class Count:
    """Of one version of a model."""

    success: int = 0
    fail: int = 0
    rows: int = 0
    last_ms: int = 0
    success_s: float = 0.0
    fail_s: float = 0.0
    queue_s: float = 0.0
    compute_s: float = 0.0

    def add(self, other: Count) -> None:
        self.success += other.success
        self.success_s += other.success_s
        self.fail += other.fail
        self.fail_s += other.fail_s
        self.queue_s += other.queue_s
        self.compute_s += other.compute_s
        self.rows += other.rows
        self.last_ms = max(self.last_ms, other.last_ms)


Counts = Mapping[str, Mapping[str, Count]]
"""By model and version, "" for what names none."""


def summed(parts: Iterable[Counts]) -> Counts:
    """What several replicas counted."""
    found: dict[str, dict[str, Count]] = {}
    for part in parts:
        for model, versions in part.items():
            for version, count in versions.items():
                found.setdefault(model, {}).setdefault(version, Count()).add(count)
    return found


class Served:
    """Counts of one replica since it started."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, Count]] = {}

    @property
    def counts(self) -> Counts:
        return self._counts

    def answered(
        self,
        model: str,
        version: str,
        took_s: float,
        rows: int,
        wall_s: float,
        queued_s: float = 0.0,
        computed_s: float = 0.0,
    ) -> None:
        """A request with so many rows was answered by `version` ("": it has none), at `wall_s` of the Unix
        epoch; of `took_s` it waited and was computed as long as the place says."""
        count = self._count(model, version)
        count.success += 1
        count.success_s += took_s
        count.queue_s += queued_s
        count.compute_s += computed_s
        count.rows += rows
        count.last_ms = round(wall_s * 1000)

    def failed(self, model: str, version: str, took_s: float) -> None:
        """A request for `version` ("": any) got an error, or its caller left. Callers may ask for what there
        is not, so it counts under that version only once it has answered."""
        known = version in self._counts.get(model, {})
        count = self._count(model, version if known else "")
        count.fail += 1
        count.fail_s += took_s

    def _count(self, model: str, version: str) -> Count:
        versions = self._counts.setdefault(model, {})
        if version not in versions and len(versions) >= MOST_VERSIONS:
            version = ""
        return versions.setdefault(version, Count())


def counters(counts: Mapping[str, Count], known: Iterable[str], version: str = "") -> dict[str, Counters]:
    """A model's counts by version, the lowest first: of those `known`, and of all that answered; of `version`
    alone where that is given. Every answer counts as one execution, queued and computed; of places that do not
    say how long, that took no time."""
    counts = dict(counts)
    nameless = counts.pop("", None)
    versions = sorted({*known, *counts} - {""}, key=lambda v: (len(v), v)) or [""]
    found: dict[str, Counters] = {}
    for each in versions:
        total = Count()
        for part in (counts.get(each), nameless if each == versions[-1] else None):
            if part is not None:
                total.add(part)
        found[each] = _counters(total)
    return {version: found.get(version, Counters())} if version else found


def _counters(count: Count) -> Counters:
    return Counters(
        inferences=count.rows,
        executions=count.success,
        last_inference_ms=count.last_ms,
        success=Duration(count.success, round(count.success_s * 1e9)),
        fail=Duration(count.fail, round(count.fail_s * 1e9)),
        queue=Duration(count.success, round(count.queue_s * 1e9)),
        compute=Duration(count.success, round(count.compute_s * 1e9)),
    )
