"""A token bucket. Pure: instants are arguments, in monotonic seconds."""

from __future__ import annotations


class Bucket:
    """Fills by `rate_per_s` up to `most`; begins with `tokens`."""

    def __init__(self, rate_per_s: float, most: float, tokens: float, now: float) -> None:
        self._rate = rate_per_s
        self._most = most
        self._tokens = min(most, max(0.0, tokens))
        self._at = now

    def tokens(self, now: float) -> float:
        """How many there are; below 0 while what was taken has not come in yet."""
        self._tokens = min(self._most, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = max(self._at, now)
        return self._tokens

    def take(self, count: float, now: float) -> None:
        """Whether there are so many or not."""
        self._tokens = self.tokens(now) - count

    def wait_s(self, now: float) -> float:
        """How long until there is no debt; 0 when there is none."""
        return max(0.0, -self.tokens(now) / self._rate)
