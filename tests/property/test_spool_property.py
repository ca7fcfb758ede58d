"""Whatever is put into a spool, and however often it is closed, full or emptied: it stays within its bound, its
numbers have no holes, and what is not there any more is covered by a gap or was forgotten as counted."""

from __future__ import annotations

import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edge_agent.spool.arithmetic import GAP_BYTES, PAGE_BYTES, WAL_BYTES, Cut, Entry, cost, cut, room
from edge_agent.spool.database import Database, Waiting
from edgewire.v1 import edge_pb2

SIZES = st.one_of(st.integers(0, 300), st.integers(0, 6000), st.integers(0, 300_000))


@st.composite
def fronts(draw: st.DrawFn) -> list[Entry]:
    """A spool's oldest records: gaps among them, without holes."""
    found: list[Entry] = []
    at = draw(st.integers(0, 10**6))
    for size in draw(st.lists(SIZES, max_size=30)):
        covers = draw(st.sampled_from([1, 1, 1, 5]))
        found.append(Entry(at + covers, at + 1, size if covers == 1 else GAP_BYTES))
        at += covers
    return found


@given(fronts(), st.integers(-100, 10**6))
def test_the_fewest_of_the_oldest_make_room(front: list[Entry], excess: int):
    made = cut(front, excess)
    if excess <= 0 or not front:
        assert made is None
        return
    assert made is not None
    gone, left = front[: made.entries], front[made.entries :]
    frees = [sum(cost(entry.size) for entry in front[:n]) - cost(GAP_BYTES) for n in range(len(front) + 1)]
    assert made == Cut(front[0].first, gone[-1].number, len(gone), frees[made.entries])
    # As many as needed and no more.
    assert made.freed >= excess or not left
    assert frees[made.entries - 1] < excess
    # The gap and what is left are without holes.
    after = [Entry(made.last, made.first, GAP_BYTES), *left]
    assert all(b.first == a.number + 1 for a, b in pairwise(after))


@given(SIZES, SIZES)
def test_a_larger_record_never_takes_less(a: int, b: int):
    assert cost(a) >= a
    assert cost(min(a, b)) <= cost(max(a, b))


def test_a_gap_has_room_in_what_it_is_reckoned_with():
    assert edge_pb2.Record(gap=edge_pb2.Gap(first=2**64 - 1)).ByteSize() <= GAP_BYTES


MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Every write is synced, which takes a disk milliseconds."""
SMALL = WAL_BYTES + 64 * PAGE_BYTES


class SpoolMachine(RuleBasedStateMachine):
    """A real file with room for a few dozen records."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="spool", dir=MEMORY))
        self.database = Database(self.folder / "spool.db", SMALL)
        self.name = self.database.name
        self.bodies: list[bytes | None] = []
        """What each number was given to; None: had no room before it was written."""
        self.forgotten = 0
        self.made = 0

    def teardown(self) -> None:
        self.database.close()
        shutil.rmtree(self.folder)

    @rule(
        sizes=st.lists(st.one_of(st.integers(0, 300), st.integers(0, 15_000)), max_size=6),
        lost=st.integers(0, 3),
        place=st.binary(max_size=40),
    )
    def write(self, sizes: list[int], lost: int, place: bytes) -> None:
        bodies: list[bytes] = []
        for size in sizes:
            self.made += 1
            sample = edge_pb2.Sample(model=str(self.made), request=bytes(size))
            bodies.append(edge_pb2.Record(sample=sample).SerializeToString())
        self.database.write(lost, [Waiting(1.0, place, body) for body in bodies], {"n": float(self.made)})
        self.bodies += [None] * lost + bodies

    @rule(share=st.floats(0, 1.2))
    def forget(self, share: float) -> None:
        rows = self.database.read(64, 10**6)
        if rows:
            last = rows[0].number + round((rows[-1].number - rows[0].number) * share)
            self.database.forget(last)
            self.forgotten = max([self.forgotten, *(row.number for row in rows if row.number <= last)])

    @rule()
    def restart(self) -> None:
        session = self.database.session
        self.database.close()
        self.database = Database(self.folder / "spool.db", SMALL)
        assert self.database.name == self.name
        assert self.database.session == session + 1
        assert self.database.kept() == ({"n": float(self.made)} if "n" in self.database.kept() else {})

    @invariant()
    def is_without_holes_and_within_its_bound(self) -> None:
        assert sum(file.stat().st_size for file in self.folder.iterdir()) <= SMALL
        rows = self.database.read(10**9, 10**9)
        assert self.database.rows == len(rows)
        assert self.database.read(3, 0) == rows[:1]
        if not rows:
            assert self.forgotten == len(self.bodies)
            return
        next_ = rows[0].first or rows[0].number
        assert next_ <= self.forgotten + 1
        for row in rows:
            assert (row.first or row.number) == next_
            next_ = row.number + 1
            if row.first is None:
                assert row.body == self.bodies[row.number - 1]
            else:
                assert edge_pb2.Record.FromString(row.body).gap.first == row.first
        assert next_ == len(self.bodies) + 1
        assert sum(cost(len(row.place) + len(row.body)) for row in rows) <= room(SMALL)[1]


SpoolMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestSpool = SpoolMachine.TestCase
