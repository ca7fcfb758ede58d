"""Records of this replica that wait until control has counted them. Pure.

They are in memory: what has not been counted when the replica ends is lost with it. While control is away
the oldest make room, and a gap says which.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from edgewire.v1 import edge_pb2

BATCH_RECORDS = 200
BATCH_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class _Entry:
    """A record, or with `first` below `number` the gap in place of all from one to the other."""

    number: int
    first: int
    at: float
    record: edge_pb2.Record
    size: int


class Outgoing:
    """One spool of records that take at most `most_bytes`. Instants are monotonic."""

    def __init__(self, spool: str, most_bytes: int) -> None:
        self._spool = spool
        self._most_bytes = most_bytes
        self._entries: deque[_Entry] = deque()
        self._bytes = 0
        self._last = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, record: edge_pb2.Record, now: float) -> None:
        """Add a record, which gets its number here."""
        self._last += 1
        self._push(_Entry(self._last, self._last, now, record, record.ByteSize()))
        while self._bytes > self._most_bytes and self._drop():
            pass

    def front(self, now: float) -> edge_pb2.DeliverRequest | None:
        """The oldest records, at least one; None when there are none."""
        if not self._entries:
            return None
        request = edge_pb2.DeliverRequest(spool=self._spool)
        size = 0
        for entry in self._entries:
            size += entry.size
            if request.records and (size > BATCH_BYTES or len(request.records) >= BATCH_RECORDS):
                break
            record = request.records.add()
            record.CopyFrom(entry.record)
            record.number = entry.number
            record.age_ms = max(0, round((now - entry.at) * 1000))
        return request

    def counted(self, number: int) -> None:
        """Every record up to this number is counted."""
        while self._entries and self._entries[0].number <= number:
            self._bytes -= self._entries.popleft().size

    def _push(self, entry: _Entry, *, left: bool = False) -> None:
        self._entries.appendleft(entry) if left else self._entries.append(entry)
        self._bytes += entry.size

    def _drop(self) -> bool:
        """Put a gap in place of the oldest records; False where there is nothing left to gain."""
        oldest = self._entries.popleft()
        self._bytes -= oldest.size
        upto = oldest
        if oldest.record.HasField("gap"):
            if not self._entries:
                self._push(oldest, left=True)
                return False
            upto = self._entries.popleft()
            self._bytes -= upto.size
        gap = edge_pb2.Record(gap=edge_pb2.Gap(first=oldest.first))
        self._push(_Entry(upto.number, oldest.first, upto.at, gap, gap.ByteSize()), left=True)
        return True
