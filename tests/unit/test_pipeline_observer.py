"""What a replica reports of models that are kept fit, from the request to control's ingest."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from edgewire.allowed import decode
from edgewire.places import Place, Tier
from edgewire.signals import CONFIDENCE, INPUT_MEAN, bin_counts
from edgewire.v1 import edge_pb2
from gateway.analytics.consent import Consent
from gateway.analytics.evidence import EvidenceBook
from gateway.analytics.ingest import Ingest
from gateway.analytics.samples import Samples
from gateway.core.config import Config
from gateway.core.decision import VariantKey
from gateway.pipeline import observer as module
from gateway.pipeline.director import Director
from gateway.pipeline.dispatch import Dispatcher
from gateway.pipeline.observer import Observer, observed
from gateway.pipeline.outgoing import Outgoing
from gateway.store.database import open_database
from oip.errors import OipError
from oip.reasons import Reason
from tests.support.fakes import CODEC, Bench, bench, call_of, failure, looking
from tests.support.reports import EDGES, Releases, fresh, inference, watched

SITE = Place(Tier.SITE, None, "s1")


class FakeDesk:
    """Control: real ingest, and a switch that takes it away."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.engine = open_database(folder)
        self.ingest = Ingest(self.engine, Releases(), Consent(config), 10)
        self.book = EvidenceBook(self.engine, Releases())
        self.samples = Samples(self.engine, Consent(config))
        self.away = False
        self.forgets = False
        self.requests: list[tuple[Place, edge_pb2.DeliverRequest]] = []

    async def edges(self, model: str, version: str) -> dict[str, tuple[float, ...]] | None:
        if self.away:
            raise OipError(Reason.UNAVAILABLE, "control is away")
        return EDGES if version in ("1", "2") else None

    async def deliver(self, place: Place, request: edge_pb2.DeliverRequest) -> edge_pb2.DeliverReply:
        if self.away:
            raise OipError(Reason.UNAVAILABLE, "control is away")
        self.requests.append((place, request))
        reply = await self.ingest.take("gateway:r1", place, request)
        reply.pause_ms = 0
        if self.forgets:
            raise OipError(Reason.UNAVAILABLE, "the answer got lost")
        return reply


class Plant:
    """A bench whose dispatcher has an observer, with a clock that a test turns."""

    def __init__(self, b: Bench, desk: FakeDesk, config: Config) -> None:
        self.now = 100.0
        self.desk = desk
        self.endpoints = b.endpoints
        self.observer = Observer(config, desk, lambda: self.now)
        clock = asyncio.get_running_loop().time
        dispatcher = Dispatcher(b.state, b.endpoints, b.looked.append, clock, self.observer)
        self.director = Director(
            config, b.state, b.endpoints, dispatcher, b.records, b.telemetry, looking(b.looked)
        )

    async def ask(self, value: float = 0.5, **options: str) -> None:
        reply = await self.director.infer(call_of(inference(value), **options), CODEC)
        assert reply.error is None or reply.error.reason is not Reason.INTERNAL
        self.now += 1.0

    def answers(self, *confidences: float, version: str = "1") -> None:
        """The site answers with these probabilities of the first of two classes, one request after another."""
        left = list(confidences)

        async def behaviour(message: service_pb2.ModelInferRequest, timeout_s: float) -> bytes:
            p = left.pop(0) if len(left) > 1 else left[0]
            made = service_pb2.ModelInferResponse(model_name=message.model_name, model_version=version)
            made.outputs.add(name="p", datatype="FP32", shape=[1, 2])
            made.raw_output_contents.append(np.array([p, 1 - p], "<f4").tobytes())
            return made.SerializeToString()

        self.endpoints["site"].behaviour = behaviour

    async def known(self) -> None:
        """The bins of version 1 are known once it has been reported of."""
        await self.ask()
        await self.observer.report()
        assert len(self.desk.requests) == 1


async def plant_of(folder: Path, config: Config | None = None) -> Plant:
    config = config or watched()
    plant = Plant(await bench(config), FakeDesk(fresh(folder), config), config)
    plant.answers(0.9)
    return plant


async def test_answers_and_failures_are_counted_under_what_served(tmp_path: Path):
    plant = await plant_of(tmp_path)
    await plant.ask()
    plant.answers(0.9, version="2")
    await plant.ask()

    async def fails(message: service_pb2.ModelInferRequest, timeout_s: float) -> bytes:
        raise failure(Reason.ENDPOINT_FAILED, retryable=False)

    plant.endpoints["site"].behaviour = fails
    await plant.ask()
    await plant.observer.report()
    first, second = await plant.desk.book.view("digits")
    assert (first["version"], first["requests"], first["errors"], first["tier"]) == ("1", 1, 0, "site")
    assert (second["version"], second["requests"], second["errors"]) == ("2", 2, 1)
    assert second["failed"] == {"endpoint_failed": 1}
    assert first["latency_p50_ms"] > 0


async def test_signals_and_unsure_requests_are_taken_once_the_bins_are_known(tmp_path: Path):
    plant = await plant_of(tmp_path)
    await plant.known()
    plant.answers(0.9, 0.7, 0.55)
    for value in (0.5, 0.25, 0.125):
        await plant.ask(value)
    await plant.observer.report()
    found = await plant.desk.book.evidence("digits", "1", 0, 1e12)
    assert found.answered == 4
    expected = bin_counts(np.float32([0.9, 0.7, 0.55]), EDGES[CONFIDENCE])
    assert found.signals[CONFIDENCE] == tuple(expected)
    assert found.signals[INPUT_MEAN] == tuple(bin_counts(np.array([0.5, 0.25, 0.125]), EDGES[INPUT_MEAN]))
    kept = await plant.desk.samples.listed("digits")
    assert sorted(round(one.confidence, 2) for one in kept) == [0.55, 0.7]
    assert {one.version for one in kept} == {"1"}


async def test_a_few_a_second_are_looked_at_and_all_are_counted(tmp_path: Path):
    plant = await plant_of(tmp_path)
    await plant.known()
    for _ in range(20):
        await plant.ask()
        plant.now -= 0.95
    await plant.observer.report()
    found = await plant.desk.book.evidence("digits", "1", 0, 1e12)
    assert found.answered == 21
    assert sum(found.signals[CONFIDENCE]) == 4


async def test_what_waits_to_be_looked_at_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plant = await plant_of(tmp_path)
    await plant.known()
    monkeypatch.setattr(module, "WAITING_BYTES", 10)
    await plant.ask()
    monkeypatch.undo()
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    await plant.ask()
    await plant.observer.report()
    found = await plant.desk.book.evidence("digits", "1", 0, 1e12)
    assert (found.answered, found.signals) == (3, {})


@pytest.mark.parametrize(
    ("privacy", "options", "signals", "kept"),
    [
        ("public", {}, 1, 1),
        ("eu", {}, 1, 1),
        ("public", {"privacy": "here"}, 1, 1),
        ("far", {}, 1, 0),
        ("public", {"privacy": "far"}, 1, 0),
    ],
)
async def test_samples_go_only_where_their_request_may(
    tmp_path: Path, privacy: str, options: dict[str, str], signals: int, kept: int
):
    """`far` allows the gateway's place and not the one where it is trained."""
    config = watched()
    classes = {
        **config.privacy.model_dump()["classes"],
        "here": {"allow": [{"tier": ["site"], "site": ["s1"]}]},
        "far": {"allow": [{"tier": ["site"]}]},
    }
    train = {"entrypoint": "m:run", "location": {"tier": "regional", "region": "eu"}}
    config = watched(**({"train": train} if "far" in (privacy, options.get("privacy")) else {}))
    sections = {**config.model_dump(), "privacy": {"default": "public", "classes": classes}}
    sections["models"][0]["privacy"] = privacy
    sections["endpoints"] = list(config.endpoints)
    config = Config.model_validate(sections)
    plant = await plant_of(tmp_path, config)
    await plant.known()
    plant.answers(0.5)
    await plant.ask(**options)
    await plant.observer.report()
    assert sum(len(r.records) for _, r in plant.desk.requests[1:]) == 1 + kept
    found = await plant.desk.book.evidence("digits", "1", 0, 1e12)
    assert sum(found.signals[CONFIDENCE]) == signals
    assert len(await plant.desk.samples.listed("digits")) == kept
    assert plant.desk.ingest.refused("digits") == {}


async def test_values_that_may_not_be_here_are_not_looked_at(tmp_path: Path):
    """The director takes no such request; whoever else calls is held to the same."""
    plant = await plant_of(tmp_path)
    await plant.known()
    made = service_pb2.ModelInferResponse(model_name="digits", model_version="1")
    made.outputs.add(name="p", datatype="FP32", shape=[1, 2]).contents.fp32_contents.extend([0.5, 0.5])
    key, response = VariantKey("site", "digits", ""), made.SerializeToString()
    for allowed in ("tier=cloud", "site=s2", "tier=site;site=s1"):
        plant.observer.ended("digits", key, SITE, decode(allowed), 0.001, inference(), response, None)
        plant.now += 1.0
    await plant.observer.report()
    found = await plant.desk.book.evidence("digits", "1", 0, 1e12)
    assert found.answered == 4
    assert sum(found.signals[CONFIDENCE]) == 1
    assert [one.places for one in await plant.desk.samples.listed("digits")] == ["tier=site;site=s1"]


async def test_a_day_has_room_for_so_many_samples(tmp_path: Path):
    plant = await plant_of(tmp_path)
    await plant.known()
    plant.answers(0.5)
    for value in range(8):
        await plant.ask(float(value))
    await plant.observer.report()
    assert len(await plant.desk.samples.listed("digits")) == 5
    plant.now += 86400
    for value in range(20, 23):
        await plant.ask(float(value))
    await plant.observer.report()
    assert len(await plant.desk.samples.listed("digits")) == 8


async def test_control_that_is_away_loses_nothing_and_counts_nothing_twice(tmp_path: Path):
    plant = await plant_of(tmp_path)
    plant.desk.away = True
    await plant.ask()
    await plant.observer.report()
    await plant.ask()
    await plant.observer.report()
    plant.desk.away, plant.desk.forgets = False, True
    await plant.ask()
    await plant.observer.report()
    plant.desk.forgets = False
    await plant.observer.report()
    assert (await plant.desk.book.evidence("digits", "1", 0, 1e12)).answered == 3
    assert await plant.desk.book.lost() == 0
    assert len({request.spool for _, request in plant.desk.requests}) == 1


async def test_an_endpoint_that_answers_with_rubbish_is_counted_all_the_same(tmp_path: Path):
    plant = await plant_of(tmp_path)
    await plant.known()

    async def rubbish(message: service_pb2.ModelInferRequest, timeout_s: float) -> bytes:
        made = service_pb2.ModelInferResponse(model_name="digits", model_version="1")
        made.outputs.add(name="p", datatype="FP32", shape=[1, 2**40])
        made.raw_output_contents.append(b"123")
        return made.SerializeToString()

    plant.endpoints["site"].behaviour = rubbish
    await plant.ask()
    await plant.observer.report()
    found = await plant.desk.book.evidence("digits", "1", 0, 1e12)
    assert (found.answered, found.signals) == (2, {})


async def test_versions_that_an_endpoint_makes_up_are_bounded(tmp_path: Path):
    plant = await plant_of(tmp_path)
    for number in range(module.MOST_VERSIONS + 20):
        plant.answers(0.9, version=str(number))
        await plant.ask()
    await plant.observer.report()
    reported = [r.window.version for _, request in plant.desk.requests for r in request.records]
    assert len(reported) == module.MOST_VERSIONS


async def test_it_reports_by_itself_and_once_more_at_its_end(tmp_path: Path):
    plant = await plant_of(tmp_path, watched(drift={"window_s": 1}))
    plant.observer.start()
    await plant.ask()
    await plant.observer.close()
    assert (await plant.desk.book.evidence("digits", "1", 0, 1e12)).answered == 1


async def test_without_updates_there_is_nothing_to_observe():
    config = watched()
    assert observed(config)
    assert not observed(config.model_copy(update={"updates": ()}))
    edge_alone = config.models[0].model_copy(update={"variants": config.models[0].variants[-1:]})
    assert not observed(config.model_copy(update={"models": (edge_alone,)}))


async def test_devices_and_upstream_gateways_report_of_themselves(tmp_path: Path):
    config = watched()
    kinds = {
        e.name: e.model_copy(update={"kind": "gateway"}) if e.name == "site" else e for e in config.endpoints
    }
    plant = await plant_of(tmp_path, config.model_copy(update={"endpoints": tuple(kinds.values())}))
    await plant.ask()
    await plant.observer.report()
    assert plant.desk.requests == []


class TestOutgoing:
    def test_records_are_numbered_and_age(self):
        out = Outgoing("s", 1000)
        out.put(edge_pb2.Record(telemetry=edge_pb2.Telemetry(inflight=1)), 10.0)
        out.put(edge_pb2.Record(telemetry=edge_pb2.Telemetry(inflight=2)), 12.5)
        request = out.front(13.0)
        assert request is not None
        assert [(r.number, r.age_ms, r.telemetry.inflight) for r in request.records] == [
            (1, 3000, 1),
            (2, 500, 2),
        ]
        out.counted(1)
        request = out.front(13.0)
        assert request is not None
        assert [r.number for r in request.records] == [2]
        out.counted(2)
        assert out.front(13.0) is None

    def test_the_oldest_become_one_gap(self):
        one = edge_pb2.Record(sample=edge_pb2.Sample(request=bytes(100)))
        out = Outgoing("s", 4 * one.ByteSize())
        for at in range(10):
            out.put(one, float(at))
        request = out.front(20.0)
        assert request is not None
        gap, *rest = request.records
        assert (gap.number, gap.gap.first) == (7, 1)
        assert [r.number for r in rest] == [8, 9, 10]
        out.counted(6)
        assert len(out) == 4
        out.counted(7)
        assert len(out) == 3

    def test_one_that_is_larger_than_all_there_is_becomes_a_gap(self):
        out = Outgoing("s", 50)
        out.put(edge_pb2.Record(sample=edge_pb2.Sample(request=bytes(100))), 0.0)
        out.put(edge_pb2.Record(sample=edge_pb2.Sample(request=bytes(100))), 0.0)
        request = out.front(0.0)
        assert request is not None
        assert [(r.number, r.gap.first) for r in request.records] == [(2, 1)]

    def test_a_batch_is_bounded(self):
        out = Outgoing("s", 2**30)
        for _ in range(200):
            out.put(edge_pb2.Record(sample=edge_pb2.Sample(request=bytes(10_000))), 0.0)
        request = out.front(0.0)
        assert request is not None
        assert len(request.records) == 2**20 // 10_000
        assert request.ByteSize() < 2**20 + 2**14


async def test_versions_that_are_no_longer_served_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_VERSIONS", 1)
    plant = await plant_of(tmp_path)
    await plant.known()
    plant.answers(0.9, version="2")
    for _ in range(2):
        await plant.ask()
        await plant.observer.report()
    found = [record.window for _, request in plant.desk.requests for record in request.records]
    assert [(window.version, bool(window.signals)) for window in found] == [
        ("1", False),
        ("2", False),
        ("2", True),
    ]
