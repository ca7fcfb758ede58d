"""No place is lost to callers that it would answer in time: played out, attempt by attempt.

Time is simulated. Every caller is decided for and measured as the pipeline does it; what an attempt
takes is up to the place and, where a test says so, to the caller's input.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.config import Config
from gateway.core.decision import Outcome, Verdict
from gateway.core.ports import Health, ModelHealth
from gateway.core.request import Options, Request
from gateway.decide import decide
from gateway.decide.choose import TRY_EVERY_S
from gateway.pipeline.state import ReplicaState
from gateway.routing.latency import STALE_AFTER_S, WINDOW
from gateway.routing.predict import key_of
from tests.unit.decide_config import config_of, endpoint, model

Takes = Callable[[str, float], float]
"""What an attempt at an endpoint, begun at an instant, takes in ms."""


class Caller(NamedTuple):
    """Asks at `at` seconds with a deadline, and leaves after `patience_ms` if that is earlier."""

    at: float
    deadline_ms: float
    patience_ms: float = float("inf")
    takes: Takes | None = None
    victim: bool = False


class Seen(NamedTuple):
    """What became of a caller: the places it was shut out of, and whether it was answered."""

    caller: Caller
    excluded: frozenset[str]
    outcome: Outcome | None


class Stage:
    def __init__(self, places: int, takes: Takes) -> None:
        names = [f"p{i}" for i in range(places)]
        self.config: Config = config_of(
            endpoints=[endpoint(name, region="eu") for name in names],
            models=[model(variants=[{"endpoint": name} for name in names])],
        )
        self.state = ReplicaState(self.config, "r")
        for name in names:
            self.state.heard(name, Health(True, "", (ModelHealth("digits", "", True),)))
        self.takes = takes
        self.rng = random.Random(0)

    def play(self, callers: list[Caller]) -> list[Seen]:
        """Everybody in the order of their times, attempts side by side."""
        numbers, running, seen = (
            itertools.count(),
            list[tuple[float, int, Callable[[], None]]](),
            list[Seen](),
        )
        for caller in sorted(callers, key=lambda c: c.at):
            while running and running[0][0] <= caller.at:
                heapq.heappop(running)[2]()
            self.state.tick(caller.at)
            request = Request("digits", "", Options(), 10, caller.deadline_ms / 1000, "d", 0.0)
            decision = decide(self.state.snapshot, request, caller.at, self.rng)
            excluded = frozenset(
                c.variant.endpoint for c in decision.candidates if c.verdict is Verdict.EXCLUDED
            )
            if not decision.plan:
                seen.append(Seen(caller, excluded, None))
                continue
            key = key_of(self.config.models[0], decision.plan[0].variant)
            takes = (caller.takes or self.takes)(key.endpoint, caller.at)
            had = min(takes, caller.deadline_ms + 0.5, caller.patience_ms)
            outcome = Outcome.OK
            if had < takes:
                outcome = Outcome.CANCELLED if had == caller.patience_ms else Outcome.DEADLINE
            given_s, size = caller.deadline_ms / 1000, 1 if outcome is Outcome.OK else None
            end = caller.at + had / 1000
            self.state.begun(key, given_s, caller.at)

            def ended(key=key, outcome=outcome, had=had, given_s=given_s, size=size, end=end):  # type: ignore[no-untyped-def]
                self.state.ended(key, outcome, had, given_s, size, end)

            heapq.heappush(running, (end, next(numbers), ended))
            seen.append(Seen(caller, excluded, outcome))
        for _, _, end_attempt in sorted(running):
            end_attempt()
        return seen


def every(seconds: float, start: float, count: int, **caller: object) -> list[Caller]:
    return [Caller(start + i * seconds, **caller) for i in range(count)]  # type: ignore[arg-type]


def test_one_hang_costs_one_answer() -> None:
    """The endpoint hangs for its first request alone; everybody has 60 ms."""
    stage = Stage(1, lambda name, at: 1e9 if at == 0.0 else 5.0)
    seen = stage.play(every(0.1, 0.0, 100, deadline_ms=60.0))
    assert [s.outcome for s in seen] == [Outcome.DEADLINE] + [Outcome.OK] * 99


@settings(max_examples=60, deadline=None)
@given(
    places=st.integers(1, 3),
    before=st.integers(0, 2 * WINDOW),
    slow_ms=st.floats(61.0, 5000.0),
    slow=st.integers(1, 2 * WINDOW),
    slow_deadline_ms=st.sampled_from((60.0, 100.0, 10_000.0)),
    pause_s=st.sampled_from((0.01, 0.1, 1.0, 30.0)),
)
def test_when_the_places_recover_so_do_their_callers(
    places: int, before: int, slow_ms: float, slow: int, slow_deadline_ms: float, pause_s: float
) -> None:
    """However they were slow, and whoever asked meanwhile: within a try for each place."""
    start = before * pause_s
    recovered = start + slow * pause_s + slow_ms / 1000
    stage = Stage(places, lambda name, at: slow_ms if start <= at < recovered else 5.0)
    callers = every(pause_s, 0.0, before, deadline_ms=60.0)
    callers += every(pause_s, start, slow, deadline_ms=slow_deadline_ms)
    callers += every(pause_s, recovered, 100 + int(places / pause_s), deadline_ms=60.0, victim=True)
    after = [s for s in stage.play(callers) if s.caller.victim]
    first = next(i for i, s in enumerate(after) if s.outcome is Outcome.OK)
    assert after[first].caller.at - recovered <= (places + 1) * TRY_EVERY_S
    assert all(s.outcome is Outcome.OK for s in after[first:]), "lost again to what is over"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), pause_s=st.sampled_from((0.002, 0.05, 2.0, STALE_AFTER_S + 1)))
def test_tiny_deadlines_and_early_leavers_shut_nobody_out(seed: int, pause_s: float) -> None:
    """Places answer within 20 ms; whatever hostile callers ask for, a victim with 25 ms is let in
    everywhere and answered."""
    rng = random.Random(seed)
    stage = Stage(2, lambda name, at: rng.uniform(5.0, 20.0))
    callers: list[Caller] = []
    for i in range(400):
        deadline_ms = rng.choice((0.001, 1.0, 5.0, 12.0, 19.0, 60_000.0))
        patience_ms = rng.choice((0.0, 0.001, 1.0, 12.0, 19.9, 1e9))
        callers.append(Caller(i * pause_s, deadline_ms, patience_ms))
        if i % 10 == 9:
            callers.append(Caller((i + 0.5) * pause_s, 25.0, victim=True))
    for victim in (s for s in stage.play(callers) if s.caller.victim):
        assert victim.excluded == frozenset()
        assert victim.outcome is Outcome.OK


@pytest.mark.parametrize("hostile_deadline_ms", [1.0, 20.0, 50.0, 60_000.0])
def test_slow_inputs_of_one_caller_deny_others_next_to_nothing(hostile_deadline_ms: float) -> None:
    """Twenty slow inputs a second, answered or cut off, keep the figure high; others take 5 ms."""

    def slowly(name: str, at: float) -> float:
        return 5000.0

    rng = random.Random(7)
    stage = Stage(1, lambda name, at: rng.uniform(3.5, 6.5))
    callers = every(0.05, 0.0, 1200, deadline_ms=60_000.0, takes=slowly)
    callers += every(0.01, 20.003, 2000, deadline_ms=hostile_deadline_ms, takes=slowly)
    callers += every(0.1, 20.0, 400, deadline_ms=60.0, victim=True)
    outcomes = [s.outcome for s in stage.play(callers) if s.caller.victim]
    assert outcomes.count(Outcome.OK) >= 0.95 * len(outcomes)


def test_leavers_do_not_make_an_untried_place_wait() -> None:
    """Callers that leave at once are no trial of a place that nobody measured yet."""
    stage = Stage(2, lambda name, at: 10.0)
    stage.play(every(0.01, 0.0, 40, deadline_ms=60_000.0, patience_ms=1.0))
    assert all(state.trials < 1 for state in stage.state.snapshot.variants.values())


def test_a_place_that_hangs_sinks_in_rank() -> None:
    """Grey failure: healthy by its word, and silent. The other takes over after a few were lost."""
    stage = Stage(2, lambda name, at: 1e9 if name == "p0" and at >= 100.0 else 10.0 + (name == "p1"))
    seen = stage.play(every(0.5, 0.0, 800, deadline_ms=1000.0))
    assert {s.outcome for s in seen[:200]} == {Outcome.OK}
    lost = [s for s in seen[200:] if s.outcome is not Outcome.OK]
    assert 0 < len(lost) <= WINDOW
    assert all(s.outcome is Outcome.OK for s in seen[-100:])
