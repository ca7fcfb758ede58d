"""Models that come and go under a replica: what is on offer, what is kept of them, and who is answered."""

from __future__ import annotations

import asyncio

import pytest
from tritonclient.grpc import service_pb2

from gateway.core.config import Config
from gateway.core.config.discovered import MAX_MODELS
from gateway.core.decision import Outcome, VariantKey
from gateway.core.errors import AttemptError
from gateway.core.request import Options
from gateway.pipeline import state as pipeline_state
from gateway.pipeline.discovery import NO_INDEX, NOT_READ, Discovery
from gateway.pipeline.state import ReplicaState
from oip.reasons import Reason
from oip.signature import Signature
from tests.support.discovering import discovering
from tests.support.fakes import (
    CODEC,
    Bench,
    FakeEndpoint,
    bench,
    call_of,
    failure,
    request,
    response,
)


class Indexed(FakeEndpoint):
    """A fake that can be asked which models it has: names, or how the question fails."""

    has: frozenset[str] | AttemptError = frozenset()

    async def ready_models(self, timeout_s: float) -> frozenset[str]:
        if isinstance(self.has, AttemptError):
            raise self.has
        return self.has


class World:
    """A replica over fakes, whose endpoints are looked at when a test says so."""

    def __init__(self, b: Bench) -> None:
        self.bench = b
        self.endpoints = {e.name: Indexed(e) for e in b.config.endpoints}
        b.endpoints.clear()
        b.endpoints.update(self.endpoints)
        self.now = 100.0
        self.discovery = Discovery(b.config, b.endpoints, lambda config: b.state.move(config, self.now))

    async def has(self, name: str, *models: str) -> None:
        self.endpoints[name].has = frozenset(models)
        await self.look(name)

    async def fails(self, name: str, reason: Reason) -> None:
        self.endpoints[name].has = failure(reason)
        await self.look(name)

    async def look(self, name: str) -> None:
        b = self.bench
        health = await b.endpoints[name].health(b.state.models_of(name), 1.0)
        found = await self.discovery.look(name, 1.0)
        b.state.heard(name, type(health)(True, "", (*health.models, *found)))

    @property
    def models(self) -> list[str]:
        return [model.name for model in self.bench.state.config.models]

    async def infer(self, model: str, **options: str) -> tuple[Reason | None, str]:
        """How a request ended, and where it was answered."""
        reply = await self.bench.director.infer(call_of(request(model), **options), CODEC)
        at = dict(reply.metadata).get("tidegate-endpoint", "")
        return (None if reply.error is None else reply.error.reason), at


async def world(config: Config | None = None) -> World:
    return World(await bench(config or discovering()))


async def test_a_model_that_comes_is_answered_and_one_that_goes_is_unknown():
    w = await world()
    assert await w.infer("new") == (Reason.UNKNOWN_MODEL, "")
    await w.has("site", "new")
    assert w.models == ["digits", "new"]
    assert await w.infer("new") == (None, "site")
    assert w.bench.director.dry_run("new", "", Options(), 0).privacy == ("public",)
    await w.has("site")
    assert w.models == ["digits"]
    assert await w.infer("new") == (Reason.UNKNOWN_MODEL, "")
    assert await w.infer("digits") == (None, "site")


async def test_a_request_in_flight_ends_where_it_was_decided_to_go():
    w = await world()
    await w.has("site", "new")
    reached, leave = asyncio.Event(), asyncio.Event()

    async def slow(message: service_pb2.ModelInferRequest, timeout_s: float) -> bytes:
        reached.set()
        await leave.wait()
        return response(message.model_name)

    w.endpoints["site"].behaviour = slow
    asked = asyncio.create_task(w.infer("new"))
    await reached.wait()
    await w.has("site")
    assert w.models == ["digits"]
    leave.set()
    assert await asked == (None, "site")


async def test_a_request_goes_on_to_its_other_places_though_its_model_left():
    w = await world(discovering(site="public", cloud="public"))
    await w.has("site", "new")
    await w.has("cloud", "new")
    reached, leave = asyncio.Event(), asyncio.Event()

    async def fails(message: service_pb2.ModelInferRequest, timeout_s: float) -> bytes:
        reached.set()
        await leave.wait()
        raise failure(Reason.OVERLOADED, sent=False)

    for name in ("site", "cloud"):
        w.endpoints[name].behaviour = fails
    asked = asyncio.create_task(w.infer("new"))
    await reached.wait()
    first = next(name for name in ("site", "cloud") if w.endpoints[name].seen)
    second = "cloud" if first == "site" else "site"
    w.endpoints[second].behaviour = FakeEndpoint(w.bench.config.endpoints[0]).behaviour
    await w.has("site")
    await w.has("cloud")
    leave.set()
    assert await asked == (None, second)


async def test_what_is_discovered_never_goes_where_its_class_forbids():
    """Class eu forbids `far`, wherever the caller says that its data may go."""
    w = await world(discovering(site=None, cloud="eu", far="eu"))
    for name in ("cloud", "far"):
        await w.has(name, "new")
    assert await w.infer("new") == (None, "cloud")
    assert await w.infer("new", privacy="public") == (None, "cloud")
    w.bench.state.gone("cloud")
    assert (await w.infer("new"))[0] is Reason.NO_CANDIDATE
    assert w.endpoints["far"].seen == []


async def test_two_endpoints_in_one_class_are_variants_and_in_two_are_neither():
    w = await world(discovering(site="public", cloud="public", far="eu"))
    await w.has("site", "new", "here")
    await w.has("cloud", "new")
    assert [v.endpoint for v in w.bench.state.config.models[-1].variants] == ["site", "cloud"]
    await w.has("far", "new")
    assert w.models == ["digits", "here"]
    for name in ("site", "cloud", "far"):
        offered = w.discovery.of(name)
        assert offered is not None
        assert offered.left_out == 1
        assert offered.remark.endswith("1 that another endpoint has in another class: 'new'")
    await w.has("far")
    assert w.models == ["digits", "here", "new"]
    assert w.discovery.of("site") == type(offered)(("here", "new"), 0, "")


async def test_an_index_that_cannot_be_read_for_once_changes_nothing():
    w = await world()
    await w.has("site", "new")
    await w.fails("site", Reason.DEADLINE)
    assert w.models == ["digits", "new"]
    offered = w.discovery.of("site")
    assert offered is not None
    assert offered.remark == NOT_READ
    await w.has("site", "other")
    assert w.models == ["digits", "other"]
    assert w.discovery.of("site") == type(offered)(("other",), 0, "")


async def test_a_server_without_an_index_offers_nothing_and_says_so():
    w = await world()
    await w.has("site", "new")
    await w.fails("site", Reason.NOT_SERVED)
    assert w.models == ["digits"]
    offered = w.discovery.of("site")
    assert offered is not None
    assert (offered.names, offered.remark) == ((), NO_INDEX)
    assert w.discovery.of("cloud") is None


async def test_a_look_that_changes_nothing_moves_nothing():
    w = await world()
    await w.has("site", "new")
    before = w.bench.state.config
    await w.look("site")
    assert w.bench.state.config is before


async def test_a_flood_of_names_is_cut_and_told():
    w = await world()
    await w.has("site", *(f"m{number:05}" for number in range(MAX_MODELS + 5)), "x" * 257, "a\nb")
    assert len(w.models) == MAX_MODELS + 1
    offered = w.discovery.of("site")
    assert offered is not None
    assert (offered.left_out, len(offered.remark) < 200) == (7, True)
    assert "2 with names that are too long or cannot be shown; 5 beyond the first 1000" in offered.remark


DIGITS, NEW = VariantKey("site", "digits", ""), VariantKey("site", "new", "")


def measured(state: ReplicaState, key: VariantKey, now: float) -> None:
    for _ in range(20):
        state.begun(key, 1.0, now)
        state.ended(key, Outcome.OK, 5.0, 1.0, 100, now)


async def test_what_was_measured_is_kept_of_those_that_stay_and_for_a_while_of_those_that_left():
    w = await world()
    state = w.bench.state
    await w.has("site", "new")
    for key in (DIGITS, NEW):
        measured(state, key, w.now)
        state.learnt(key, Signature((), ()), w.now)
    await w.has("site")
    assert NEW not in state.snapshot.variants
    assert state.snapshot.variants[DIGITS].latency is not None
    assert state.snapshot.variants[DIGITS].signature is not None
    w.now += pipeline_state.REMEMBERED_S - 1
    await w.has("site", "new")
    state.tick(w.now)
    back = state.snapshot.variants[NEW]
    assert back.latency is not None
    assert (back.response_bytes, back.signature, back.ready) == (100, None, True)
    await w.has("site")
    w.now += pipeline_state.REMEMBERED_S
    state.tick(w.now)
    await w.has("site", "new")
    assert state.snapshot.variants[NEW].latency is None


async def test_so_many_that_left_are_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pipeline_state, "REMEMBERED", 2)
    w = await world()
    names = ["a", "b", "c"]
    await w.has("site", *names)
    for name in names:
        measured(w.bench.state, VariantKey("site", name, ""), w.now)
    for left in ({"b", "c"}, {"c"}, set[str]()):
        await w.has("site", *left)
    await w.has("site", *names)
    kept = [
        n for n in names if w.bench.state.snapshot.variants[VariantKey("site", n, "")].latency is not None
    ]
    assert kept == ["b", "c"]


async def test_an_attempt_that_ends_after_its_model_left_measures_nothing():
    w = await world()
    state = w.bench.state
    await w.has("site", "new")
    state.begun(NEW, 1.0, w.now, "cam")
    await w.has("site")
    state.ended(NEW, Outcome.OK, 5.0, 1.0, 100, w.now, "cam")
    assert NEW not in state.snapshot.variants
    assert dict(state.snapshot.device_load) == {}
