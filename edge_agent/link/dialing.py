"""Which hub is tried next, and how long to wait before: full jitter, so that a thousand devices that lost
their hub together do not come back together.

Each wait is drawn evenly from 0 to `base * 2**n`, at most `cap`, where n counts rounds over all hubs that
came to nothing. Source: Exponential Backoff and Jitter, AWS Architecture Blog.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol


class Rng(Protocol):
    """What draws the waits: random.Random."""

    def uniform(self, a: float, b: float, /) -> float: ...


class _Pace(NamedTuple):
    """Seconds."""

    base: float
    cap: float


class Setback(Enum):
    """Why there is no stream. The value is the pace of trying again."""

    UNREACHABLE = _Pace(1.0, 20.0)
    """The hub is not there, does not answer, or the stream broke."""
    UNKNOWN = _Pace(5.0, 60.0)
    """The hub does not know the credential: it may again, when its registry is back."""
    REVOKED = _Pace(60.0, 600.0)
    """An operator has revoked the device. Only an operator changes that."""


STEADY_S = 5.0
"""A stream that lived so long was a good one: the count begins anew."""


class Dialing:
    """The hubs in turn. `hubs` are addresses, at least one."""

    def __init__(self, hubs: Sequence[str], rng: Rng) -> None:
        if not hubs:
            raise ValueError("no hub to dial")
        self._hubs = tuple(hubs)
        self._rng = rng
        self._at = 0
        self._failed = 0

    @property
    def hub(self) -> str:
        """The one to try now."""
        return self._hubs[self._at]

    def failed(self, setback: Setback, hint_s: float = 0.0) -> float:
        """Note that the present hub gave no stream, or lost it early; the next one is up. Returns how
        many seconds to wait before it is tried: at least `hint_s`, where the hub asked for that."""
        rounds = self._failed // len(self._hubs)
        pace = setback.value
        most = min(pace.cap, pace.base * 2.0 ** min(rounds, 32))
        self._failed += 1
        self._at = (self._at + 1) % len(self._hubs)
        return hint_s + self._rng.uniform(0.0, most)

    def lost(self, lived_s: float, setback: Setback = Setback.UNREACHABLE, hint_s: float = 0.0) -> float:
        """The like for a stream that had been up for `lived_s`. After a steady one the same hub is
        tried first."""
        if lived_s < STEADY_S:
            return self.failed(setback, hint_s)
        self._failed = 0
        wait = self.failed(setback, hint_s)
        self._at = (self._at - 1) % len(self._hubs)
        return wait
