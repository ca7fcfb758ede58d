"""From requests to records. Pure: instants are arguments, in monotonic seconds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from edge_agent.analytics.wall import NOTHING, Wall, written_place
from edge_agent.bucket import Bucket
from edge_agent.ports import Served
from edgewire import signals, wire_places
from edgewire.gathering import Bins, Tally, bins_of
from edgewire.places import Place
from edgewire.signals import Values
from edgewire.v1 import edge_pb2

MAX_SAMPLE_BYTES = 256 * 1024
"""A record that is longer is not kept."""
DAY_S = 86_400
FILES = 3
"""Files of one model of which the bins are remembered: what serves, what it may go back to, what is wanted."""


class Written(NamedTuple):
    """A record for the spool, and the serialized place of the gateway that its values were counted for; b""
    where it has none."""

    record: edge_pb2.Record
    place: bytes


@dataclass(slots=True)
class _Order:
    """What is to be gathered of a model. `bins` are by file."""

    wall: Wall
    bins: dict[str, Bins] = field(default_factory=dict[str, Bins])
    newest: Bins = field(default_factory=dict[str, tuple[float, ...]])
    below: float = 0.0
    samples: Bucket | None = None


class Gathering:
    """`kept` is what `left` said when the last run ended."""

    def __init__(self, now: float, kept: Mapping[str, float]) -> None:
        self._since = now
        self._kept = dict(kept)
        self._asked: Mapping[str, edge_pb2.DesiredModel] = {}
        self._there: Place | None = None
        self._orders: dict[str, _Order] = {}
        self._tallies: dict[Served, Tally] = {}

    def desire(self, desired: edge_pb2.Desired, there: Place | None, now: float) -> list[Written]:
        """The word of a hub whose gateway is `there`. Where it changes what is gathered, what was counted
        before is a record of its own."""
        asked = {model.model: model for model in reversed(desired.models)}
        if asked == self._asked and there == self._there:
            return []
        written = self.report(now)
        tokens = self.left(now)
        self._asked, self._there = asked, there
        self._tallies.clear()
        self._kept |= tokens
        before, self._orders = self._orders, {}
        for name, model in asked.items():
            if model.HasField("gather"):
                known = before[name].bins if name in before else {}
                self._orders[name] = self._order(model, known, now)
        return written

    def wanted(self, served: Served, asked: str | None) -> Collection[str]:
        """The signals to take of a request whose own set of places is `asked`, as `Wall.may` has it."""
        order = self._orders.get(served.model)
        if order is None or not order.wall.may(asked).values:
            return ()
        names = self._bins(order, served).keys()
        return names if order.samples is None else {*names, signals.CONFIDENCE}

    def answered(
        self,
        served: Served,
        took_s: float,
        message: bytes,
        asked: str | None,
        values: Mapping[str, Values],
        now: float,
    ) -> Written | None:
        """A request that was answered, with the signals taken of it. `message` is the serialized
        ModelInferRequest. Gives the sample that is to be kept of it, where it is one."""
        tally = self._tally(served)
        tally.count(took_s)
        order = self._orders.get(served.model)
        may = NOTHING if order is None else order.wall.may(asked)
        if order is None or not may.values:
            return None
        tally.add(values)
        if not may.sample or order.samples is None or signals.CONFIDENCE not in values:
            return None
        confidence = float(values[signals.CONFIDENCE].min())
        if not confidence < order.below or order.samples.tokens(now) < 1:
            return None
        sample = edge_pb2.Sample(
            **served._asdict(), request=message, confidence=confidence, allowed=may.sample
        )
        record = edge_pb2.Record(sample=sample)
        if record.ByteSize() > MAX_SAMPLE_BYTES:
            return None
        order.samples.take(1, now)
        return self._written(record)

    def failed(self, served: Served, reason: str) -> None:
        """A request that was not answered; `reason` is an oip one."""
        self._tally(served).failed(reason)

    def report(self, now: float) -> list[Written]:
        """What was counted since the last report."""
        took_ms = max(0, round((now - self._since) * 1000))
        self._since = now
        windows = [window for tally in self._tallies.values() if (window := tally.take(took_ms)) is not None]
        self._tallies.clear()
        return [self._written(edge_pb2.Record(window=window)) for window in windows]

    def left(self, now: float) -> Mapping[str, float]:
        """By model, how many samples may be kept at once: to be remembered for the next run."""
        return {
            name: order.samples.tokens(now)
            for name, order in self._orders.items()
            if order.samples is not None
        }

    def _order(self, model: edge_pb2.DesiredModel, known: Mapping[str, Bins], now: float) -> _Order:
        gather = model.gather
        training = wire_places.from_wire(gather.samples.training) if gather.HasField("samples") else None
        bins = {file: of for file, of in known.items() if file != model.digest}
        bins[model.digest] = bins_of(gather.signals)
        samples = None
        if training is not None and gather.samples.max_per_day:
            most = gather.samples.max_per_day
            samples = Bucket(most / DAY_S, most, self._kept.get(model.model, most), now)
        return _Order(
            Wall(gather.allowed, self._there, training),
            dict(list(bins.items())[-FILES:]),
            bins[model.digest],
            gather.samples.confidence_below,
            samples,
        )

    def _bins(self, order: _Order, served: Served) -> Bins:
        """A file that serves still is counted in its own bins while the next one's are asked for."""
        return order.bins.get(served.digest, order.newest)

    def _tally(self, served: Served) -> Tally:
        tally = self._tallies.get(served)
        if tally is None:
            order = self._orders.get(served.model)
            tally = self._tallies[served] = Tally(*served, {} if order is None else self._bins(order, served))
        return tally

    def _written(self, record: edge_pb2.Record) -> Written:
        return Written(record, written_place(self._there) if record.window.signals else b"")
