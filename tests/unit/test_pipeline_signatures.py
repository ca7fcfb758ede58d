"""A request is held against what its model takes, and a signature that has grown old refuses nobody."""

from __future__ import annotations

import asyncio

import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

from gateway.core.decision import VariantKey
from gateway.core.errors import AttemptError, Refusal
from gateway.core.ports import Health, ModelHealth, Permit
from gateway.core.request import Options
from gateway.pipeline import monitor as monitor_module
from gateway.pipeline.monitor import Monitor
from gateway.pipeline.signatures import Signatures, ask_signature
from gateway.pipeline.state import ReplicaState
from oip.errors import OipError
from oip.reasons import Reason
from oip.signature import Signature, TensorSpec
from tests.support.fakes import CODEC, Bench, FakeEndpoint, bench, call_of, config_of, request
from tests.support.waiting import until

KEY = VariantKey("site", "digits", "")
TWO = Signature((TensorSpec("x", "FP32", (2,)),), ())
OTHER = Signature((TensorSpec("y", "FP32", (2,)),), ())


class Telling(FakeEndpoint):
    """Says that its model takes one FP32 input of this name; counts the questions."""

    def __init__(self, name: str = "x", *, config: Reason | None = None) -> None:
        super().__init__(config_of().endpoints[0])
        self.input = name
        self.config = config
        self.down = False
        self.questions = 0
        self.versions: list[str] = []
        self.release = asyncio.Event()
        self.release.set()

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
        self.questions += 1
        self.versions.append(version)
        await self.release.wait()
        if self.down:
            raise _error(Reason.UNAVAILABLE)
        answer = service_pb2.ModelMetadataResponse(name=model, versions=["1"])
        answer.inputs.add(name=self.input, datatype="FP32", shape=[2])
        return answer.SerializeToString()

    async def model_config(self, model: str, version: str, timeout_s: float) -> bytes:
        if self.config is not None:
            raise _error(self.config)
        config = model_config_pb2.ModelConfig(name=model)
        config.input.add(name=self.input, data_type=model_config_pb2.TYPE_FP32, dims=[2], optional=True)
        return service_pb2.ModelConfigResponse(config=config).SerializeToString()


def _error(reason: Reason) -> AttemptError:
    return AttemptError(reason, "no", grpc_status="UNKNOWN", sent=True, retryable=False)


async def test_a_signature_is_made_of_metadata_and_configuration():
    signature = await ask_signature(Telling(), "digits", "")
    assert signature is not None
    assert [(spec.name, spec.optional) for spec in signature.inputs] == [("x", True)]


async def test_an_endpoint_without_configurations_has_a_signature_all_the_same():
    signature = await ask_signature(Telling(config=Reason.NOT_SERVED), "digits", "")
    assert signature is not None
    assert [(spec.name, spec.shape) for spec in signature.inputs] == [("x", (2,))]


@pytest.mark.parametrize("config", [Reason.DEADLINE, Reason.UNAVAILABLE])
async def test_half_an_answer_is_no_signature(config: Reason):
    """It would not know the largest batch, and an endpoint in trouble says more a moment later."""
    assert await ask_signature(Telling(config=config), "digits", "") is None


async def test_metadata_that_cannot_be_read_is_no_signature():
    endpoint = Telling()

    async def garbage(model: str, version: str, timeout_s: float) -> bytes:
        return b"\xff\xff"

    endpoint.model_metadata = garbage  # type: ignore[method-assign]
    assert await ask_signature(endpoint, "digits", "") is None


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def held(endpoint: Telling, signature: Signature | None, clock: Clock) -> tuple[Signatures, ReplicaState]:
    state = ReplicaState(config_of(), "r")
    state.learnt(KEY, signature, clock.now)
    return Signatures(state, {"site": endpoint}, clock), state


async def test_what_fits_is_asked_of_nobody():
    endpoint, clock = Telling(), Clock()
    signatures, _ = held(endpoint, TWO, clock)
    clock.now += 60
    await signatures.check(KEY, request(), "digits")
    assert endpoint.questions == 0


async def test_what_is_not_known_is_not_checked():
    endpoint, clock = Telling(), Clock()
    signatures, _ = held(endpoint, None, clock)
    await signatures.check(KEY, request(), "digits")
    assert endpoint.questions == 0


async def test_a_fresh_signature_refuses_at_once():
    endpoint, clock = Telling(), Clock()
    signatures, _ = held(endpoint, OTHER, clock)
    clock.now += 1.0
    with pytest.raises(OipError) as caught:
        await signatures.check(KEY, request(), "digits")
    assert caught.value.reason is Reason.MALFORMED
    assert endpoint.questions == 0


async def test_a_model_that_was_reloaded_is_asked_again_before_anyone_is_refused():
    endpoint, clock = Telling(), Clock()
    signatures, state = held(endpoint, OTHER, clock)
    clock.now += 1.1
    await signatures.check(KEY, request(), "digits")
    assert endpoint.questions == 1
    found = state.snapshot.variants[KEY].signature
    assert found is not None
    assert found.inputs[0].name == "x"
    assert state.learnt_at(KEY) == clock.now


async def test_one_that_still_refuses_has_been_asked_once():
    endpoint, clock = Telling("y"), Clock()
    signatures, _ = held(endpoint, OTHER, clock)
    clock.now += 5
    for _ in range(3):
        with pytest.raises(OipError):
            await signatures.check(KEY, request(), "digits")
    assert endpoint.questions == 1


async def test_an_endpoint_that_no_longer_says_refuses_nobody():
    endpoint, clock = Telling(), Clock()
    endpoint.down = True
    signatures, state = held(endpoint, OTHER, clock)
    clock.now += 5
    await signatures.check(KEY, request(), "digits")
    assert state.snapshot.variants[KEY].signature is None


async def test_refusals_at_once_share_a_question_that_outlives_the_first_to_leave():
    endpoint, clock = Telling(), Clock()
    signatures, _ = held(endpoint, OTHER, clock)
    clock.now += 5
    endpoint.release.clear()
    tasks = [asyncio.create_task(signatures.check(KEY, request(), "digits")) for _ in range(5)]
    await until(lambda: endpoint.questions == 1)
    tasks[0].cancel()
    await asyncio.sleep(0)
    endpoint.release.set()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(ended[0], asyncio.CancelledError)
    assert ended[1:] == [1] * 4
    assert endpoint.questions == 1


async def test_nothing_is_left_running():
    endpoint, clock = Telling(), Clock()
    signatures, _ = held(endpoint, OTHER, clock)
    clock.now += 5
    endpoint.release.clear()
    waiting = asyncio.create_task(signatures.check(KEY, request(), "digits"))
    await until(lambda: endpoint.questions == 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await signatures.close()
    assert [task.get_name() for task in asyncio.all_tasks() if "signature" in task.get_name()] == []


async def learned(signature: Signature, key: VariantKey = KEY) -> Bench:
    b = await bench()
    b.state.learnt(key, signature, asyncio.get_running_loop().time())
    return b


async def test_the_director_sends_nothing_that_does_not_fit():
    b = await learned(OTHER)
    reply = await b.director.infer(call_of(), CODEC)
    assert reply.error is not None
    assert reply.error.reason is Reason.MALFORMED
    headers = dict(reply.metadata)
    assert (headers["tidegate-attempts"], headers["tidegate-policy"]) == ("0", "all")
    assert "tidegate-endpoint" not in headers
    assert not any(endpoint.seen for endpoint in b.endpoints.values())


async def test_another_version_than_the_signatures_is_the_endpoints_to_judge():
    b = await learned(OTHER)
    reply = await b.director.infer(call_of(request(version="7")), CODEC)
    assert reply.error is None
    assert b.endpoints["site"].seen


@pytest.mark.parametrize("told", ["x", "y"])
async def test_a_version_that_the_caller_names_is_held_against_what_it_takes(told: str):
    endpoint, clock = Telling(told), Clock()
    signatures, _ = held(endpoint, OTHER, clock)
    if told == "x":
        await signatures.check(KEY, request(version="7"), "digits", "7")
    else:
        with pytest.raises(OipError) as refused:
            await signatures.check(KEY, request(version="7"), "digits", "7")
        assert refused.value.reason is Reason.MALFORMED
    assert endpoint.versions == ["7"]


class Relaying(Telling):
    """A gateway: what it is asked without a permit, it asks of any place that it knows."""

    def __init__(self) -> None:
        super().__init__()
        self.under_permits: list[Permit] = []

    def under(self, permit: Permit) -> Telling:
        self.under_permits.append(permit)
        return Telling("x")


async def test_a_callers_version_goes_no_farther_than_its_request():
    b = await learned(OTHER)
    b.endpoints["site"] = relay = Relaying()
    reply = await b.director.infer(call_of(request(version="7"), privacy="eu"), CODEC)
    assert reply.error is None
    [permit] = relay.under_permits
    assert permit.allowed.encode() == "tier=device+site,tier=cloud;region=eu"
    assert (permit.place, permit.hops) == (b.config.endpoints[0].place, ("gw",))
    assert relay.versions == []


async def test_a_version_that_the_endpoint_has_not_is_its_own_to_refuse():
    endpoint, clock = Telling(), Clock()
    endpoint.down = True
    signatures, _ = held(endpoint, OTHER, clock)
    await signatures.check(KEY, request(version="7"), "digits", "7")
    await signatures.close()


async def test_a_bad_request_for_the_version_that_is_there_is_not_sent():
    b = await learned(OTHER)
    b.endpoints["site"].model_metadata = Telling("y").model_metadata
    reply = await b.director.infer(call_of(request(version="1")), CODEC)
    assert reply.error is not None
    assert reply.error.reason is Reason.MALFORMED
    assert not any(endpoint.seen for endpoint in b.endpoints.values())


async def test_an_endpoint_that_tells_its_versions_is_asked_for_no_other():
    base = config_of()
    models = [{**base.models[0].model_dump(), "variants": [{"endpoint": "site", "artifact": "digits.onnx"}]}]
    b = await bench(config_of(models=models))
    b.state.learnt(KEY, OTHER, asyncio.get_running_loop().time())
    b.state.heard("site", Health(True, "", (ModelHealth("digits", "", True, ("2", "3")),)))
    reply = await b.director.infer(call_of(request(version="3")), CODEC)
    assert reply.error is not None
    assert reply.error.reason is Reason.MALFORMED
    assert await b.director.model_ready("digits", "2", Options())
    reply = await b.director.infer(call_of(request(version="1")), CODEC)
    assert reply.error is not None
    assert reply.error.reason is Reason.UNKNOWN_VERSION
    with pytest.raises(Refusal, match="version 1 is not found"):
        await b.director.model_ready("digits", "1", Options())


async def test_only_the_chosen_places_signature_counts():
    b = await learned(OTHER, VariantKey("far", "digits", ""))
    assert (await b.director.infer(call_of(), CODEC)).error is None


class Watched:
    """A monitor over an endpoint; what it learnt, in order."""

    def __init__(self, endpoint: Telling) -> None:
        self.learnt: list[tuple[str, str, Signature | None]] = []
        self.health = Health(True, "", (ModelHealth("digits", "", True),))
        self.reports = 0
        self.monitor = Monitor(endpoint, [("digits", "")], self._report, lambda *it: self.learnt.append(it))
        endpoint.health = self._health  # type: ignore[method-assign]

    def _report(self, health: Health) -> None:
        self.reports += 1

    async def _health(self, models: object, timeout_s: float) -> Health:
        return self.health


async def test_a_look_learns_a_model_that_is_ready_once(monkeypatch: pytest.MonkeyPatch):
    endpoint = Telling()
    watched = Watched(endpoint)
    for _ in range(3):
        await watched.monitor.look()
    assert [(model, version) for model, version, _ in watched.learnt] == [("digits", "")]
    monkeypatch.setattr(monitor_module, "SIGNATURES_S", 0.0)
    await watched.monitor.look()
    assert len(watched.learnt) == 2


@pytest.mark.parametrize(
    "gap",
    [Health(False, "gone"), Health(True, "", (ModelHealth("digits", "", False),))],
    ids=["down", "unready"],
)
async def test_a_model_that_comes_back_is_learnt_anew(gap: Health):
    watched = Watched(Telling())
    await watched.monitor.look()
    ready, watched.health = watched.health, gap
    await watched.monitor.look()
    assert len(watched.learnt) == 1
    watched.health = ready
    await watched.monitor.look()
    assert len(watched.learnt) == 2


async def test_a_slow_answer_about_signatures_holds_up_no_look():
    endpoint = Telling()
    endpoint.release.clear()
    watched = Watched(endpoint)
    watched.monitor.start()
    await until(lambda: endpoint.questions == 1)
    before = watched.reports
    watched.monitor.look_now()
    await until(lambda: watched.reports > before)
    assert endpoint.questions == 1
    await watched.monitor.close()
    assert watched.learnt == []


async def test_who_waits_for_a_look_is_told_of_one_that_began_after_it_asked():
    """The look that is under way when it asks may have seen what was before."""
    watched = Watched(Telling())
    under_way, released = asyncio.Event(), asyncio.Semaphore(0)

    async def health(models: object, timeout_s: float) -> Health:
        under_way.set()
        await released.acquire()
        return watched.health

    watched.monitor._endpoint.health = health  # type: ignore[method-assign]
    watched.monitor.start()
    await under_way.wait()
    waiting = asyncio.create_task(watched.monitor.look_anew())
    await asyncio.sleep(0)
    under_way.clear()
    released.release()
    await under_way.wait()
    assert (watched.reports, waiting.done()) == (1, False)
    released.release()
    await waiting
    assert watched.reports == 2
    under_way.clear()
    cut = asyncio.create_task(watched.monitor.look_anew())
    await under_way.wait()
    await watched.monitor.close()
    with pytest.raises(asyncio.CancelledError):
        await cut


async def test_an_endpoint_that_breaks_its_promise_ends_no_monitor():
    endpoint = Telling()

    async def raises(model: str, version: str, timeout_s: float) -> bytes:
        raise ValueError("not an AttemptError")

    endpoint.model_metadata = raises  # type: ignore[method-assign]
    watched = Watched(endpoint)
    await watched.monitor.look()
    assert watched.learnt == [("digits", "", None)]
