"""How many devices may connect at once. PURE.

After a restart every device dials at about the same time. Each connection takes the hub some work, so
they are let in at a steady rate after a first burst, and whoever comes too early is told when to come
back: the hints lie one behind the other, so that those who follow them do not meet again.
"""

from __future__ import annotations

RATE_PER_S = 200.0
BURST = 100
MAX_HINT_S = 30.0


class Admission:
    """A token bucket that also says how long to wait. Instants are monotonic seconds."""

    def __init__(self, rate_per_s: float = RATE_PER_S, burst: int = BURST) -> None:
        self._rate = rate_per_s
        self._burst = burst
        self._tokens = float(burst)
        self._at = 0.0
        self._promised = 0.0

    def ask(self, now: float) -> float:
        """0 for one that may come in now, else the seconds after which it should ask again."""
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        self._promised = max(self._promised, now + (1 - self._tokens) / self._rate) + 1 / self._rate
        return min(self._promised - now, MAX_HINT_S)
