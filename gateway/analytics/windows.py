"""The arithmetic of reports: what records add, and which of them were counted before. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

from edgewire import signals
from edgewire.places import Place, Tier
from edgewire.v1 import edge_pb2
from gateway.core.evidence import Evidence, Histogram
from oip.reasons import Reason

UNDATED = -1
"""The bucket of what came without a known age."""
MOST = 2**40
"""Of anything that one record counts: more is no count."""
FARTHEST = 2**63 - 1
"""The highest number of a record, as the store can hold it."""
AGAINST_MODEL = frozenset(
    {
        Reason.INTERNAL,
        Reason.ENDPOINT_FAILED,
        Reason.UNAVAILABLE,
        Reason.MODEL_UNAVAILABLE,
        Reason.OVERLOADED,
        Reason.DEADLINE,
    }
)
"""Failures that speak against a model or its place. The others are callers' mistakes, or nobody's."""

_REASONS = frozenset(reason.value for reason in Reason)

Edges = Mapping[str, tuple[float, ...]]


class Known(Protocol):
    """What ingest must know of releases."""

    def edges(self, model: str, version: str) -> Edges | None:
        """The bins of each signal of a release: of its reference, else the default ones. None for a version
        that is not released."""
        ...


class Where(NamedTuple):
    """A place as evidence is kept by it: never by device."""

    tier: str
    region: str = ""
    site: str = ""

    @classmethod
    def of(cls, place: Place) -> Where:
        return cls(place.tier.value, place.region or "", place.site or "")

    @classmethod
    def read(cls, text: str) -> Where:
        return cls(*text.split("/"))

    def __str__(self) -> str:
        return "/".join(self)

    def suits(self, site: str | None, tier: Tier | None) -> bool:
        """Whether it is of that site and tier; None asks for nothing."""
        return site in (None, self.site) and (tier is None or self.tier == tier.value)


class Key(NamedTuple):
    """Where counts are added: a row of the table. `bucket` is when it begins, in whole seconds since the
    epoch, or UNDATED."""

    model: str
    version: str
    where: str
    bucket: int


class Counted(NamedTuple):
    """`bins` is the CRC-32 of the edges."""

    bins: int
    counts: tuple[int, ...]


@dataclass(slots=True)
class Sums:
    """Counts of one key; grows by `add`. `failed` is by reason."""

    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter[str])
    latency: Counter[int] = field(default_factory=Counter[int])
    signals: dict[str, Counted] = field(default_factory=dict[str, Counted])

    def add(self, other: Sums) -> None:
        """Counts of other bins than those there are replaced by the new ones: a version's bins change only
        with the program."""
        self.answered += other.answered
        self.failed.update(other.failed)
        self.latency.update(other.latency)
        for name, theirs in other.signals.items():
            mine = self.signals.get(name)
            if mine is not None and mine.bins == theirs.bins and len(mine.counts) == len(theirs.counts):
                counts = tuple(a + b for a, b in zip(mine.counts, theirs.counts, strict=True))
                theirs = Counted(mine.bins, counts)
            self.signals[name] = theirs

    def evidence(self, edges: Edges) -> Evidence:
        """Signals of other bins than `edges` are left out."""
        against = sum(count for reason, count in self.failed.items() if reason in AGAINST_MODEL)
        found = {name: h.counts for name in self.signals if (h := self.histogram(name, edges)) is not None}
        return Evidence(self.answered, against, dict(self.latency), found)

    def histogram(self, signal: str, edges: Edges) -> Histogram | None:
        counted, of = self.signals.get(signal), edges.get(signal)
        if counted is None or of is None or counted.bins != signals.edges_crc(of):
            return None
        return Histogram(of, counted.counts)

    def to_document(self) -> dict[str, object]:
        """For JSON. Bins are written by number where most of them are empty."""
        return {
            "answered": self.answered,
            "failed": dict(self.failed),
            "latency": {str(at): count for at, count in sorted(self.latency.items())},
            "signals": {name: [c.bins, _packed(c.counts)] for name, c in self.signals.items()},
        }

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Sums:
        return cls(
            document["answered"],
            Counter(document["failed"]),
            Counter({int(at): count for at, count in document["latency"].items()}),
            {name: Counted(bins, _unpacked(counts)) for name, (bins, counts) in document["signals"].items()},
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a spool is counted, and how many of its records never came."""

    counted: int = 0
    lost: int = 0


class Taken(NamedTuple):
    """What a report comes to: the mark after it, the records that are new, and numbers, from and to, that
    no record and no gap was of."""

    mark: Mark
    new: Sequence[edge_pb2.Record]
    holes: Sequence[tuple[int, int]]
    refused: int
    """Gaps that cannot be, and records of no kind or no number."""


def take(mark: Mark, records: Iterable[edge_pb2.Record]) -> Taken:
    """Which records of a report count. They are taken by number, whatever order they come in; of two with
    one number, the first. One that is nonsense is passed over as refused: its spool goes on."""
    new: list[edge_pb2.Record] = []
    holes: list[tuple[int, int]] = []
    counted, lost, refused = mark.counted, mark.lost, 0
    for record in sorted(records, key=lambda r: r.number):
        number = min(record.number, FARTHEST)
        if number <= counted:
            refused += record.number == 0
            continue
        kind, since = record.WhichOneof("kind"), number
        if kind == "gap" and 1 <= record.gap.first <= number:
            since = max(record.gap.first, counted + 1)
            lost += number - since + 1
        elif kind in (None, "gap"):
            refused += 1
        else:
            new.append(record)
        if since > counted + 1:
            holes.append((counted + 1, since - 1))
            lost += since - 1 - counted
        counted = number
    return Taken(Mark(counted, min(lost, FARTHEST)), new, holes, refused)


def bucket_of(age_ms: int | None, now: float, bucket_s: int) -> int:
    """The bucket of what was written `age_ms` before `now` (wall time)."""
    if age_ms is None:
        return UNDATED
    return max(0, math.floor((now - age_ms / 1000) / bucket_s) * bucket_s)


def read_window(window: edge_pb2.Window, edges: Edges, may_count: bool) -> tuple[Sums, Counter[str]] | None:
    """What a window adds, and how many of its signals are refused, by why: "privacy" where values may not
    be counted here, "bins" where they are counted in others, "nonsense" where the counts are none. None
    for a window that is nonsense itself."""
    latency = dict(window.latency)
    failed = dict(window.failed)
    counts = [window.answered, sum(latency.values()), sum(failed.values())]
    if max(counts) > MOST or counts[1] > window.answered or any(at >= signals.LATENCY_BINS for at in latency):
        return None
    sums = Sums(window.answered, _by_reason(failed), Counter(latency))
    refused: Counter[str] = Counter()
    for counted in window.signals:
        of = edges.get(counted.name)
        if not may_count:
            refused["privacy"] += 1
        elif of is None or counted.bins != signals.edges_crc(of):
            refused["bins"] += 1
        elif len(counted.counts) != len(of) + 1 or sum(counted.counts) > MOST or counted.name in sums.signals:
            refused["nonsense"] += 1
        else:
            sums.signals[counted.name] = Counted(counted.bins, tuple(counted.counts))
    return sums, refused


def _by_reason(failed: Mapping[str, int]) -> Counter[str]:
    """What is no reason of ours would be kept under whatever name a source gives it."""
    found: Counter[str] = Counter()
    for name, count in failed.items():
        found[name if name in _REASONS else Reason.INTERNAL.value] += count
    return found


def _packed(counts: Sequence[int]) -> object:
    some = {str(at): count for at, count in enumerate(counts) if count}
    return [len(counts), some] if 2 * len(some) < len(counts) else list(counts)


def _unpacked(written: Sequence[Any]) -> tuple[int, ...]:
    if len(written) == 2 and isinstance(written[1], dict):
        counts = [0] * written[0]
        for at, count in cast("Mapping[str, int]", written[1]).items():
            counts[int(at)] = count
        return tuple(counts)
    return tuple(written)
