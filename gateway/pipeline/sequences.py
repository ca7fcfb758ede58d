"""Where sequences are: a place that has taken the first step of one has its state, and nobody else.

A step goes where its sequence is, or is refused: another place would begin a state of its own without
anybody noticing. What is not known here, since it ended, lay idle too long or was lost with the process,
is begun anew by its caller.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from oip import wording
from oip.parts import read_request

SEQUENCE = "sequence_id"
"""The parameter that makes a request a step."""
IDLE_S = 3600.0
"""How long a sequence without a step is remembered, longer than servers keep its state."""
MOST = 100_000
"""Sequences that are remembered; of more, those that lay idle the longest are forgotten."""


class Sequence(NamedTuple):
    """A model's sequence; 7 and "7" are two."""

    model: str
    id: int | str


@dataclass(frozen=True, slots=True)
class Step:
    """A request that belongs to a sequence. `home` is the endpoint that has its state, "" for the first."""

    sequence: Sequence
    starts: bool
    ends: bool
    home: str = ""


class Sequences:
    """The homes of a replica's sequences. Instants are monotonic seconds."""

    def __init__(self) -> None:
        self._homes: OrderedDict[Sequence, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def step_of(self, body: bytes, now: float) -> Step | None:
        """What step a serialized ModelInferRequest is; None where it belongs to no sequence. Raises
        OipError: one of a sequence that nobody has begun."""
        parts = read_request(body)
        given = {parameter.key: parameter.value for parameter in parts.parameters}
        id = given.get(SEQUENCE)
        if isinstance(id, bool) or not isinstance(id, int | str) or not id:
            return None
        sequence = Sequence(parts.model_name, id)
        starts, ends = (given.get(f"sequence_{key}") is True for key in ("start", "end"))
        if starts:
            return Step(sequence, True, ends)
        home, at = self._homes.get(sequence, ("", 0.0))
        if not home or now - at > IDLE_S:
            self._homes.pop(sequence, None)
            raise wording.sequence_not_started(sequence.model, sequence.id)
        return Step(sequence, False, ends, home)

    def begun(self, step: Step, home: str, now: float) -> None:
        """A step is on its way to its home, which keeps its state from now on."""
        self._homes[step.sequence] = (home, now)
        self._homes.move_to_end(step.sequence)
        while len(self._homes) > MOST:
            self._homes.popitem(last=False)

    def ended(self, step: Step, *, answered: bool) -> None:
        """A step has its answer or failed. A first one that failed leaves nothing to go on from."""
        if step.ends if answered else step.starts:
            self._homes.pop(step.sequence, None)
