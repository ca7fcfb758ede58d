"""Reports taken in, and what is then known, over the real database."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Table, event, func, select

from edgewire.places import Place, Tier
from edgewire.signals import CONFIDENCE, edges_crc, latency_of
from edgewire.v1 import edge_pb2
from gateway.analytics.consent import Consent
from gateway.analytics.evidence import EvidenceBook
from gateway.analytics.ingest import SILENT_S, SPOOLS, Ingest
from gateway.core.config import Config
from gateway.core.evidence import KEPT_S, Evidence, Histogram, summed
from gateway.store import tables
from gateway.store.database import FILE, open_database
from gateway.store.tables import report_sources, samples
from oip.errors import OipError
from oip.reasons import Reason
from tests.support.processes import source_env
from tests.support.reports import (
    DEVICE,
    EDGES,
    OTHER_SPOOL,
    Releases,
    fresh,
    record,
    report,
    sample,
    watched,
    window,
)

CAMERA = "device:cam-1"
REPLICA = "gateway:r1"
CLOUD = Place(Tier.CLOUD, "eu")


class Desk:
    """Ingest over a folder's database, at a time that a test sets."""

    def __init__(self, folder: Path, config: Config | None = None, bucket_s: int = 10) -> None:
        self.now = 1_000_000.0
        self.engine = open_database(folder)
        self.ingest = Ingest(
            self.engine, Releases(), Consent(config or watched()), bucket_s, lambda: self.now
        )
        self.book = EvidenceBook(self.engine, Releases())

    async def take(self, *records: edge_pb2.Record, source: str = CAMERA, place: Place = DEVICE) -> int:
        return (await self.ingest.take(source, place, report(*records))).counted

    async def evidence(self, since: float = 0, until: float = 1e12, **where: object) -> Evidence:
        return await self.book.evidence("digits", "1", since, until, **where)  # pyright: ignore

    async def rows(self, table: Table = tables.evidence) -> int:
        async with self.engine.begin() as connection:
            found = await connection.execute(select(func.count()).select_from(table))
            return found.scalar_one()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fresh(tmp_path)


@pytest.fixture
def desk(folder: Path) -> Desk:
    return Desk(folder)


async def test_windows_of_one_while_add_up(desk: Desk):
    first = window(3, confidences=(0.12, 0.93, 0.97), deadline=1, malformed=4)
    assert await desk.take(record(1, first, 3.0), record(2, window(2, confidences=(0.97,)))) == 2
    found = await desk.evidence()
    assert (found.answered, found.failed, dict(found.latency)) == (5, 1, {0: 5})
    counts = found.signals[CONFIDENCE]
    assert {at: count for at, count in enumerate(counts) if count} == {2: 1, 18: 1, 19: 2}


async def test_evidence_is_kept_by_the_time_of_writing(desk: Desk):
    """The clock shows 1,000,000 s; buckets of 10 s begin at round tens."""
    await desk.take(record(1, window(1), 0.0), record(2, window(10), 0.001), record(3, window(100), 10.0))
    await desk.take(record(4, window(1000), None))
    assert (await desk.evidence(1_000_000)).answered == 1
    assert (await desk.evidence(999_990)).answered == 111
    assert (await desk.evidence(999_990, 1_000_000)).answered == 110
    assert (await desk.evidence(999_991, 1_000_000)).answered == 0
    assert (await desk.evidence()).answered == 111
    (row,) = await desk.book.view("digits")
    assert (row["requests"], row["undated"]) == (1111, 1000)


async def test_evidence_is_kept_by_site_and_tier_and_not_by_device(desk: Desk):
    other = Place(Tier.DEVICE, None, "s2", "cam-9")
    await desk.take(record(1, window(1)))
    await desk.take(record(1, window(10)), source="device:cam-2", place=Place(Tier.DEVICE, None, "s1", "b"))
    await desk.take(record(1, window(100)), source="device:cam-9", place=other)
    await desk.take(record(1, window(1000)), source=REPLICA, place=CLOUD)
    assert await desk.rows() == 3
    assert (await desk.evidence()).answered == 1111
    assert (await desk.evidence(site="s1")).answered == 11
    assert (await desk.evidence(tier=Tier.DEVICE)).answered == 111
    assert (await desk.evidence(site="s2", tier=Tier.SITE)).answered == 0


async def test_windows_over_time_are_of_all_places_and_of_each_site(desk: Desk):
    await desk.take(record(1, window(1, confidences=(0.01,)), 25.0), record(2, window(1), 15.0))
    await desk.take(record(3, window(2, confidences=(0.99, 0.01)), 0.0))
    await desk.take(
        record(1, window(1, confidences=(0.5,))), source="device:x", place=Place(Tier.DEVICE, None, "s2", "x")
    )
    found = await desk.book.windows("digits", "1", CONFIDENCE, 0, 1e12)
    assert [w.total for w in found.total] == [1, 3]
    assert {site: [w.total for w in of] for site, of in found.sites.items()} == {"s1": [1, 2], "s2": [1]}
    whole = summed(found.total)
    assert whole is not None
    assert (whole.counts[0], whole.counts[10], whole.counts[19]) == (2, 1, 1)
    assert whole.edges == EDGES[CONFIDENCE]
    assert (await desk.book.windows("digits", "2", CONFIDENCE, 0, 1e12)).total == []


async def test_the_view_tells_each_version_at_each_place(desk: Desk):
    slow = window(20, confidences=(0.975,) * 3, endpoint_failed=2, malformed=1)
    del slow.latency[0]
    slow.latency[100], slow.latency[200] = 18, 2
    await desk.take(record(1, slow), record(3, window(1, version="2")))
    first, second = await desk.book.view("digits")
    assert first == {
        "version": "1",
        "tier": "device",
        "region": "",
        "site": "s1",
        "requests": 23,
        "errors": 2,
        "failed": {"endpoint_failed": 2, "malformed": 1},
        "latency_p50_ms": latency_of(100) * 1000,
        "latency_p95_ms": latency_of(200) * 1000,
        "confidence_mean": pytest.approx(0.975),
        "undated": 0,
    }
    assert (second["version"], second["requests"], second["confidence_mean"]) == ("2", 1, None)
    assert await desk.book.lost() == 1


def _bent(**counts: object) -> edge_pb2.Window:
    made = window(2, confidences=(0.5,))
    for name, value in counts.items():
        setattr(made, name, value)
    return made


def _with(counted: edge_pb2.Counted) -> edge_pb2.Window:
    made = window(1)
    made.signals.append(counted)
    return made


CRC = edges_crc(EDGES[CONFIDENCE])
NONSENSE = [
    (_bent(model="other"), "", "unknown model"),
    (_bent(version="9"), "digits", "unknown version"),
    (_bent(version=""), "digits", "unknown version"),
    (_bent(answered=2**63), "digits", "nonsense"),
    (_bent(answered=1), "digits", "nonsense"),
    (edge_pb2.Window(model="digits", version="1", answered=9, latency={300: 1}), "digits", "nonsense"),
    (edge_pb2.Window(model="digits", version="1", failed={"a": 2**64 - 1}), "digits", "nonsense"),
    (sample(allowed="tier=moon"), "digits", "privacy"),
    (sample(allowed=""), "digits", "privacy"),
    (sample(confidence=float("nan")), "digits", "nonsense"),
    (sample(version="9"), "digits", "unknown version"),
    (edge_pb2.Sample(model="digits", version="1", allowed="tier=site+device"), "digits", "nonsense"),
]


@pytest.mark.parametrize(("bad", "model", "why"), NONSENSE)
async def test_a_bad_record_is_refused_and_its_spool_goes_on(
    desk: Desk, bad: edge_pb2.Window, model: str, why: str
):
    assert await desk.take(record(1, window(1)), record(2, bad), record(3, window(4))) == 3
    assert (await desk.evidence()).answered == 5
    assert desk.ingest.refused(model) == {why: 1}
    assert await desk.take(record(2, bad)) == 3
    assert desk.ingest.refused(model) == {why: 1}
    assert await desk.book.lost() == 0
    assert await desk.rows(samples) == 0


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (edge_pb2.Counted(name=CONFIDENCE, bins=CRC + 1, counts=[1] * 20), "bins"),
        (edge_pb2.Counted(name="input.kurtosis", bins=CRC, counts=[1] * 20), "bins"),
        (edge_pb2.Counted(name=CONFIDENCE, bins=CRC, counts=[1] * 19), "nonsense"),
        (edge_pb2.Counted(name=CONFIDENCE, bins=CRC, counts=[2**63] * 20), "nonsense"),
    ],
)
async def test_a_bad_signal_is_dropped_and_its_window_counts(desk: Desk, bad: edge_pb2.Counted, why: str):
    await desk.take(record(1, _with(bad)))
    found = await desk.evidence()
    assert (found.answered, found.signals) == (1, {})
    assert desk.ingest.refused("digits") == {why: 1}


async def test_a_reason_of_nobodys_is_not_kept_by_its_name(desk: Desk):
    made = window(0)
    made.failed["' OR 1=1"] = 2
    made.failed["deadline"] = 1
    await desk.take(record(1, made))
    (row,) = await desk.book.view("digits")
    assert row["failed"] == {"deadline": 1, "internal": 2}


async def test_what_a_device_calls_a_model_is_the_gateways_model(folder: Path):
    config = watched()
    (model,) = config.models
    *others, cameras = model.variants
    renamed = cameras.model_copy(update={"model": "digits-tiny"})
    config = config.model_copy(
        update={"models": (model.model_copy(update={"variants": (*others, renamed)}),)}
    )
    desk = Desk(folder, config)
    tiny = window(2)
    tiny.model = "digits-tiny"
    await desk.take(record(1, tiny), record(2, window(10)))
    assert (await desk.evidence()).answered == 2
    assert desk.ingest.refused("") == {"unknown model": 1}
    await desk.take(record(1, window(100)), record(2, tiny), source=REPLICA, place=CLOUD)
    assert (await desk.evidence()).answered == 102


async def test_each_spool_of_each_source_counts_from_1(desk: Desk):
    await desk.take(record(1, window(1)))
    await desk.ingest.take(CAMERA, DEVICE, report(record(1, window(10)), spool=OTHER_SPOOL))
    await desk.ingest.take("device:cam-2", DEVICE, report(record(1, window(100))))
    await desk.take(record(1, window(1)))
    assert (await desk.evidence()).answered == 111


@pytest.mark.parametrize("spool", ["", "0" * 31, "0" * 33, "G" * 32, "A" * 32, "0" * 31 + "\n"])
async def test_a_spool_without_an_id_is_refused(desk: Desk, spool: str):
    with pytest.raises(OipError, match="32 lower-case hex digits") as caught:
        await desk.ingest.take(CAMERA, DEVICE, report(record(1, window(1)), spool=spool))
    assert caught.value.reason is Reason.MALFORMED


async def test_reports_that_come_together_share_a_commit_and_are_paused(desk: Desk):
    commits: list[object] = []
    event.listen(desk.engine.sync_engine, "commit", commits.append)
    calls = [
        desk.ingest.take(f"device:{n}", DEVICE, report(record(1, window(1)), record(2, window(1))))
        for n in range(50)
    ]
    replies = await asyncio.gather(*calls)
    assert len(commits) <= 2
    assert {reply.counted for reply in replies} == {2}
    assert all(0 < reply.pause_ms <= 10_000 for reply in replies)
    assert (await desk.evidence()).answered == 100


async def test_who_leaves_before_the_commit_keeps_nobody_from_it(desk: Desk):
    leaving = asyncio.create_task(desk.take(record(1, window(1))))
    staying = asyncio.create_task(desk.take(record(1, window(10)), source="device:cam-2"))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == 1
    await desk.ingest.close()
    assert (await desk.evidence()).answered == 11


async def test_a_hole_is_told_once(desk: Desk, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        await desk.take(record(5, window(1)), record(8, window(1)))
    assert [r.message for r in caplog.records] == [
        "device:cam-1 never sent 6 of records 1 to 7: they count as lost"
    ]
    assert await desk.book.lost() == 6


async def test_a_database_that_fails_counts_nothing_and_says_so(
    desk: Desk, folder: Path, caplog: pytest.LogCaptureFixture
):
    whole = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(b"no database" * 1000)
    with pytest.raises(OipError, match="they are kept where they are") as caught:
        await desk.take(record(1, window(1)))
    assert caught.value.reason is Reason.UNAVAILABLE
    (folder / FILE).write_bytes(whole)
    assert await desk.take(record(1, window(1))) == 1
    assert (await desk.evidence()).answered == 1


async def test_what_is_old_is_forgotten(desk: Desk):
    await desk.take(record(1, window(1)), record(2, window(1), None))
    assert await desk.rows() == 2
    desk.now += KEPT_S + 20
    await desk.take(record(1, window(1)), source="device:cam-2")
    assert await desk.rows() == 1
    desk.now += SILENT_S - KEPT_S - 10
    await desk.take(record(2, window(1)), source="device:cam-2")
    async with desk.engine.begin() as connection:
        found = await connection.execute(select(report_sources.c.source))
        assert found.scalars().all() == ["device:cam-2"]


async def test_a_record_from_before_what_is_kept_is_counted_off_and_no_more(desk: Desk):
    assert await desk.take(record(1, window(1), KEPT_S + 60.0), record(2, window(1), 1e9)) == 2
    desk.now += 60
    await desk.take(record(3, window(4)))
    assert (await desk.evidence()).answered == 4


async def test_of_a_sources_many_spools_the_last_are_remembered(desk: Desk):
    for number in range(SPOOLS + 4):
        desk.now += 11
        await desk.ingest.take(CAMERA, DEVICE, report(record(1, window(1)), spool=f"{number:032x}"))
    assert await desk.rows(report_sources) == SPOOLS


async def test_telemetry_and_kinds_to_come_are_passed_over(desk: Desk):
    number = await desk.take(
        record(1, edge_pb2.Telemetry(cpu_percent=3)), edge_pb2.Record(number=2), record(3, window(1))
    )
    assert number == 3
    assert (await desk.evidence()).answered == 1


KILLED = """
import asyncio, sys
from pathlib import Path
from gateway.analytics.consent import Consent
from gateway.analytics.ingest import Ingest
from gateway.store.database import open_database
from tests.support.reports import DEVICE, Releases, record, report, watched, window

async def main():
    ingest = Ingest(open_database(Path(sys.argv[1])), Releases(), Consent(watched()), 10)
    number = int(sys.argv[2])
    while True:
        reply = await ingest.take("device:cam-1", DEVICE, report(*(record(number + k, window(1)) for k in (1, 2))))
        number += 2
        print(reply.counted, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("kills", [int(os.environ.get("TIDEGATE_KILLS", "2"))])
async def test_killed_at_any_moment_nothing_acknowledged_is_lost_or_counted_twice(folder: Path, kills: int):
    """The process is killed while it takes reports; what it answered last is what the next one begins
    after, as a device would."""
    acknowledged = 0
    for _ in range(kills):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", KILLED, str(folder), str(acknowledged)),
            env=source_env(),
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        for _ in range(5):
            acknowledged = int(await process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = (await process.stdout.read()).split()
        await process.wait()
        acknowledged = int(rest[-1]) if rest else acknowledged
        engine = open_database(folder)
        async with engine.begin() as connection:
            row = (await connection.execute(select(report_sources))).one()
        assert acknowledged <= row.counted <= acknowledged + 2
        assert row.lost == 0
        found = await EvidenceBook(engine, Releases()).evidence("digits", "1", 0, 1e12)
        assert found.answered == row.counted
        await engine.dispose()


def test_mean_confidence_is_to_be_had_of_evidence():
    assert Histogram(EDGES[CONFIDENCE], (0,) * 19 + (4,)).mean == pytest.approx(0.975)
