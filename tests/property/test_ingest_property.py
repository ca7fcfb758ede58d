"""Whatever becomes of reports on their way, each record is counted once or told as lost."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from edgewire.v1 import edge_pb2
from gateway.analytics.consent import Consent
from gateway.analytics.evidence import EvidenceBook
from gateway.analytics.ingest import Ingest
from gateway.analytics.windows import FARTHEST, Counted, Mark, Sums, take
from gateway.store.database import open_database
from oip.errors import OipError
from tests.support.reports import DEVICE, Releases, fresh, record, report, watched, window

CONFIG = watched()
NOW = 1_000_000.0


@st.composite
def spools(draw: st.DrawFn) -> list[edge_pb2.Record]:
    """A device's records, of which some had no room: the number n's window tells 2**n answers, so that
    every sum says which were counted."""
    made: list[edge_pb2.Record] = []
    number = 0
    for gap in draw(st.lists(st.sampled_from([0, 0, 0, 1, 3]), min_size=1, max_size=12)):
        first, number = number + 1, number + max(1, gap)
        kind = edge_pb2.Gap(first=first) if gap else window(2**number)
        made.append(record(number, kind))
    return made


@st.composite
def journeys(draw: st.DrawFn) -> tuple[list[edge_pb2.Record], list[tuple[list[int], bool, bool]]]:
    """A spool, and the calls that bring it: which of its records in which order, whether the call fails
    before its commit, and whether control is another process afterwards."""
    spool = draw(spools())
    at = st.integers(0, len(spool) - 1)
    calls = draw(
        st.lists(st.tuples(st.lists(at, max_size=8), st.booleans(), st.booleans()), min_size=1, max_size=8)
    )
    whole = list(range(len(spool)))
    return spool, [*calls, (whole, False, True)] if draw(st.booleans()) else calls


@settings(max_examples=30, deadline=None)
@given(journeys())
def test_each_record_is_counted_once_or_lost(
    journey: tuple[list[edge_pb2.Record], list[tuple[list[int], bool, bool]]],
):
    spool, calls = journey
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_bring(fresh(Path(folder)), spool, calls))


async def _bring(
    folder: Path, spool: list[edge_pb2.Record], calls: list[tuple[list[int], bool, bool]]
) -> None:
    engine = open_database(folder)
    ingest = Ingest(engine, Releases(), Consent(CONFIG), 10, lambda: NOW)
    mark, counted = 0, set[int]()
    for chosen, fails, ends in calls:
        brought = [spool[at] for at in chosen]

        def fail(_: object) -> None:
            raise OperationalError("COMMIT", {}, Exception("the disk is full"))

        if fails:
            event.listen(engine.sync_engine, "commit", fail)
            with pytest.raises(OipError, match="kept where they are"):
                await ingest.take("device:cam-1", DEVICE, report(*brought))
            event.remove(engine.sync_engine, "commit", fail)
        else:
            reply = await ingest.take("device:cam-1", DEVICE, report(*brought))
            counted |= {r.number for r in brought if r.number > mark and r.HasField("window")}
            mark = max([mark, *(r.number for r in brought)])
            assert reply.counted == mark
        if ends:
            await engine.dispose()
            engine = open_database(folder)
            ingest = Ingest(engine, Releases(), Consent(CONFIG), 10, lambda: NOW)
    book = EvidenceBook(engine, Releases())
    found = await book.evidence("digits", "1", 0, NOW + 1)
    assert found.answered == sum(2**number for number in counted)
    assert found.latency == ({0: found.answered} if counted else {})
    assert await book.lost() == mark - len(counted)
    await engine.dispose()


some = st.lists(st.sampled_from([0, 0, 0, 1, 2**40]), min_size=2, max_size=30).map(tuple)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b"]), st.tuples(st.integers(0, 2**32 - 1), some)))
def test_a_document_says_what_the_sums_are(signals: dict[str, tuple[int, tuple[int, ...]]]):
    sums = Sums(3, Counter(deadline=2), Counter({7: 3}), {n: Counted(*one) for n, one in signals.items()})
    assert Sums.of_document(json.loads(json.dumps(sums.to_document()))) == sums


def test_bins_are_written_by_number_where_most_are_empty():
    sums = Sums(signals={"a": Counted(1, (0, 0, 5, 0)), "b": Counted(1, (1, 2, 0))})
    assert sums.to_document()["signals"] == {"a": [1, [4, {"2": 5}]], "b": [1, [1, 2, 0]]}


numbers = st.integers(0, 12) | st.integers(0, 2**64 - 1)
nonsense = st.builds(
    lambda number, first, what: (
        record(number, edge_pb2.Gap(first=first))
        if what == "gap"
        else record(number, window())
        if what == "window"
        else edge_pb2.Record(number=number)
    ),
    numbers,
    numbers,
    st.sampled_from(["gap", "window", "nothing"]),
)


@settings(deadline=None)
@given(st.lists(nonsense, max_size=12), st.integers(0, 20))
def test_nonsense_moves_the_mark_on_and_is_never_counted_twice(records: list[edge_pb2.Record], before: int):
    found = take(Mark(before, 7), records)
    assert found.mark.counted == max([before, *(min(r.number, FARTHEST) for r in records)])
    new = [r.number for r in found.new]
    assert all(number > before for number in new)
    assert len(set(new)) == len(new)
    assert 7 <= found.mark.lost <= FARTHEST
    again = take(found.mark, records)
    assert (again.mark, list(again.new), list(again.holes)) == (found.mark, [], [])


def test_numbers_that_no_record_and_no_gap_is_of_are_holes():
    found = take(Mark(2, 0), [record(9, window()), record(6, edge_pb2.Gap(first=5))])
    assert (found.mark, list(found.holes)) == (Mark(9, 2 + 2 + 2), [(3, 4), (7, 8)])
    assert [r.number for r in found.new] == [9]
    overlapping = take(Mark(4, 0), [record(6, edge_pb2.Gap(first=2))])
    assert overlapping.mark == Mark(6, 2)
