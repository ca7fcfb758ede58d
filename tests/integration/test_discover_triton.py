"""A gateway that offers whatever a real Triton has, while that loads, unloads, fails and dies."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from gateway.backends.oip import OipConfig, OipEndpoint
from gateway.cli.main import run
from gateway.core.config import Location
from gateway.core.place import Tier
from gateway.demo.triton import TritonServer
from tests.support.gateway import running_gateway
from tests.support.permits import ALONE, PERMIT
from tests.support.replica import Replica
from tests.support.triton import REPOSITORY, infer_body, output0, slow_body
from tests.support.waiting import until_true

FIXED = "id2d_fp32"
COMES = "simple"
SLOW = "slow_identity"
BROKEN = "broken"
CONFIG = """
version: 1
gateway: {{name: gw, location: {{tier: cloud, region: eu}}}}
endpoints:
  - {{name: t, kind: triton, url: "grpc://127.0.0.1:{port}", location: {{tier: cloud, region: {region}}}, discover: {{privacy: {privacy}}}}}
privacy:
  default: everywhere
  classes:
    everywhere: {{allow: [{{tier: [device, site, regional, cloud]}}]}}
    eu-only: {{allow: [{{tier: [device, site]}}, {{tier: cloud, region: eu}}]}}
policies:
  - {{name: simple-ones, match: {{models: ["simp*"]}}, weights: {{latency: 1}}}}
  - {{name: default, match: {{}}, weights: {{latency: 1}}}}
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three of the fixture models, and one that cannot be loaded."""
    folder = tmp_path_factory.mktemp("repository")
    for name in (FIXED, COMES, SLOW):
        shutil.copytree(REPOSITORY / name, folder / name)
    shutil.copytree(REPOSITORY / FIXED, folder / BROKEN)
    config = folder / BROKEN / "config.pbtxt"
    config.write_text(config.read_text().replace(FIXED, BROKEN))
    (folder / BROKEN / "1" / "model.py").write_text("raise RuntimeError('it does not load')\n")
    return folder


@pytest.fixture(scope="module")
def triton(repository: Path) -> Iterator[TritonServer]:
    with TritonServer(repository, load=[FIXED]) as server:
        yield server


@pytest.fixture(scope="module")
def replica(triton: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    text = CONFIG.format(port=triton.grpc_port, region="eu", privacy="eu-only")
    found = Replica(text, tmp_path_factory.mktemp("gw")).start()
    yield found
    found.kill()


@pytest.fixture
def client(replica: Replica) -> Iterator[triton_grpc.InferenceServerClient]:
    with triton_grpc.InferenceServerClient(replica.grpc) as client:
        yield client


@pytest.fixture
def direct(triton: TritonServer) -> Iterator[triton_grpc.InferenceServerClient]:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{triton.grpc_port}") as client:
        yield client


def add(client: triton_grpc.InferenceServerClient, privacy: str | None = None) -> list[int]:
    """What `simple` makes of 1..16 and 1: their sums."""
    inputs = []
    for name, value in (("INPUT0", np.arange(16, dtype=np.int32)), ("INPUT1", np.ones(16, np.int32))):
        inputs.append(triton_grpc.InferInput(name, [1, 16], "INT32"))
        inputs[-1].set_data_from_numpy(value.reshape(1, 16))
    headers = None if privacy is None else {"tidegate-privacy": privacy}
    return client.infer(COMES, inputs, headers=headers).as_numpy("OUTPUT0").ravel().tolist()


def refusal(client: triton_grpc.InferenceServerClient, privacy: str | None = None) -> tuple[str, str]:
    """Status and message of a request that is refused."""
    with pytest.raises(InferenceServerException) as caught:
        add(client, privacy)
    return caught.value.status().removeprefix("StatusCode."), caught.value.message()


def test_a_model_is_there_as_soon_as_the_gateway_is(
    replica: Replica, client: triton_grpc.InferenceServerClient
):
    assert client.is_model_ready(FIXED)
    assert client.get_model_metadata(FIXED).name == FIXED
    assert client.get_model_config(FIXED).config.name == FIXED
    assert httpx.get(f"http://{replica.http}/v2/models/{FIXED}").json()["inputs"][0]["shape"] == [-1, -1]
    assert client.is_server_ready()


def test_loaded_it_is_answered_and_unloaded_it_is_unknown(
    client: triton_grpc.InferenceServerClient, direct: triton_grpc.InferenceServerClient
):
    assert not client.is_model_ready(COMES)
    unknown = ("NOT_FOUND", f"Request for unknown model: '{COMES}' is not found")
    assert refusal(client) == unknown
    direct.load_model(COMES)
    until_true(lambda: client.is_model_ready(COMES))
    assert add(client) == list(range(1, 17))
    # It is held against the model before it is sent, as for any other.
    one = triton_grpc.InferInput("INPUT0", [1, 16], "INT32")
    one.set_data_from_numpy(np.zeros((1, 16), np.int32))
    with pytest.raises(InferenceServerException, match="expected 2 inputs but got 1 inputs"):
        client.infer(COMES, [one])
    direct.load_model(COMES)
    assert add(client) == list(range(1, 17))
    direct.unload_model(COMES)
    until_true(lambda: not client.is_model_ready(COMES))
    assert refusal(client) == unknown
    assert client.is_model_ready(FIXED)


def test_an_operator_loads_what_the_server_has_not_loaded(
    replica: Replica, client: triton_grpc.InferenceServerClient
):
    def states() -> dict[str, str]:
        return {model.name: model.state for model in client.get_model_repository_index().models}

    assert states() == {FIXED: "READY", COMES: "UNAVAILABLE", SLOW: "UNAVAILABLE", BROKEN: "UNAVAILABLE"}
    for _ in range(2):
        client.load_model(COMES)
        assert client.is_model_ready(COMES)
        assert add(client) == list(range(1, 17))
        client.unload_model(COMES)
        assert not client.is_model_ready(COMES)
        assert states()[COMES] == "UNAVAILABLE"
    with pytest.raises(InferenceServerException, match=f"Model '{BROKEN}' was not loaded on t: load failed"):
        client.load_model(BROKEN)
    with pytest.raises(
        InferenceServerException, match=r"^\[.*\] Request for unknown model: failed to load 'no"
    ):
        client.load_model("nobody")


def test_a_model_that_does_not_load_is_never_on_offer(
    client: triton_grpc.InferenceServerClient, direct: triton_grpc.InferenceServerClient
):
    with pytest.raises(InferenceServerException):
        direct.load_model(BROKEN)
    states = {model.name: model.state for model in direct.get_model_repository_index().models}
    assert states[BROKEN] == "UNAVAILABLE"
    direct.load_model(COMES)
    until_true(lambda: client.is_model_ready(COMES))  # so the index was read after the failure
    assert not client.is_model_ready(BROKEN)
    direct.unload_model(COMES)
    until_true(lambda: not client.is_model_ready(COMES))


async def test_requests_in_flight_outlive_their_model(replica: Replica, triton: TritonServer):
    async with (
        grpc.aio.insecure_channel(replica.grpc) as gateway,
        triton_aio.InferenceServerClient(f"127.0.0.1:{triton.grpc_port}") as direct,
    ):
        service = "/inference.GRPCInferenceService/"
        ready = gateway.unary_unary(f"{service}ModelReady")
        infer = gateway.unary_unary(f"{service}ModelInfer")

        async def is_ready() -> bool:
            answer = await ready(service_pb2.ModelReadyRequest(name=SLOW).SerializeToString())
            return service_pb2.ModelReadyResponse.FromString(answer).ready

        async def wait_for(wanted: bool) -> None:
            async with asyncio.timeout(15):
                while True:
                    if await is_ready() is wanted:
                        return
                    await asyncio.sleep(0.02)

        await direct.load_model(SLOW)
        await wait_for(True)
        calls = [
            asyncio.ensure_future(infer(slow_body(5, f"r{number}", number), timeout=20))
            for number in range(3)
        ]
        done, _ = await asyncio.wait(calls, timeout=1.0)  # for them to reach the model
        assert not done
        await direct.unload_model(SLOW)
        await wait_for(False)
        assert not any(call.done() for call in calls)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer(slow_body(0))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        answers = await asyncio.gather(*calls)
        assert [output0(answer, "int32").tolist() for answer in answers] == [[0], [1], [2]]


def test_a_server_that_dies_keeps_its_models_known_and_one_that_returns_without_them_does_not(
    repository: Path, tmp_path: Path
):
    server = TritonServer(repository, load=[COMES])
    server.start()
    text = CONFIG.format(port=server.grpc_port, region="eu", privacy="eu-only")
    found = Replica(text, tmp_path / "gw").start()
    try:
        with triton_grpc.InferenceServerClient(found.grpc) as client:
            assert add(client) == list(range(1, 17))
            server.kill()
            until_true(lambda: refusal(client)[0] == "UNAVAILABLE")
            assert refusal(client)[0] == "UNAVAILABLE"
            server._load = ()
            server.start()
            until_true(lambda: refusal(client)[0] == "NOT_FOUND")
            with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as direct:
                direct.load_model(COMES)
            until_true(lambda: client.is_model_ready(COMES))
            assert add(client) == list(range(1, 17))
    finally:
        found.kill()
        server.kill()


def test_what_is_discovered_is_sent_nowhere_that_its_class_forbids(
    triton: TritonServer, direct: triton_grpc.InferenceServerClient, tmp_path: Path
):
    """The class of its models forbids the server's own place: they are known, and nothing goes there."""
    direct.load_model(COMES)
    text = CONFIG.format(port=triton.grpc_port, region="us", privacy="eu-only")
    found = Replica(text, tmp_path / "gw").start()

    def received() -> int:
        (stats,) = direct.get_inference_statistics(COMES).model_stats
        return stats.inference_stats.success.count + stats.inference_stats.fail.count

    try:
        with triton_grpc.InferenceServerClient(found.grpc) as client:
            before = received()
            for privacy in (None, "everywhere", "eu-only"):
                status, message = refusal(client, privacy)
                assert status == "PERMISSION_DENIED"
                assert message.startswith(f"No endpoint of model '{COMES}' is in a place that")
            assert not client.is_model_ready(COMES)
            assert received() == before
    finally:
        found.kill()
        direct.unload_model(COMES)


async def test_a_triton_is_an_oip_server_whose_own_words_on_its_models_count(triton: TritonServer):
    place = Location(tier=Tier.CLOUD)
    url = f"grpc://127.0.0.1:{triton.grpc_port}"
    endpoint = OipEndpoint(OipConfig(name="o", kind="oip", url=url, location=place), ALONE)
    await endpoint.start()
    try:
        await until_up(endpoint)
        assert FIXED in await endpoint.ready_models(5)
        config = service_pb2.ModelConfigResponse.FromString(await endpoint.model_config(FIXED, "", 5))
        assert config.config.backend == "python"
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{triton.grpc_port}") as direct:
            before = (await direct.get_inference_statistics(FIXED)).model_stats[0].inference_count
            answer = await endpoint.infer(infer_body(FIXED, np.ones((1, 2), np.float32)), (), 10, PERMIT)
        assert output0(answer, "float32").tolist() == [[1, 1]]
        told = service_pb2.ModelStatisticsResponse.FromString(await endpoint.statistics(FIXED, "", 5))
        assert told.model_stats[0].inference_count == before + 1
        assert told.model_stats[0].inference_stats.compute_infer.ns > 0
    finally:
        await endpoint.close()


async def until_up(endpoint: OipEndpoint) -> None:
    async with asyncio.timeout(15):
        while True:
            if (await endpoint.health([], 5)).up:
                return
            await asyncio.sleep(0.02)


def test_operators_see_what_is_discovered(
    triton: TritonServer,
    direct: triton_grpc.InferenceServerClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    direct.load_model(COMES)
    text = CONFIG.format(port=triton.grpc_port, region="eu", privacy="eu-only")
    try:
        with running_gateway(text, tmp_path / "gw") as gateway:
            assert gateway.endpoints == {"t": ""}
            (endpoint,) = gateway.get("/api/v1/endpoints")
            assert endpoint["discover"] == {"privacy": "eu-only", "offered": 2, "left_out": 0}
            assert (endpoint["up"], endpoint["detail"]) == (True, "")
            told = {model["model"]: model for model in endpoint["models"]}
            assert told[COMES]["ready"]
            assert told[COMES]["statistics"][0]["name"] == COMES
            models: dict[str, Any] = {model["name"]: model for model in gateway.get("/api/v1/models")}
            assert list(models) == [FIXED, COMES]
            shown = models[COMES]
            assert (shown["discovered"], shown["privacy"], shown["idempotent"]) == (True, "eu-only", False)
            assert [(v["endpoint"], v["ready"]) for v in shown["variants"]] == [("t", True)]
            url = ["--url", f"http://{gateway.http}"]
            assert run(["route", "--model", COMES, *url]) == 0
            assert "simple: t (privacy eu-only, policy simple-ones)" in capsys.readouterr().out
            assert run(["models", "list", *url]) == 0
            assert "discovered" in capsys.readouterr().out
            assert run(["models", "show", COMES, *url]) == 0
            said = f"{COMES} was discovered at t and is in class eu-only: it has no releases"
            assert said in capsys.readouterr().out
            direct.unload_model(COMES)
            gateway.wait(lambda: len(gateway.get("/api/v1/models")) == 1)
            with pytest.raises(SystemExit, match="2"):
                run(["route", "--model", COMES, *url])
            assert f"Request for unknown model: '{COMES}' is not found" in capsys.readouterr().err
    finally:
        direct.unload_model(COMES)
