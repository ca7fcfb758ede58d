"""Device groups in the request's path: which device is sent to, and what its failure means."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from tritonclient.grpc import service_pb2

from edgewire.places import Place, Tier
from gateway.core.config import Config, EndpointConfig
from gateway.core.decision import VariantKey
from gateway.core.errors import Refusal
from gateway.core.fleet import Device, group_of
from gateway.core.ports import Health, ModelHealth, RemoteSpan
from gateway.core.request import Options
from gateway.telemetry.spans import Span, Tracing
from oip.reasons import Reason
from tests.support.fakes import CODEC, Bench, bench, call_of, config_of, failure, response

CREDENTIAL = "what-camera-a-made-for-itself"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def device(name: str, site: str = "s1", *, ready: bool = True, connected: bool = True) -> Device:
    return Device(
        name,
        Place(Tier.DEVICE, site=site, device=name),
        connected,
        models=frozenset({("digits", "1")} if ready else ()),
        credential_sha256=hashlib.sha256(f"what-camera-{name}-made-for-itself".encode()).digest(),
    )


def grouped(privacy: str = "public", **retry: object) -> Config:
    """The model on a device group first, then in the cloud."""
    base = config_of()
    classes = base.privacy.model_dump(mode="json", exclude_none=True)
    classes["classes"]["site"] = {"allow": [{"tier": ["device", "site"], "same": ["site"]}]}
    classes["classes"]["relay"] = {"allow": [{"tier": ["site"]}, {"tier": ["device"], "same": ["device"]}]}
    variants = [{"endpoint": "cameras", "quality": 1.0}, {"endpoint": "cloud", "quality": 0.5}]
    return config_of(
        endpoints=[*base.endpoints, EndpointConfig(name="cameras", kind="edge")],
        models=[{"name": "digits", "privacy": privacy, "idempotent": True, "variants": variants}],
        privacy=classes,
        policies=[
            {"name": "all", "match": {}, "weights": {"quality": 1}, "retry": {"num_retries": 2, **retry}}
        ],
    )


async def fleet(b: Bench, *devices: Device) -> None:
    b.state.fleet("cameras", group_of(devices))


async def of(config: Config, *devices: Device) -> Bench:
    b = await bench(config)
    await fleet(b, *devices)
    return b


def fails_on(b: Bench, *names: str) -> None:
    cameras = b.endpoints["cameras"]

    async def behaviour(message: service_pb2.ModelInferRequest, timeout_s: float) -> bytes:
        if cameras.permits[-1].device in names:
            raise failure(Reason.UNAVAILABLE)
        return response(message.model_name)

    cameras.behaviour = behaviour


async def test_a_device_is_sent_to_in_its_own_place_and_named_in_the_record():
    b = await of(grouped(), device("a"))
    reply = await b.director.infer(call_of(), CODEC)
    headers = dict(reply.metadata)
    assert (headers["tidegate-endpoint"], headers["tidegate-tier"]) == ("cameras", "device")
    (permit,) = b.endpoints["cameras"].permits
    assert (permit.device, permit.place) == ("a", Place(Tier.DEVICE, site="s1", device="a"))
    assert permit.hops == ("gw",)
    record = b.records.get(headers["tidegate-decision"])
    assert record is not None
    assert [(a["endpoint"], a["device"]) for a in record["attempts"]] == [("cameras", "a")]


async def test_one_device_that_is_gone_is_followed_by_another_and_the_group_stays_up():
    b = await of(grouped(), device("a"), device("b"), device("c"))
    cameras = b.endpoints["cameras"]

    async def only_the_second(message: service_pb2.ModelInferRequest, timeout_s: float) -> bytes:
        if len(cameras.permits) == 1:
            raise failure(Reason.UNAVAILABLE)
        return response(message.model_name)

    cameras.behaviour = only_the_second
    reply = await b.director.infer(call_of(), CODEC)
    first, second = (permit.device for permit in cameras.permits)
    assert first != second
    assert dict(reply.metadata)["tidegate-attempts"] == "2"
    assert b.state.snapshot.endpoints["cameras"].up
    assert b.looked == ["cameras"]


async def test_without_another_device_the_next_place_answers_with_its_own_tier():
    b = await of(grouped(), device("a"))
    fails_on(b, "a")
    headers = dict((await b.director.infer(call_of(), CODEC)).metadata)
    assert (headers["tidegate-endpoint"], headers["tidegate-tier"]) == ("cloud", "cloud")


async def test_the_load_of_a_device_counts_while_its_attempt_runs():
    b = await of(grouped(), device("a"))
    asked, release = asyncio.Event(), asyncio.Event()

    async def slow(message: service_pb2.ModelInferRequest, timeout_s: float) -> bytes:
        asked.set()
        await release.wait()
        return response(message.model_name)

    b.endpoints["cameras"].behaviour = slow
    running = asyncio.create_task(b.director.infer(call_of(), CODEC))
    await asked.wait()
    assert dict(b.state.snapshot.device_load) == {"a": 1}
    release.set()
    await running
    assert dict(b.state.snapshot.device_load) == {}


@pytest.mark.parametrize("ending", ["cancelled", "failed"])
async def test_the_load_of_a_device_is_given_back_however_the_attempt_ends(ending: str):
    b = await of(grouped("site"), device("a"))
    asked = asyncio.Event()

    async def bad(message: service_pb2.ModelInferRequest, timeout_s: float) -> bytes:
        asked.set()
        if ending == "failed":
            raise failure(Reason.ENDPOINT_FAILED, retryable=False)
        await asyncio.Event().wait()
        return b""

    b.endpoints["cameras"].behaviour = bad
    task = asyncio.create_task(b.director.infer(call_of(), CODEC))
    await asked.wait()
    if ending == "cancelled":
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert dict(b.state.snapshot.device_load) == {}


async def test_same_site_reaches_no_device_of_another_site():
    b = await of(grouped("site"), device("z", "s9"))
    reply = await b.director.infer(call_of(), CODEC)
    assert reply.error is not None
    assert reply.error.reason is Reason.PRIVACY
    await fleet(b, device("z", "s9"), device("a", "s1"))
    for _ in range(8):
        assert (await b.director.infer(call_of(), CODEC)).error is None
    assert {permit.device for permit in b.endpoints["cameras"].permits} == {"a"}


async def test_a_device_that_asks_by_itself_is_its_datas_origin():
    b = await of(grouped("relay"), device("a"), device("b"))
    mine = [("authorization", f"Bearer {CREDENTIAL}")]
    for _ in range(4):
        assert (await b.director.infer(call_of(metadata=mine), CODEC)).error is None
    assert {permit.device for permit in b.endpoints["cameras"].permits} == {"a"}
    nobodys = await b.director.infer(call_of(), CODEC)
    assert nobodys.error is not None
    assert nobodys.error.reason is Reason.PRIVACY
    await fleet(b, device("a", connected=False), device("b"))
    away = await b.director.infer(call_of(metadata=mine), CODEC)
    assert away.error is not None
    assert away.error.reason is Reason.NO_CANDIDATE
    assert "device a is away" in away.error.message


async def test_a_wrong_credential_is_refused_before_the_body():
    b = await of(grouped(), device("a"))
    call = call_of(metadata=[("authorization", "Bearer nobody's")])
    reply = await b.director.infer(call, CODEC)
    assert reply.error is not None
    assert reply.error.reason is Reason.UNAUTHENTICATED
    assert not call.body.was_read  # type: ignore[attr-defined]


async def test_readiness_is_the_devices_to_say():
    b = await of(grouped("site"), device("a", ready=False))
    b.state.heard("cameras", Health(True, "", (ModelHealth("digits", "", True),)))
    assert not await b.director.model_ready("digits", "", Options())
    assert b.state.snapshot.variants[VariantKey("cameras", "digits", "")].ready is False
    await fleet(b, device("a"))
    assert await b.director.model_ready("digits", "", Options())
    assert b.director.ready()
    b.state.heard("cameras", Health(False, "the hub is gone"))
    assert not await b.director.model_ready("digits", "", Options())


@pytest.mark.parametrize(("site", "asked"), [("s1", True), ("s9", False)])
async def test_what_only_forbidden_devices_know_is_not_told(site: str, asked: bool):
    b = await of(grouped("site"), device("z", site))
    if asked:
        assert await b.director.model_metadata("digits", "", Options())
        return
    assert not await b.director.model_ready("digits", "", Options())
    for question in (b.director.model_metadata, b.director.model_config):
        with pytest.raises(Refusal) as refused:
            await question("digits", "", Options())
        assert refused.value.reason is Reason.NO_CANDIDATE


async def test_a_devices_work_is_in_the_trace_below_its_attempt():
    b = await of(grouped(), device("a"))
    spans: list[Span] = []
    b.telemetry.tracing = Tracing(spans.append, 0.0)
    cameras = b.endpoints["cameras"]

    async def telling(message: service_pb2.ModelInferRequest, timeout_s: float) -> bytes:
        now = asyncio.get_running_loop().time()
        cameras.permits[-1].tell(RemoteSpan("tidegate.agent.infer", now, now + 0.001))
        return response(message.model_name)

    cameras.behaviour = telling
    await b.director.infer(call_of(metadata=[("traceparent", TRACE)]), CODEC)
    by_name = {span.name: span for span in spans}
    assert by_name["tidegate.agent.infer"].parent_id == by_name["tidegate.attempt"].span_id
    assert by_name["tidegate.attempt"].attributes["tidegate.device"] == "a"


async def test_a_hub_that_is_gone_takes_only_its_own_group():
    b = await of(grouped(), device("a"))
    b.state.gone("cameras", "a")
    assert b.state.snapshot.endpoints["cameras"].up
    b.state.gone("cameras")
    assert not b.state.snapshot.endpoints["cameras"].up


async def test_a_request_that_several_devices_were_asked_for_counts_once():
    b = await of(grouped(), device("a"), device("b"))
    cameras = b.endpoints["cameras"]

    async def only_the_second(message: service_pb2.ModelInferRequest, timeout_s: float) -> bytes:
        if len(cameras.permits) == 1:
            raise failure(Reason.UNAVAILABLE)
        return response(message.model_name)

    cameras.behaviour = only_the_second
    assert (await b.director.infer(call_of(), CODEC)).error is None
    told = service_pb2.ModelStatisticsResponse.FromString(
        await b.director.statistics("digits", "", Options())
    )
    (entry,) = told.model_stats
    stats = entry.inference_stats
    assert (entry.version, entry.inference_count) == ("1", 1)
    assert (stats.success.count, stats.fail.count) == (1, 0)
