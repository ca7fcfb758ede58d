"""Where sequences are: a place that has taken the first step of one has its state, and nobody else.

The book is a state machine without I/O: control keeps one for all data plane replicas. A sequence goes by a
name that its callers make of its model and id (the pipeline's `sequences`).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

IDLE_S = 3600.0
"""How long a sequence without a step is remembered, longer than servers keep its state."""
MOST = 100_000
"""Sequences that are remembered; of more, those that lay idle the longest are forgotten."""


class Home(NamedTuple):
    """The endpoint that has a sequence's state, and which beginning of it that was."""

    endpoint: str
    beginning: str


class HomeBook:
    """The homes of sequences by name. Instants are monotonic seconds."""

    def __init__(self) -> None:
        self._homes: OrderedDict[str, tuple[Home, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def begin(self, sequence: str, home: Home, now: float) -> None:
        """A first step is on its way to its home; what the sequence was before is over."""
        self._homes[sequence] = (home, now)
        self._homes.move_to_end(sequence)
        if len(self._homes) > MOST:
            self._homes.popitem(last=False)

    def find(self, sequence: str, now: float) -> Home | None:
        """Where a further step goes; None for a sequence that nobody has begun, that has ended, or that was
        forgotten."""
        home, at = self._homes.get(sequence, (None, now))
        if home is None:
            return None
        if now - at > IDLE_S:
            del self._homes[sequence]
            return None
        self._homes[sequence] = (home, now)
        self._homes.move_to_end(sequence)
        return home

    def end(self, sequence: str, beginning: str) -> bool:
        """A last step was answered, or a first one failed. Whether that changed anything: one that was begun
        anew meanwhile goes on."""
        home, _ = self._homes.get(sequence, (None, 0.0))
        if home is None or home.beginning != beginning:
            return False
        del self._homes[sequence]
        return True

    def forget(self, sequence: str) -> None:
        """Nothing is known of it from now on."""
        self._homes.pop(sequence, None)

    def all(self) -> list[tuple[str, Home]]:
        """The homes, those that lay idle the longest first."""
        return [(sequence, home) for sequence, (home, _) in self._homes.items()]
