"""What the requests of one model's version come to in a while: counts, latency and signals in bins.

The same on a device and in a gateway, so that what both count can be added. Counts and latency are of
every request. Signals are of those whose data may go where the counts go: the caller asks the wall and
says so with each request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from edgewire import signals
from edgewire.signals import Array, Values
from edgewire.v1 import edge_pb2

Bins = Mapping[str, Sequence[float]]
"""Edges by signal."""


def bins_of(asked: Iterable[edge_pb2.Signal]) -> Bins:
    """The signals that can be counted: known ones, each once, with edges that are some."""
    found: dict[str, Sequence[float]] = {}
    for signal in asked:
        if signal.name in signals.SIGNALS and signals.edges_fault(signal.edges) is None:
            found.setdefault(signal.name, tuple(signal.edges))
    return found


def values_of(
    wanted: Collection[str], inputs: Mapping[str, Array], outputs: Mapping[str, Array]
) -> Mapping[str, Values]:
    """The wanted signals of a request, as far as it has them, a value a row."""
    found: dict[str, Values] = {}
    if signals.INPUT_MEAN in wanted or signals.INPUT_STD in wanted:
        found |= signals.input_values(inputs)
    if signals.CONFIDENCE in wanted:
        found |= signals.output_values(outputs)
    return found


class Tally:
    """One model's version, from `take` to `take`. `digest` is its file's, "" where it has none."""

    def __init__(self, model: str, version: str, digest: str, bins: Bins) -> None:
        self._named = {"model": model, "version": version, "digest": digest}
        self._edges = {name: tuple(edges) for name, edges in bins.items()}
        self._crcs = {name: signals.edges_crc(edges) for name, edges in bins.items()}
        self._clear()

    def answered(
        self, took_s: float, inputs: Mapping[str, Array], outputs: Mapping[str, Array], allowed: bool
    ) -> None:
        """One request with its answer. `allowed`: its data may go where the counts go."""
        self.count(took_s)
        if allowed:
            self.add(values_of(self._edges.keys(), inputs, outputs))

    def count(self, took_s: float) -> None:
        """One request that was answered, without its values."""
        self._answered += 1
        self._latency[signals.latency_bin(took_s)] += 1

    def add(self, values: Mapping[str, Values]) -> None:
        """Count signals of a request, those that are counted here."""
        for name, of_rows in values.items():
            edges = self._edges.get(name)
            if edges is None:
                continue
            counts = self._signals.get(name)
            if counts is None:
                counts = self._signals[name] = [0] * (len(edges) + 1)
            for at in signals.bins_at(of_rows, edges):
                counts[at] += 1

    def failed(self, reason: str) -> None:
        """One request without an answer. `reason` is an oip one."""
        self._failed[reason] += 1

    def take(self, took_ms: int) -> edge_pb2.Window | None:
        """What was counted in the last `took_ms`, and begin anew; None when that is nothing."""
        if not self._answered and not self._failed:
            return None
        window = edge_pb2.Window(
            **self._named,
            took_ms=took_ms,
            answered=self._answered,
            failed=self._failed,
            latency=self._latency,
            signals=[
                edge_pb2.Counted(name=name, bins=self._crcs[name], counts=counts)
                for name, counts in self._signals.items()
            ],
        )
        self._clear()
        return window

    def _clear(self) -> None:
        self._answered = 0
        self._failed: Counter[str] = Counter()
        self._latency: Counter[int] = Counter()
        self._signals: dict[str, list[int]] = {}
