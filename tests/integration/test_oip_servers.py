"""Real MLServer and KServe behind the gateway. Only with TIDEGATE_SERVERS=1: see tests/support/environments.py.

`tests/integration/test_oip_gateway.py` asks the same of a server of ours that behaves like them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2

from tests.support.environments import WANTED, EnvironmentMissing, wanted
from tests.support.oip_gateway import Front, gateway_to, request
from tests.support.oip_server import SERVICE
from tests.support.oip_servers import running

pytestmark = pytest.mark.skipif(not wanted(), reason=f"makes large environments: set {WANTED}=1")
pb: Any = service_pb2
FLOATS = np.array([[0.5, -0.0, 3.25]], np.float32)
MODELS = {
    "mlserver": ["id2d_fp32", "typed_bytes", "untold_fp32", "boom"],
    "kserve": ["id2d_fp32", "typed_fp32", "typed_bytes", "mixed_fp32", "untold_fp32", "boom"],
}


@pytest.fixture(scope="module", params=MODELS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, int]]:
    try:
        with running(request.param, tmp_path_factory.mktemp(request.param)) as port:
            yield request.param, port
    except EnvironmentMissing as missing:
        pytest.skip(f"{request.param} cannot be had here: {missing}")


@pytest.fixture
async def front(server: tuple[str, int], tmp_path: Path) -> AsyncIterator[Front]:
    flavour, port = server
    async with gateway_to(port, [*MODELS[flavour], "gone"], tmp_path) as found:
        yield found


@asynccontextmanager
async def discovering(server: tuple[str, int], folder: Path) -> AsyncIterator[Front]:
    async with gateway_to(server[1], [], folder) as found:
        yield found


def outputs(answer: Any) -> dict[str, bytes]:
    return {o.name: raw for o, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)}


def test_it_listens_on_loopback_alone(server: tuple[str, int]):
    listening = [
        c.laddr
        for p in psutil.Process().children(recursive=True)
        for c in p.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN
    ]
    assert server[1] in {address.port for address in listening}
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


@pytest.mark.parametrize("typed", [False, True])
async def test_answers_have_one_form(server: tuple[str, int], front: Front, typed: bool):
    for model in MODELS[server[0]]:
        if model == "boom":
            continue
        values = np.array([[b"a", b"", b"\xc3\xa9"]], object) if model == "typed_bytes" else FLOATS
        answer = await front.infer(request(model, values, typed=typed))
        assert (answer.model_name, answer.id) == (model, "7")
        assert outputs(answer)["OUTPUT0"] == request(model, values).raw_input_contents[0]
        if model == "mixed_fp32":
            assert outputs(answer)["COUNT"] == (3).to_bytes(8, "little")


async def test_json_goes_there_and_back(front: Front):
    given = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 3.25]}]}
    status, body = await front.post("id2d_fp32", given)
    assert status == 200
    (output,) = body["outputs"]
    assert (output["data"], output["shape"]) == ([0.5, 3.25], [1, 2])
    assert "binary_data_size" not in output.get("parameters", {})


async def test_megabytes_go_there_and_back(front: Front):
    values = np.arange(2**20, dtype=np.float32).reshape(1, -1)
    answer = await front.infer(request("id2d_fp32", values))
    assert outputs(answer)["OUTPUT0"] == values.tobytes()


async def test_parameters_arrive_or_are_refused(front: Front):
    message = request("id2d_fp32", FLOATS)
    message.parameters["text"].string_param = "x"
    message.parameters["less"].int64_param = -3
    message.parameters["priority"].uint64_param = 9
    answer = await front.infer(message)
    seen = {key: parameter.string_param for key, parameter in answer.parameters.items()}
    assert (seen["text"], seen["less"], seen["priority"]) == ("'x'", "-3", "9")
    message.parameters["temperature"].double_param = 0.7
    status, text = await front.refused(message)
    assert status == "INVALID_ARGUMENT"
    assert text.startswith("Parameter 'temperature' is a double")


async def test_straight_to_the_server_a_double_is_lost(server: tuple[str, int]):
    """Why it is refused."""
    message = request("id2d_fp32", FLOATS)
    message.parameters["temperature"].double_param = 0.7
    with grpc.insecure_channel(f"127.0.0.1:{server[1]}") as channel:
        body = channel.unary_unary(f"{SERVICE}ModelInfer")(message.SerializeToString())
    answer = pb.ModelInferResponse.FromString(body)
    assert answer.parameters["temperature"].string_param in ("", "None")


async def test_a_wrong_request_is_the_callers_fault(front: Front):
    assert await front.refused(request("id2d_fp32", np.array([[7, 8]], np.int32))) == (
        "INVALID_ARGUMENT",
        "inference input 'INPUT0' data-type is 'INT32', but model 'id2d_fp32' expects 'FP32'",
    )
    cut = request("untold_fp32", FLOATS)
    cut.raw_input_contents[0] = cut.raw_input_contents[0][:-4]
    status, text = await front.refused(cut)
    assert (status, text[:24]) == ("INVALID_ARGUMENT", "input byte size mismatch")


async def test_its_failures_are_its_own_and_quote_nothing(front: Front):
    status, text = await front.refused(request("boom", np.array([[31337.25]], np.float32)))
    assert (status, text) == ("INTERNAL", "Endpoint s failed while it worked on the request.")


async def test_what_it_lacks_is_answered(front: Front):
    answer = await front.call("ModelConfig", pb.ModelConfigRequest(name="id2d_fp32"))
    config = pb.ModelConfigResponse.FromString(answer).config
    assert [(i.name, i.data_type, list(i.dims)) for i in config.input] == [("INPUT0", 11, [-1, -1])]
    await front.infer(request("id2d_fp32", FLOATS))
    (view,) = await front.runtime.endpoints_view()
    assert (view["up"], view["detail"]) == (True, "")
    told = {model["model"]: model for model in view["models"]}
    assert told["id2d_fp32"]["statistics"][0]["inference_stats"]["success"]["count"] == 1
    assert (told["id2d_fp32"]["ready"], told["gone"]["ready"]) == (True, False)


async def test_its_models_are_discovered_where_it_has_an_index(server: tuple[str, int], tmp_path: Path):
    async with discovering(server, tmp_path) as front:
        names = [model["name"] for model in await front.runtime.models_view()]
        (view,) = await front.runtime.endpoints_view()
        if server[0] == "kserve":
            assert names == []
            assert view["detail"].startswith("its server keeps no index of its models")
            return
        assert names == sorted(MODELS["mlserver"])
        with grpc.insecure_channel(f"127.0.0.1:{server[1]}") as channel:
            for rpc, message in (
                ("Unload", pb.RepositoryModelUnloadRequest),
                ("Load", pb.RepositoryModelLoadRequest),
            ):
                body = message(model_name="typed_bytes").SerializeToString()
                channel.unary_unary(f"{SERVICE}RepositoryModel{rpc}")(body)
                await front.runtime._monitors["s"].look()
                names = [model["name"] for model in await front.runtime.models_view()]
                assert ("typed_bytes" in names) is (rpc == "Load")
