"""The retry budget: retries are a bounded share of the work in flight, so that they cannot turn a
place that fails into an overload of the places that do not."""

from __future__ import annotations

from gateway.core.config import Retry


class RetryBudget:
    """Counts requests and retries in flight; one per policy. Not for use from several threads.

    A retry is admitted while, with it, retries in flight <= max(min_concurrent, budget_percent / 100
    * requests in flight). A request counts from its first attempt to its end, while it is retried
    too. The limits come with each question, so a reload changes them without losing the counts.
    """

    __slots__ = ("_requests", "_retries")

    def __init__(self) -> None:
        self._requests = 0
        self._retries = 0

    def begin_request(self) -> None:
        self._requests += 1

    def end_request(self) -> None:
        if self._requests == 0:
            raise ValueError("a request ends that never began")
        self._requests -= 1

    def admit_retry(self, limits: Retry) -> bool:
        """Take a place in the budget, if there is one; give it back with `end_retry`."""
        if self._retries + 1 > max(limits.min_concurrent, limits.budget_percent * self._requests / 100):
            return False
        self._retries += 1
        return True

    def end_retry(self) -> None:
        if self._retries == 0:
            raise ValueError("a retry ends that never began")
        self._retries -= 1
