"""Counts what devices deliver, as control does: each number of a spool once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from edgewire.v1 import edge_pb2
from gateway.registry.devices import Enrolled


@dataclass
class Counting:
    """`wait_s` is how long each delivery takes. `before`, with a device's name and the call's number, may raise
    or lose the answer."""

    pause_ms: int = 0
    wait_s: float = 0.0
    before: Callable[[str, int], None] = lambda device, call: None
    after: Callable[[str, int], None] = lambda device, call: None
    calls: int = 0
    at_once: int = 0
    most_at_once: int = 0
    counted: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """By device and spool: the highest number."""
    records: list[tuple[str, str, edge_pb2.Record]] = field(
        default_factory=list[tuple[str, str, edge_pb2.Record]]
    )
    """Device, spool and record, each number once, where they are kept."""
    keeps: bool = True
    answered: int = 0
    """The sum of all windows'."""
    again: int = 0
    """Records that had been counted before."""
    lost: int = 0
    """Numbers that gaps cover."""
    holes: int = 0
    """Numbers that were passed over without a gap."""
    sizes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Records and bytes of each delivery."""

    async def take(self, device: Enrolled, request: bytes) -> bytes:
        self.calls += 1
        call = self.calls
        self.before(device.name, call)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.wait_s)
        finally:
            self.at_once -= 1
        asked = edge_pb2.DeliverRequest.FromString(request)
        self.sizes.append((len(asked.records), len(request)))
        key = device.name, asked.spool
        mark = self.counted.get(key, 0)
        for record in asked.records:
            if record.number <= mark:
                self.again += 1
                continue
            first = record.gap.first if record.HasField("gap") else record.number
            self.holes += max(0, first - mark - 1)
            if record.HasField("gap"):
                self.lost += record.number - max(first, mark + 1) + 1
            self.answered += record.window.answered
            if self.keeps:
                self.records.append((*key, record))
            mark = record.number
        self.counted[key] = mark
        self.after(device.name, call)
        return edge_pb2.DeliverReply(counted=mark, pause_ms=self.pause_ms).SerializeToString()

    def windows(self, model: str = "") -> Iterator[edge_pb2.Window]:
        for _, _, record in self.records:
            if record.HasField("window") and model in ("", record.window.model):
                yield record.window

    def samples(self) -> Iterator[edge_pb2.Sample]:
        for _, _, record in self.records:
            if record.HasField("sample"):
                yield record.sample

    @property
    def failed(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for window in self.windows():
            found.update(dict(window.failed))
        return found
