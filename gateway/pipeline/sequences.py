"""Steps of sequences: each goes where the first one went, or nowhere.

Another place would begin a state of its own without anybody noticing. So every step asks for its sequence's
home right before it is sent, and nothing of the answer is kept: whichever replica took the last step, and
whatever was begun anew elsewhere, the next one goes to what is its home now.

A sequence is known by a digest of its model and id, so that neither leaves the replica.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from gateway.core.homes import Home, HomeBook
from gateway.core.ports import Homes
from oip import wording
from oip.parts import read_request
from oip.validate import check_parameters

SEQUENCE = "sequence_id"
"""The parameter that makes a request a step."""


@dataclass(frozen=True, slots=True)
class Step:
    """A request that belongs to a sequence of a model. `home` is where it goes, None before that is known."""

    model: str
    id: int | str
    starts: bool
    ends: bool
    home: Home | None = None

    @property
    def sequence(self) -> str:
        """The sequence's name; 7 and "7" are two."""
        kind = "i" if isinstance(self.id, int) else "s"
        text = f"{len(self.model)} {self.model}{kind}{self.id}"
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def step_of(body: bytes) -> Step | None:
    """What step a serialized ModelInferRequest is; None where it belongs to no sequence. Raises OipError for a
    parameter that is not of its kind: a start in another one than a boolean's is no step without a start."""
    parts = read_request(body)
    check_parameters(parts.parameters)
    given = {parameter.key: parameter.value for parameter in parts.parameters}
    id = given.get(SEQUENCE)
    if isinstance(id, bool) or not isinstance(id, int | str) or not id:
        return None
    starts, ends = (given.get(f"sequence_{key}") is True for key in ("start", "end"))
    return Step(parts.model_name, id, starts, ends)


class Sequences:
    """Tells steps where they go, and `homes` where sequences begin and end."""

    def __init__(self, homes: Homes) -> None:
        self._homes = homes

    async def step_of(self, body: bytes) -> Step | None:
        """The step that a request is, and where it goes; None where it belongs to no sequence. Raises OipError:
        one of a sequence that nobody has begun, or whose home cannot be told now."""
        step = step_of(body)
        if step is None or step.starts:
            return step
        home = await self._homes.find(step.sequence)
        if home is None:
            raise wording.sequence_not_started(step.model, step.id)
        return replace(step, home=home)

    async def begun(self, step: Step, endpoint: str) -> Step:
        """A first step, which is about to go to an endpoint. Raises OipError."""
        # No other beginning has this home.
        home = Home(endpoint, secrets.token_hex(8))
        step = replace(step, home=home)
        await self._homes.begin(step.sequence, home)
        return step

    def stepped(self, step: Step, *, answered: bool) -> None:
        """A step was answered or failed. A first one that failed leaves nothing to go on from."""
        if step.home is not None and (step.ends if answered else step.starts):
            self._homes.end(step.sequence, step.home.beginning)


class OwnHomes:
    """The homes of a replica that is alone: a port `Homes` without anybody to ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._book = HomeBook()
        self._clock = clock

    async def begin(self, sequence: str, home: Home) -> None:
        self._book.begin(sequence, home, self._clock())

    async def find(self, sequence: str) -> Home | None:
        return self._book.find(sequence, self._clock())

    def end(self, sequence: str, beginning: str) -> None:
        self._book.end(sequence, beginning)
