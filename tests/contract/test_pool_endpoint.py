"""The `pool` kind over real replicas on one Ray: the contract, and what is a pool's own."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2

from tests.support.quiet_ray import ray, serve  # isort: skip  # before anything that uses Ray
from gateway.backends._pool_keeper import PoolKeeper
from gateway.backends.pool import PoolEndpoint
from gateway.core.errors import AttemptError
from gateway.core.plugins import discover
from gateway.core.ports import Surroundings
from gateway.core.release import Release, Stage
from gateway.pool import deploy
from gateway.pool.config import PoolConfig
from gateway.pool.status import PoolStatus, read_status
from oip.infer import build_response, parse_request
from oip.reasons import Reason
from tests.contract.endpoint_suite import IDENTITY, AnswerSuite
from tests.support.configs import config_from
from tests.support.onnx_models import counting, doubling, identity, scaling
from tests.support.permits import PERMIT
from tests.support.triton import infer_body, output0
from tests.support.waiting import until

pytestmark = [
    pytest.mark.quiet,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]
CPUS = 16
"""That Ray is told of; replicas of these models take little of one."""
LIGHT = {"CPU": 1}


def _pool(name: str, runtime: str, replicas: dict[str, float], **keys: object) -> dict[str, object]:
    return {
        "name": name,
        "kind": "pool",
        "runtime": runtime,
        "replicas": replicas,
        "resources": LIGHT,
        "location": {"tier": "cloud"},
        **keys,
    }


POOLS = (
    _pool("steady", "openvino", {"min": 1, "max": 1, "target_ongoing": 50}),
    _pool("lazy", "onnxruntime", {"min": 0, "max": 2, "target_ongoing": 2}, downscale_s=1),
    _pool("broken", "onnxruntime", {"min": 1, "max": 1, "target_ongoing": 2}),
    _pool("moving", "onnxruntime", {"min": 1, "max": 2, "target_ongoing": 50}),
    _pool("asleep", "onnxruntime", {"min": 0, "max": 1, "target_ongoing": 50}, downscale_s=1),
    _pool("tpus", "onnxruntime", {"min": 3, "max": 3}, resources={"TPU": 1}),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pools")
    (folder / "identity.onnx").write_bytes(identity("N", "M"))
    (folder / "doubling.onnx").write_bytes(doubling())
    (folder / "scaled.onnx").write_bytes(scaling(1))
    (folder / "counting.onnx").write_bytes(counting())
    (folder / "broken.onnx").write_bytes(b"nonsense")
    return folder


@pytest.fixture(scope="module")
def surroundings(folder: Path) -> Surroundings:
    def variant(endpoint: str, artifact: str, **keys: object) -> dict[str, object]:
        return {"endpoint": endpoint, "artifact": str(folder / artifact), **keys}

    batching = {"max_size": 8, "delay_ms": 1}
    config = config_from(
        {
            "version": 1,
            "gateway": {"name": "gw", "location": {"tier": "cloud"}},
            "endpoints": [PoolConfig.model_validate(pool) for pool in POOLS],
            "models": [
                {"name": IDENTITY, "variants": [variant("steady", "identity.onnx")]},
                {
                    "name": "doubling",
                    "variants": [
                        variant("steady", "doubling.onnx", batching=batching),
                        variant("lazy", "doubling.onnx", batching=batching),
                        variant("broken", "broken.onnx"),
                        variant("tpus", "doubling.onnx"),
                    ],
                },
                {
                    "name": "scaled",
                    "variants": [variant("moving", "scaled.onnx"), variant("asleep", "scaled.onnx")],
                },
                {"name": "counting", "variants": [variant("steady", "counting.onnx")]},
                {"name": "damaged", "variants": [variant("steady", "broken.onnx")]},
            ],
            "privacy": {"default": "open", "classes": {"open": {"allow": [{"tier": ["cloud"]}]}}},
            "policies": [{"name": "default", "match": {}, "weights": {"latency": 1}}],
        }
    )
    return Surroundings(config, folder / "state", lambda name, group: None)


@pytest.fixture(scope="module")
def pools(surroundings: Surroundings) -> Iterator[Surroundings]:
    """Every pool deployed on a Ray of this module's own."""
    ray.init(
        address="local",
        num_cpus=CPUS,
        resources={"TPU": 2},
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        logging_level="ERROR",
    )
    try:
        serve.start(http_options={"location": "NoServer"}, logging_config={"log_level": "ERROR"})
        yield surroundings
        deploy.undeploy(surroundings.config)
        serve.shutdown()
    finally:
        ray.shutdown()


def _endpoint(pools: Surroundings, name: str) -> PoolEndpoint:
    declared = next(e for e in pools.config.endpoints if e.name == name)
    return PoolEndpoint(declared, pools)


async def _ready(endpoint: PoolEndpoint, model: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    health = await endpoint.health([(model, "")], 5)
    while not (health.up and health.models[0].ready) or "not looked at" in health.detail:
        assert time.monotonic() < deadline, health
        await asyncio.sleep(0.1)
        health = await endpoint.health([(model, "")], 5)


@asynccontextmanager
async def _started(pools: Surroundings, name: str, model: str = "doubling") -> AsyncIterator[PoolEndpoint]:
    """A started endpoint of a pool, once it says that it is up with the model ready."""
    endpoint = _endpoint(pools, name)
    await endpoint.start()
    try:
        await _ready(endpoint, model)
        yield endpoint
    finally:
        await endpoint.close()


async def _is(name: str, holds: object, timeout_s: float = 40) -> PoolStatus:
    """The pool's status, once it is so."""
    assert callable(holds)
    deadline = time.monotonic() + timeout_s
    while not holds(status := await asyncio.to_thread(read_status, name)):
        assert time.monotonic() < deadline, status
        await asyncio.sleep(0.1)
    return status


def _doubling(value: float, request_id: str = "") -> bytes:
    return infer_body("doubling", np.full((1, 4), value, np.float32), request_id=request_id)


def _counting(times: int) -> bytes:
    request = service_pb2.ModelInferRequest(model_name="counting")
    request.inputs.add(name="TIMES", datatype="INT64", shape=[1])
    request.raw_input_contents.append(np.array([times], np.int64).tobytes())
    return request.SerializeToString()


def _replicas(pool: str) -> list[psutil.Process]:
    """The processes of a pool's replicas, all children of this process's Ray."""
    title = f"ray::ServeReplica:tidegate-pool-{pool}:"
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline() and process.cmdline()[0].startswith(title):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


class PoolPlace:
    def __init__(self, pools: Surroundings, folder: Path) -> None:
        self._pools = pools
        self._session = discover("gateway.pool.runtimes")["onnxruntime"]().load(  # pyright: ignore
            (folder / "identity.onnx").read_bytes(), {"CPU": 1}
        )

    def endpoint(self) -> PoolEndpoint:
        return _endpoint(self._pools, "steady")

    async def straight(self, body: bytes) -> bytes:
        """The file run here, by the other runtime."""
        work = parse_request(body, self._session.signature)
        outputs = self._session.run(work.inputs)
        return build_response(IDENTITY, "1", work.id, outputs, self._session.signature)


class TestPool(AnswerSuite):
    kind = "pool"
    knows_its_models = True
    versions = ("1",)

    @pytest.fixture(scope="class")
    def place(self, pools: Surroundings, folder: Path) -> PoolPlace:
        return PoolPlace(pools, folder)

    @pytest.fixture
    async def endpoint(self, place: PoolPlace) -> AsyncIterator[PoolEndpoint]:
        endpoint = place.endpoint()
        await endpoint.start()
        await _ready(endpoint, IDENTITY)
        yield endpoint
        await endpoint.close()

    async def test_one_bad_file_takes_nothing_else_with_it(self, endpoint: PoolEndpoint):
        health = await endpoint.health([("damaged", ""), (IDENTITY, "")], 5)
        assert [model.ready for model in health.models] == [False, True]
        assert (
            health.detail
            == "damaged: openvino cannot open it (Unable to read the model. Please check if the model format is supported and model is correct)"
        )
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(infer_body("damaged", np.zeros((1, 1), np.float32)), (), 5, PERMIT)
        error = caught.value
        assert (error.reason, error.sent, error.retryable) == (Reason.MODEL_UNAVAILABLE, False, True)

    async def test_requests_that_come_together_run_together(self, endpoint: PoolEndpoint):
        await asyncio.gather(*(endpoint.infer(_doubling(n), (), 20, PERMIT) for n in range(32)))
        (entry,) = service_pb2.ModelStatisticsResponse.FromString(
            await endpoint.statistics("doubling", "", 5)
        ).model_stats
        assert entry.inference_count == 32
        assert 4 <= entry.execution_count < 32
        assert max(batch.batch_size for batch in entry.batch_stats) > 1

    async def test_what_batching_allows_is_in_the_configuration(self, endpoint: PoolEndpoint):
        config = service_pb2.ModelConfigResponse.FromString(
            await endpoint.model_config("doubling", "", 5)
        ).config
        assert (config.max_batch_size, list(config.input[0].dims)) == (8, [4])
        assert config.dynamic_batching.max_queue_delay_microseconds == 1000

    async def test_the_timeout_ends_a_call_and_what_was_given_up_never_runs(self, endpoint: PoolEndpoint):
        await endpoint.infer(_counting(1), (), 20, PERMIT)
        began = time.monotonic()
        await endpoint.infer(_counting(2000), (), 20, PERMIT)
        times = max(1, int(2000 * 0.7 / (time.monotonic() - began)))
        began = time.monotonic()
        await endpoint.infer(_counting(times), (), 20, PERMIT)
        once = time.monotonic() - began

        running = asyncio.create_task(endpoint.infer(_counting(times), (), 30, PERMIT))
        given_up = [asyncio.create_task(endpoint.infer(_counting(times), (), 30, PERMIT)) for _ in range(5)]
        began = time.monotonic()
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(_counting(times), (), once / 4, PERMIT)
        assert (caught.value.reason, caught.value.retryable) == (Reason.DEADLINE, False)
        for task in given_up:
            task.cancel()
        await asyncio.gather(*given_up, return_exceptions=True)
        await endpoint.infer(_counting(1), (), 30, PERMIT)
        # One run is under way; six more of them would take several times as long.
        assert time.monotonic() - began < 4 * once
        await running

    async def test_closing_ends_the_calls_that_run(self, place: PoolPlace):
        endpoint = place.endpoint()
        await endpoint.start()
        await _ready(endpoint, IDENTITY)
        call = asyncio.create_task(endpoint.infer(_counting(20_000), (), 60, PERMIT))
        await asyncio.wait({call}, timeout=0.3)
        await endpoint.close()
        with pytest.raises(AttemptError) as caught:
            await asyncio.wait_for(call, 5)
        assert caught.value.reason is Reason.UNAVAILABLE
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(_doubling(1), (), 5, PERMIT)
        assert (caught.value.reason, caught.value.sent) == (Reason.UNAVAILABLE, False)


async def test_from_zero_a_request_waits_for_the_first_replica_within_its_time(pools: Surroundings):
    async with _started(pools, "lazy") as endpoint:
        assert (await _is("lazy", lambda s: s.running + s.starting == 0)).deployed
        assert await endpoint.model_metadata("doubling", "", 1)
        began = time.monotonic()
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(_doubling(1), (), 0.2, PERMIT)
        assert caught.value.reason is Reason.DEADLINE
        assert caught.value.message == "Endpoint lazy had no replica running in time."
        assert time.monotonic() - began < 1.7
        began = time.monotonic()
        answer = await endpoint.infer(_doubling(4), (), 30, PERMIT)
        print(f"\nfrom zero: {time.monotonic() - began:.2f} s to the first answer")
        assert output0(answer, "float32").tolist() == [[8] * 4]


async def test_load_brings_a_second_replica_and_silence_takes_both(pools: Surroundings):
    async with _started(pools, "lazy") as endpoint:
        busy = True

        async def ask() -> None:
            while busy:
                await endpoint.infer(_doubling(1), (), 30, PERMIT)

        callers = [asyncio.create_task(ask()) for _ in range(10)]
        began = time.monotonic()
        await _is("lazy", lambda s: s.running == 2)
        up = time.monotonic()
        busy = False
        await asyncio.gather(*callers)
        await _is("lazy", lambda s: s.running == 0)
        print(
            f"\nsecond replica after {up - began:.1f} s of load, none after {time.monotonic() - up:.1f} s without"
        )
        assert (await endpoint.health([("doubling", "")], 1)).models[0].ready


async def test_more_than_may_wait_is_overload(pools: Surroundings):
    async with _started(pools, "lazy") as endpoint:
        await _is("lazy", lambda s: s.running + s.starting == 0)
        calls = [
            asyncio.create_task(endpoint.infer(_doubling(1), (), 30, PERMIT))
            for _ in range(deploy.QUEUED + 20)
        ]
        try:
            refused, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            errors = [task.exception() for task in refused]
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        assert 0 < len(errors) <= 20
        for error in errors:
            assert isinstance(error, AttemptError)
            assert (error.reason, error.sent, error.retryable) == (Reason.OVERLOADED, False, True)
        assert await endpoint.infer(_doubling(1), (), 30, PERMIT)


async def test_a_replica_killed_under_requests_fails_some_clearly_and_is_replaced(pools: Surroundings):
    async with _started(pools, "steady") as endpoint:
        (victim,) = _replicas("steady")
        ended: list[tuple[int, bytes | AttemptError, float]] = []

        async def ask(number: int) -> None:
            began = time.monotonic()
            try:
                answer: bytes | AttemptError = await endpoint.infer(_doubling(number), (), 10, PERMIT)
            except AttemptError as error:
                answer = error
            ended.append((number, answer, time.monotonic() - began))

        numbers = iter(range(200))

        async def caller() -> None:
            for number in numbers:
                await ask(number)

        callers = [asyncio.create_task(caller()) for _ in range(8)]
        await until(lambda: len(ended) >= 60)
        os.kill(victim.pid, signal.SIGKILL)
        killed = time.monotonic()
        await asyncio.gather(*callers)
        right = 0
        for number, answer, took in ended:
            assert took < 10 + 1.5
            if isinstance(answer, bytes):
                right += 1
                assert output0(answer, "float32").tolist() == [[2 * number] * 4]
            else:
                assert answer.reason in (Reason.MODEL_UNAVAILABLE, Reason.UNAVAILABLE, Reason.DEADLINE), (
                    answer
                )
        assert len(ended) == 200
        await _answers(endpoint)
        failed = [error for _, error, _ in ended if isinstance(error, AttemptError)]
        print(
            f"\nkill -9 amid 200: {right} right, {len(failed)} failed ({ {e.reason.value for e in failed} }), "
            f"slowest {max(took for *_, took in ended):.2f} s, answering again by {time.monotonic() - killed:.2f} s"
        )
        assert right >= 150
        (fresh,) = _replicas("steady")
        assert fresh.pid != victim.pid


async def test_a_pool_that_cannot_start_says_why_and_comes_up_once_it_can(pools: Surroundings, folder: Path):
    endpoint = _endpoint(pools, "broken")
    await endpoint.start()
    try:
        await _is("broken", lambda s: s.failed)
        said = "does not start: doubling: onnxruntime cannot open it (InvalidProtobuf); it is tried again"
        health = await endpoint.health([("doubling", "")], 5)
        deadline = time.monotonic() + 10
        while health.detail != said:
            assert time.monotonic() < deadline, health
            await asyncio.sleep(0.1)
            health = await endpoint.health([("doubling", "")], 5)
        assert not health.up
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(_doubling(1), (), 5, PERMIT)
        assert (caught.value.reason, caught.value.retryable) == (Reason.MODEL_UNAVAILABLE, True)
        (folder / "broken.onnx").write_bytes(doubling())
        mended = time.monotonic()
        await _answers(endpoint, 40)
        print(f"\nanswers {time.monotonic() - mended:.1f} s after its file was mended")
    finally:
        await endpoint.close()
        (folder / "broken.onnx").write_bytes(b"nonsense")


async def test_replicas_take_the_resources_they_are_given_and_no_more(pools: Surroundings):
    async with _started(pools, "tpus") as endpoint:
        await _is("tpus", lambda s: (s.running, s.starting) == (2, 1))
        assert ray.available_resources().get("TPU", 0) == 0
        assert len(_replicas("tpus")) == 2
        assert output0(await endpoint.infer(_doubling(3), (), 10, PERMIT), "float32")[0, 0] == 6
        os.kill(_replicas("tpus")[0].pid, signal.SIGKILL)
        # What one lets go the third takes, or the one that replaces it: never more than there is.
        await _is("tpus", lambda s: s.running < 2)
        await _is("tpus", lambda s: s.running == 2)
        assert len(_replicas("tpus")) == 2


async def _answers(endpoint: PoolEndpoint, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    answer = failure = None
    while answer is None and time.monotonic() < deadline:
        try:
            answer = await endpoint.infer(_doubling(5), (), 5, PERMIT)
        except AttemptError as error:
            failure = error
            await asyncio.sleep(0.1)
    assert answer is not None, f"still not answering: {failure}"
    assert output0(answer, "float32").tolist() == [[10] * 4]


def _release(version: str) -> Release:
    return Release("scaled", version, {}, int(version), Stage.PASSED)


@dataclass
class Asking:
    """Requests for the model `scaled`, whose version N gives N times its input."""

    endpoint: PoolEndpoint
    answered: Counter[str] = field(default_factory=Counter)

    async def ask(self, version: str = "") -> str:
        """The version that answered, held against what it answered."""
        body = infer_body("scaled", np.full((1, 4), 3, np.float32), version=version)
        answer = await self.endpoint.infer(body, (), 30, PERMIT)
        told = service_pb2.ModelInferResponse.FromString(answer).model_version
        assert output0(answer, "float32").tolist() == [[3.0 * int(told)] * 4]
        return told

    async def keep_asking(self) -> None:
        while True:
            self.answered[await self.ask()] += 1

    async def versions(self) -> tuple[str, ...]:
        health = await self.endpoint.health([("scaled", "")], 5)
        assert health.up, health
        return health.models[0].versions


async def test_a_pool_follows_releases_under_load_and_through_a_restart(pools: Surroundings):
    async with _started(pools, "moving", "scaled") as endpoint:
        load = Asking(endpoint)
        callers = [asyncio.create_task(load.keep_asking()) for _ in range(3)]
        assert await endpoint.follow("scaled", _release("1"), scaling(1), None) == ""
        assert await load.versions() == ("1",)
        assert await endpoint.follow("scaled", _release("2"), scaling(2), _golden(2)) == ""
        assert await load.versions() == ("2",)
        assert await load.ask() == await load.ask("2") == "2"
        with pytest.raises(AttemptError, match="'scaled' version '1' is not found"):
            await load.ask("1")
        for content, golden, says in (
            (b"nonsense", None, "it cannot be served: onnxruntime cannot open it (InvalidProtobuf)"),
            (identity("N", 4, name="other"), None, "it is not the same model: it has no input 'INPUT0'"),
            (scaling(3), _golden(2), "it cannot be served: golden case 0, output 'OUTPUT0': off by"),
        ):
            said = await endpoint.follow("scaled", _release("3"), content, golden)
            assert said.startswith(says)
            assert await load.versions() == ("2",)
        moving = asyncio.create_task(endpoint.follow("scaled", _release("3"), scaling(3), None))
        deadline = time.monotonic() + 60
        while await load.versions() == ("2",):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        # Amid the move either may be asked for, and its own file answers.
        assert {await load.ask("2"), await load.ask("3")} == {"2", "3"}
        moving.cancel()
        await asyncio.wait({moving})
        assert await endpoint.follow("scaled", _release("3"), scaling(3), None) == ""
        for caller in callers:
            caller.cancel()
        for ended in await asyncio.gather(*callers, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended
        assert set(load.answered) == {"1", "2", "3"}
    served = pools.state_dir / "pools" / "moving"
    assert len(list(served.iterdir())) == 3, "one model, and what is remembered"
    replicas = {process.pid for process in _replicas("moving")}
    async with _started(pools, "moving", "scaled") as endpoint:
        load = Asking(endpoint)
        assert await load.ask() == "3"
        assert replicas & {process.pid for process in _replicas("moving")}, (
            "a new data plane replaces nothing"
        )
        assert await endpoint.follow("scaled", _release("1"), scaling(1), None) == ""
        assert await load.ask() == "1"


async def test_a_pool_at_zero_follows(pools: Surroundings):
    async with _started(pools, "asleep", "scaled") as endpoint:
        load = Asking(endpoint)
        assert await endpoint.follow("scaled", _release("5"), scaling(5), None) == ""
        assert await load.versions() == ("5",)
        assert (await _is("asleep", lambda s: s.deployed)).running == 0
        assert await load.ask() == "5"


@pytest.mark.skipif("TIDEGATE_KILLS" not in os.environ, reason="set TIDEGATE_KILLS")
async def test_of_two_data_planes_one_moves_a_pool_and_the_other_goes_along(
    pools: Surroundings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """And when the one that leads has ended the other one leads, from where it was."""
    both = replace(pools, shared=tmp_path)
    deployed, by = PoolKeeper._deploy, list[PoolKeeper]()

    async def seen(self: PoolKeeper, pool: PoolConfig) -> None:
        by.append(self)
        await deployed(self, pool)

    monkeypatch.setattr(PoolKeeper, "_deploy", seen)
    async with AsyncExitStack() as second:
        async with _started(both, "asleep", "scaled") as one:
            other = await second.enter_async_context(_started(both, "asleep", "scaled"))
            loads = [Asking(one), Asking(other)]
            callers = [asyncio.create_task(load.keep_asking()) for load in loads]
            for _ in range(2):
                told = [place.follow("scaled", _release("6"), scaling(6), None) for place in (one, other)]
                assert await asyncio.gather(*told) == ["", ""]
            assert [await load.ask() for load in loads] == ["6", "6"]
            for caller in callers:
                caller.cancel()
            for ended in await asyncio.gather(*callers, return_exceptions=True):
                assert isinstance(ended, asyncio.CancelledError), ended
            assert set(by) == {one._keeper}
        await until(lambda: other._keeper in by)
        assert await other.follow("scaled", _release("7"), scaling(7), None) == ""
        assert await Asking(other).ask() == "7"
        assert set(by) == {one._keeper, other._keeper}


def _golden(by: int) -> bytes:
    file = io.BytesIO()
    given = np.full((2, 4), 2, np.float32)
    np.savez(file, **{"0/input/INPUT0": given, "0/output/OUTPUT0": given * by}, tolerance=np.float64(1e-6))
    return file.getvalue()
