"""What the requests of one model's version come to in a while: counts, latency and signals in bins.

The same on a device and in a gateway, so that what both count can be added. Counts and latency are of
every request. Signals are of those whose data may go where the counts go: the caller asks the wall and
says so with each request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

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


class _Count(NamedTuple):
    edges: Values
    counts: np.ndarray[tuple[int], np.dtype[np.int64]]


class Tally:
    """One model's version, from `take` to `take`. `digest` is its file's, "" where it has none."""

    def __init__(self, model: str, version: str, digest: str, bins: Bins) -> None:
        self._named = {"model": model, "version": version, "digest": digest}
        self._of_inputs = any(name in bins for name in (signals.INPUT_MEAN, signals.INPUT_STD))
        self._of_outputs = signals.CONFIDENCE in bins
        self._edges = {name: np.asarray(edges, np.float64) for name, edges in bins.items()}
        self._crcs = {name: signals.edges_crc(edges) for name, edges in bins.items()}
        self._clear()

    def answered(
        self, took_s: float, inputs: Mapping[str, Array], outputs: Mapping[str, Array], allowed: bool
    ) -> None:
        """One request with its answer. `allowed`: its data may go where the counts go."""
        self._answered += 1
        self._latency[signals.latency_bin(took_s)] += 1
        if not allowed:
            return
        if self._of_inputs:
            self._count(signals.input_values(inputs))
        if self._of_outputs:
            self._count(signals.output_values(outputs))

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
                edge_pb2.Counted(name=name, bins=self._crcs[name], counts=counts.tolist())
                for name, (_, counts) in self._signals.items()
            ],
        )
        self._clear()
        return window

    def _clear(self) -> None:
        self._answered = 0
        self._failed: Counter[str] = Counter()
        self._latency: Counter[int] = Counter()
        self._signals: dict[str, _Count] = {}

    def _count(self, values: Mapping[str, Values]) -> None:
        for name, of_rows in values.items():
            edges = self._edges.get(name)
            if edges is None:
                continue
            if name not in self._signals:
                self._signals[name] = _Count(edges, np.zeros(len(edges) + 1, np.int64))
            np.add.at(self._signals[name].counts, signals.bins_at(of_rows, edges), 1)
