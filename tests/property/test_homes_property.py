"""Any course of beginnings, steps, ends and deaths of control: a step goes to the last beginning's home, or
nowhere."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.control import homes as module
from gateway.control.homes import KeptHomes
from gateway.core.homes import IDLE_S, MOST, Home

SEQUENCES = st.sampled_from(["s1", "s2", "s3"])
PLACES = st.sampled_from(["t1", "t2", "t3"])


class Homes(RuleBasedStateMachine):
    """Beside the kept homes, what is true: each sequence's last beginning, and when it was stepped last."""

    @initialize(compact_bytes=st.sampled_from([200, 2**20]))
    def begin_with_nothing(self, compact_bytes: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.compact, module.COMPACT_BYTES = module.COMPACT_BYTES, compact_bytes
        self.path = Path(self.folder.name) / "homes.log"
        self.kept = KeptHomes(self.path)
        assert self.kept.open(0.0)
        self.now = 0.0
        self.beginnings = 0
        self.true: dict[str, tuple[Home, float]] = {}
        self.past: list[tuple[str, Home]] = []

    def teardown(self) -> None:
        if hasattr(self, "kept"):
            self.kept.close()
            self.folder.cleanup()
            module.COMPACT_BYTES = self.compact

    @rule(sequence=SEQUENCES, place=PLACES)
    def begin(self, sequence: str, place: str) -> None:
        self.beginnings += 1
        home = Home(place, str(self.beginnings))
        self.kept.begin(sequence, home, self.now)
        self.true[sequence] = (home, self.now)
        self.past.append((sequence, home))

    @rule(data=st.data())
    def begin_again_as_a_question_that_is_asked_twice(self, data: Any) -> None:
        if self.true:
            sequence = data.draw(st.sampled_from(sorted(self.true)))
            home, _ = self.true[sequence]
            self.kept.begin(sequence, home, self.now)
            self.true[sequence] = (home, self.now)

    @rule(sequence=SEQUENCES)
    def step(self, sequence: str) -> None:
        home, at = self.true.get(sequence, (None, 0.0))
        if home is not None and self.now - at > IDLE_S:
            home = None
            del self.true[sequence]
        assert self.kept.find(sequence, self.now) == home
        if home is not None:
            self.true[sequence] = (home, self.now)

    @rule(data=st.data())
    def end_any_beginning_there_ever_was(self, data: Any) -> None:
        if self.past:
            sequence, home = data.draw(st.sampled_from(self.past))
            self.kept.end(sequence, home.beginning)
            if self.true.get(sequence, (None, 0.0))[0] == home:
                del self.true[sequence]

    @rule(seconds=st.sampled_from([1.0, IDLE_S / 2, IDLE_S + 1]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(cut_off=st.binary(max_size=20).filter(lambda cut: b"\n" not in cut))
    def control_is_killed_and_comes_back(self, cut_off: bytes) -> None:
        self.kept.close()
        with self.path.open("ab") as log:
            log.write(cut_off)
        self.kept = KeptHomes(self.path)
        assert self.kept.open(self.now)
        # Nobody knows how long they lay idle.
        self.true = {sequence: (home, self.now) for sequence, (home, _) in self.true.items()}

    @invariant()
    def bounded(self) -> None:
        if hasattr(self, "kept"):
            assert len(self.kept) <= min(MOST, 3)


TestHomes = Homes.TestCase
TestHomes.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
