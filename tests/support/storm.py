"""Many digits asked of a gateway while something is killed in the middle."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from gateway.demo.caller import DEADLINE_S, Answer, Caller
from gateway.demo.digits import sample, train_base
from tests.support.waiting import until_true

CALLERS = 8
CLEAR = {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
"""What a caller may be told of a place that died under it."""
MODEL = train_base()
PIXELS, _ = sample(200)


def right(answer: Answer, pixels: np.ndarray, tolerance: float) -> bool:
    return answer.probabilities is not None and np.allclose(
        answer.probabilities, MODEL.predict(pixels), atol=tolerance
    )


@dataclass(frozen=True)
class Storm:
    """The answers by the index of their pixels, and the monotonic instant of the kill, in seconds."""

    answers: list[tuple[int, Answer]]
    killed_at: float

    def wrong(self, tolerance: float) -> list[int]:
        return [i for i, a in self.answers if a.status == "OK" and not right(a, PIXELS[i][None], tolerance)]

    @property
    def failed(self) -> list[Answer]:
        return [a for _, a in self.answers if a.status != "OK"]

    @property
    def slowest_ms(self) -> float:
        return max(a.latency_ms for _, a in self.answers)

    def check(self, what: str, tolerance: float, failed_at_most: int) -> None:
        """Right answers or clear errors before the deadline; prints the figures."""
        print(
            f"{what} killed: {len(self.failed)} of {len(self.answers)} failed "
            f"({', '.join(sorted({a.status for a in self.failed})) or 'none'}), "
            f"slowest {self.slowest_ms:.0f} ms"
        )
        assert self.wrong(tolerance) == []
        assert {a.status for a in self.failed} <= CLEAR, [a.message for a in self.failed[:3]]
        assert all(a.message for a in self.failed)
        assert len(self.failed) <= failed_at_most, {a.message for a in self.failed}
        assert self.slowest_ms < DEADLINE_S * 1000


def storm(
    address: str,
    options: Mapping[str, str],
    kill: Callable[[], None],
    count: int = 200,
    model: str = "digits",
) -> Storm:
    """`count` requests, eight callers at a time. `kill` runs after a third of them, while others are out."""
    caller = Caller(address, model)
    killed_at: list[float] = []

    def one(i: int) -> tuple[int, Answer]:
        if i == count // 3:
            kill()
            killed_at.append(time.monotonic())
        return i, caller.ask(PIXELS[i][None], dict(options))

    try:
        with ThreadPoolExecutor(CALLERS) as pool:
            return Storm(list(pool.map(one, range(count))), killed_at[0])
    finally:
        caller.close()


def answers_again(
    address: str, options: Mapping[str, str], timeout_s: float = 60.0, model: str = "digits"
) -> float:
    """Until ten requests in a row are answered; the monotonic instant of the first of them."""
    caller = Caller(address, model)
    began = 0.0

    def holds() -> bool:
        nonlocal began
        began = time.monotonic()
        return all(caller.ask(PIXELS[i][None], dict(options)).status == "OK" for i in range(10))

    try:
        until_true(holds, timeout_s)
    finally:
        caller.close()
    return began
