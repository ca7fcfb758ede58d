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
from dataclasses import dataclass

from gateway.core.homes import Home, HomeBook
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


def new_home(endpoint: str) -> Home:
    """A home that no other beginning has."""
    return Home(endpoint, secrets.token_hex(8))


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
