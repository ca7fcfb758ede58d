"""The bounded ring of decisions that a replica can still explain."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from gateway.core.decision import Attempt, Decision
from gateway.routing.record import to_record

CAPACITY = 10_000


class DecisionRing:
    """Decisions by id, the oldest forgotten first.

    Ids begin with the replica's name, so that the one that holds a record can be found.
    """

    def __init__(self, replica: str, capacity: int = CAPACITY) -> None:
        self.replica = replica
        self._capacity = capacity
        self._held: OrderedDict[str, tuple[Decision, Sequence[Attempt]]] = OrderedDict()
        self._numbers = itertools.count(1)

    def next_id(self) -> str:
        return f"{self.replica}-{next(self._numbers):06x}"

    def put(self, decision: Decision, attempts: Sequence[Attempt]) -> None:
        """Keep a decision with the attempts that followed from it."""
        self._held[decision.id] = (decision, attempts)
        if len(self._held) > self._capacity:
            self._held.popitem(last=False)

    def get(self, decision_id: str) -> dict[str, Any] | None:
        held = self._held.get(decision_id)
        return None if held is None else to_record(*held)
