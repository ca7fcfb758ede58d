"""How many bytes of requests and answers the agent holds at once, from the hub and on the device alike."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from oip.errors import OipError
from oip.reasons import Reason


class BodyBudget:
    """At most `limit` bytes at once; `held` is how many there are now."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def share(self) -> BodyShare:
        """One request's part, empty. A context manager: leaving it gives all back."""
        return BodyShare(self)


class BodyShare:
    """What one request holds; more than fits is refused OVERLOADED."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._size = 0

    def check(self, more: int) -> None:
        """Refuse `more` bytes that there is no room for now, without holding them."""
        if self._budget.held + more > self._budget.limit:
            raise OipError(
                Reason.OVERLOADED,
                f"the bodies of running requests fill the {self._budget.limit} bytes that this device "
                "holds at once; try again",
            )

    def take(self, more: int) -> None:
        """Hold `more` bytes."""
        self.check(more)
        self._budget.held += more
        self._size += more

    def become(self, size: int) -> None:
        """What is held now has `size` bytes. An answer that exists already is never refused."""
        self._budget.held += size - self._size
        self._size = size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.become(0)
