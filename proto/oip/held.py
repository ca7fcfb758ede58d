"""How many bytes of request bodies a server holds at once, over all its listeners and requests."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from oip.errors import OipError
from oip.reasons import Reason


class BodyBudget:
    """At most `limit` bytes of bodies at once; `held` is how many there are now. `holder` is what
    messages call the server, gateway or device, and `error` what is raised where there is no room."""

    def __init__(self, limit: int, holder: str, error: type[OipError] = OipError) -> None:
        self.limit = limit
        self.holder = holder
        self.error = error
        self.held = 0

    def share(self) -> BodyShare:
        """One request's part of the budget, empty. A context manager: leaving it gives all back."""
        return BodyShare(self)


class BodyShare:
    """What one request holds of the budget; what would pass the limit is refused OVERLOADED."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._size = 0

    def check(self, more: int) -> None:
        """Refuse `more` bytes that there is no room for now, without holding them."""
        if self._budget.held + more > self._budget.limit:
            raise self._budget.error(
                Reason.OVERLOADED,
                f"the bodies of running requests fill the {self._budget.limit} bytes that this "
                f"{self._budget.holder} holds at once; try again",
            )

    def take(self, more: int) -> None:
        """Hold `more` bytes that have arrived."""
        self.check(more)
        self._budget.held += more
        self._size += more

    def become(self, size: int) -> None:
        """The body is now held in another form, of `size` bytes."""
        self.check(max(0, size - self._size))
        self.settle(size)

    def settle(self, size: int) -> None:
        """What is held now has `size` bytes. An answer that exists already is never refused."""
        self._budget.held += size - self._size
        self._size = size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settle(0)
