"""Unmodified tritonclient, straight to a real Triton and through the gateway: the same bits. Then whatever bits
there are, and whatever can become of a request on its way: TIDEGATE_EXAMPLES times as much of it as usual."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from gateway.demo.triton import TritonServer
from tests.support import onnx_models
from tests.support.gateway import Gateway, running_gateway
from tests.support.mutated import (
    BINARY_ONLY,
    Http,
    Tensor,
    accidents,
    grpc_request,
    http_accidents,
    http_outputs,
    http_request,
    packed,
    tensors,
)

REPOSITORY = Path(__file__).parents[1] / "conformance" / "model_repository"
DATATYPES = {
    "BOOL": np.array([True, False, True]),
    "UINT8": np.array([0, 1, 255], np.uint8),
    "UINT16": np.array([0, 65535], np.uint16),
    "UINT32": np.array([0, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 2**63, 2**64 - 1], np.uint64),
    "INT8": np.array([-128, 127], np.int8),
    "INT16": np.array([-32768, 32767], np.int16),
    "INT32": np.array([-(2**31), 2**31 - 1], np.int32),
    "INT64": np.array([2**53 + 1, -(2**63), 2**63 - 1], np.int64),
    "FP16": np.array([6.8, -0.0, np.inf], np.float16),
    "BF16": np.array([1.0, -2.0], ml_dtypes.bfloat16),
    "FP32": np.array([0.1, -0.0, 3.4e38, np.nan, np.inf], np.float32),
    "FP64": np.array([0.1, 1e-308, -np.inf], np.float64),
    "BYTES": np.array([b"a", b"", "é".encode(), b"\x00\xff"], np.object_),
}
MODELS = ["simple", *(f"id_{name.lower()}" for name in DATATYPES)]
ON_POOL = {"scalar": (), "cube": ("a", "b", "c")}
"""Identities of FP32 on a pool, and their shapes."""
EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "1"))
SETTINGS = settings(
    deadline=None,
    derandomize=EXAMPLES == 1,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
INFER = "/inference.GRPCInferenceService/ModelInfer"
pb: Any = service_pb2


@pytest.fixture(scope="module")
def triton() -> Iterator[TritonServer]:
    server = TritonServer(REPOSITORY, load=MODELS)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def gateway(triton: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    for name, shape in ON_POOL.items():
        (folder / f"{name}.onnx").write_bytes(onnx_models.identity(*shape))
    models = "\n".join(f"  - {{name: {m}, variants: [{{endpoint: t}}]}}" for m in MODELS)
    pooled = "\n".join(f"  - {{name: {m}, variants: [{{endpoint: p, artifact: {m}.onnx}}]}}" for m in ON_POOL)
    config = f"""
version: 1
gateway: {{name: gw, location: {{tier: cloud, region: eu}}}}
endpoints:
  - {{name: t, kind: triton, url: "grpc://127.0.0.1:{triton.grpc_port}", location: {{tier: cloud, region: eu}}}}
  - {{name: p, kind: pool, runtime: onnxruntime, replicas: {{min: 1, max: 1}}, location: {{tier: cloud, region: eu}}}}
models:
{models}
{pooled}
  - {{name: renamed, variants: [{{endpoint: t, model: simple, version: "1"}}]}}
privacy: {{default: any, classes: {{any: {{allow: [{{tier: [device, site, regional, cloud]}}]}}}}}}
policies: [{{name: default, match: {{}}, weights: {{latency: 1}}}}]
"""
    with running_gateway(config, folder) as found:
        found.wait_up("t", "p", timeout_s=60)
        yield found


def over_grpc(address: str, model: str, inputs: dict[str, tuple[str, np.ndarray]]) -> dict[str, np.ndarray]:
    with triton_grpc.InferenceServerClient(address) as client:
        given = []
        for name, (datatype, value) in inputs.items():
            given.append(triton_grpc.InferInput(name, list(value.shape), datatype))
            given[-1].set_data_from_numpy(value)
        return outputs_of(client.infer(model, given, request_id="r"))


def over_http(
    address: str, model: str, inputs: dict[str, tuple[str, np.ndarray]], binary_in: bool, binary_out: bool
) -> dict[str, np.ndarray]:
    with triton_http.InferenceServerClient(address) as client:
        given = []
        for name, (datatype, value) in inputs.items():
            given.append(triton_http.InferInput(name, list(value.shape), datatype))
            given[-1].set_data_from_numpy(value, binary_data=binary_in)
        names = ["OUTPUT0", "OUTPUT1"] if model in ("simple", "renamed") else ["OUTPUT0"]
        wanted = [triton_http.InferRequestedOutput(n, binary_data=binary_out) for n in names]
        return outputs_of(client.infer(model, given, outputs=wanted, request_id="r"))


def outputs_of(result: triton_grpc.InferResult | triton_http.InferResult) -> dict[str, np.ndarray]:
    response = result.get_response()
    outputs = response["outputs"] if isinstance(response, dict) else response.outputs
    names = [o["name"] if isinstance(o, dict) else o.name for o in outputs]
    return {name: result.as_numpy(name) for name in names}


def assert_same_bits(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert list(left) == list(right)
    for name in left:
        assert left[name].shape == right[name].shape
        assert left[name].dtype == right[name].dtype
        assert left[name].tobytes() == right[name].tobytes() or left[name].dtype == np.object_
        if left[name].dtype == np.object_:
            assert left[name].tolist() == right[name].tolist()


SIXTEEN = np.arange(16, dtype=np.int32)[None]
SIMPLE = {"INPUT0": ("INT32", SIXTEEN), "INPUT1": ("INT32", SIXTEEN[:, ::-1].copy())}


def identity(datatype: str) -> dict[str, tuple[str, np.ndarray]]:
    return {"INPUT0": (datatype, DATATYPES[datatype])}


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_over_grpc(triton: TritonServer, gateway: Gateway, datatype: str):
    model = f"id_{datatype.lower()}"
    direct = over_grpc(f"127.0.0.1:{triton.grpc_port}", model, identity(datatype))
    assert_same_bits(over_grpc(gateway.grpc, model, identity(datatype)), direct)
    assert direct["OUTPUT0"].shape == DATATYPES[datatype].shape


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_over_http_binary(triton: TritonServer, gateway: Gateway, datatype: str):
    model = f"id_{datatype.lower()}"
    direct = over_http(f"127.0.0.1:{triton.http_port}", model, identity(datatype), True, True)
    assert_same_bits(over_http(gateway.http, model, identity(datatype), True, True), direct)


@pytest.mark.parametrize("datatype", [d for d in DATATYPES if d not in BINARY_ONLY])
def test_every_datatype_over_http_json(triton: TritonServer, gateway: Gateway, datatype: str):
    model, inputs = f"id_{datatype.lower()}", identity(datatype)
    if datatype == "BYTES":
        inputs = {"INPUT0": ("BYTES", np.array([b"a", b"", "é".encode()], np.object_))}
    direct = over_http(f"127.0.0.1:{triton.http_port}", model, inputs, False, False)
    assert_same_bits(over_http(gateway.http, model, inputs, False, False), direct)


@pytest.mark.parametrize("binary", [True, False])
def test_two_outputs_in_each_form(triton: TritonServer, gateway: Gateway, binary: bool):
    direct = over_http(f"127.0.0.1:{triton.http_port}", "simple", SIMPLE, binary, binary)
    assert_same_bits(over_http(gateway.http, "simple", SIMPLE, binary, binary), direct)
    assert_same_bits(
        over_grpc(gateway.grpc, "simple", SIMPLE),
        over_grpc(f"127.0.0.1:{triton.grpc_port}", "simple", SIMPLE),
    )
    assert direct["OUTPUT0"].tolist() == [[15] * 16]


def test_renamed_variant_answers_under_its_own_name(gateway: Gateway):
    with triton_grpc.InferenceServerClient(gateway.grpc) as client:
        given = [triton_grpc.InferInput(n, list(v.shape), d) for n, (d, v) in SIMPLE.items()]
        for tensor, (_, value) in zip(given, SIMPLE.values(), strict=True):
            tensor.set_data_from_numpy(value)
        response = client.infer("renamed", given).get_response()
        assert (response.model_name, response.model_version) == ("renamed", "1")
        assert client.get_model_metadata("renamed").name == "renamed"
        assert client.get_model_config("renamed").config.name == "renamed"
        assert not client.is_model_ready("renamed", "2")


def test_metadata_config_and_health_are_tritons_own(triton: TritonServer, gateway: Gateway):
    for path in ("/v2/models/simple", "/v2/models/simple/config", "/v2/models/id_bytes"):
        direct = httpx.get(f"http://127.0.0.1:{triton.http_port}{path}")
        assert httpx.get(f"http://{gateway.http}{path}").json() == direct.json()
    with triton_http.InferenceServerClient(gateway.http) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("simple")
    with triton_grpc.InferenceServerClient(gateway.grpc) as client:
        assert client.is_server_ready()
        assert client.get_server_metadata().name == "tidegate"


def test_hidden_second_model_name_is_refused(gateway: Gateway):
    message = service_pb2.ModelInferRequest(model_name="simple")
    for name, (datatype, value) in SIMPLE.items():
        tensor = message.inputs.add(name=name, datatype=datatype)
        tensor.shape.extend(value.shape)
        message.raw_input_contents.append(value.tobytes())
    hidden = service_pb2.ModelInferRequest(model_name="id_int32").SerializeToString()
    with grpc.insecure_channel(gateway.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        assert infer(message.SerializeToString(), timeout=10)
        with pytest.raises(grpc.RpcError) as refused:
            infer(message.SerializeToString() + hidden, timeout=10)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "model_name" in refused.value.details()


@pytest.mark.parametrize(
    "body",
    [
        '{"inputs": [], "inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}]}',
        '{"inputs": [{"name": "INPUT0", "name": "INPUT1", "datatype": "INT32", "shape": [1], "data": [1]}]}',
        '{"id": "a", "id": "b", "inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}]}',
    ],
)
def test_duplicate_keys_are_refused(gateway: Gateway, body: str):
    answer = httpx.post(f"http://{gateway.http}/v2/models/id_int32/infer", content=body)
    assert answer.status_code == 400
    assert "twice in one object" in answer.json()["error"]


def test_shared_memory_is_refused_by_name(gateway: Gateway):
    answer = httpx.get(f"http://{gateway.http}/v2/systemsharedmemory/status")
    assert answer.status_code == 501
    assert set(answer.json()) == {"error"}
    with (
        triton_grpc.InferenceServerClient(gateway.grpc) as client,
        pytest.raises(triton_grpc.InferenceServerException) as refused,
    ):
        client.get_system_shared_memory_status()
    assert refused.value.status() == "StatusCode.UNIMPLEMENTED"


# Whatever bits there are


@pytest.fixture(scope="module")
def infer(gateway: Gateway) -> Iterator[grpc.UnaryUnaryMultiCallable[bytes, bytes]]:
    with grpc.insecure_channel(gateway.grpc) as channel:
        yield channel.unary_unary(INFER)


@pytest.fixture(scope="module")
def straight(triton: TritonServer) -> Iterator[grpc.UnaryUnaryMultiCallable[bytes, bytes]]:
    with grpc.insecure_channel(f"127.0.0.1:{triton.grpc_port}") as channel:
        yield channel.unary_unary(INFER)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=20) as found:
        yield found


def post(client: httpx.Client, address: str, model: str, request: Http) -> httpx.Response:
    url = f"http://{address}/v2/models/{model}/infer"
    return client.post(url, content=request.body, headers=request.headers)


def comes_back(infer: Any, client: httpx.Client, address: str, model: str, given: Tensor) -> None:
    """The tensor through an identity, by every wire and form that has words for it."""
    for typed in (False, True) if given.datatype not in BINARY_ONLY else (False,):
        answer = pb.ModelInferResponse.FromString(
            infer(grpc_request(model, given, typed=typed).SerializeToString(), timeout=20)
        )
        (output,), (raw,) = answer.outputs, answer.raw_output_contents
        assert (output.datatype, tuple(output.shape)) == (given.datatype, given.shape)
        assert given.same(raw) if typed else raw == given.raw
    for binary in (False, True) if given.sayable else (True,):
        for binary_out in (False, True):
            request = http_request(given, binary=binary, binary_out=binary_out, nested=not binary_out)
            answer = post(client, address, model, request)
            if not given.sayable and not binary_out:
                assert answer.status_code == 400, answer.text
                assert answer.json()["error"]
                continue
            assert answer.status_code == 200, answer.text
            (output,) = http_outputs(dict(answer.headers), answer.content).values()
            if isinstance(output, Tensor):
                assert (output.datatype, output.shape) == (given.datatype, given.shape)
                assert output.raw == given.raw if binary else given.same(output.raw)
            else:
                datatype, shape, data = output
                assert (datatype, tuple(shape)) == (given.datatype, given.shape)
                assert given.same(packed(datatype, data))


@pytest.mark.parametrize("datatype", DATATYPES)
def test_any_values_come_back(gateway: Gateway, infer: Any, client: httpx.Client, datatype: str):
    @settings(SETTINGS, max_examples=12 * EXAMPLES)
    @given(tensors(datatype, st.tuples(st.integers(0, 5))))
    def check(tensor: Tensor) -> None:
        comes_back(infer, client, gateway.http, f"id_{datatype.lower()}", tensor)

    check()


@pytest.mark.parametrize("model", ON_POOL)
def test_any_shape_comes_back(gateway: Gateway, infer: Any, client: httpx.Client, model: str):
    """A scalar, and three dimensions of which some are 0."""

    @settings(SETTINGS, max_examples=12 * EXAMPLES)
    @given(tensors("FP32", st.tuples(*(st.integers(0, 3) for _ in ON_POOL[model]))))
    def check(tensor: Tensor) -> None:
        comes_back(infer, client, gateway.http, model, tensor)

    check()


# Whatever can become of a request

CALLERS_FAULT = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
SUM = (Tensor("INT32", (1, 16), bytes(range(64))), Tensor("INT32", (1, 16), bytes(range(64, 128))))
TEXTS = Tensor("BYTES", (3,), packed("BYTES", ["a", "", "é"]))
WIDE = Tensor("INT64", (3,), packed("INT64", [2**53 + 1, -(2**63), 2**63 - 1]))
WRITTEN = [("simple", SUM), ("id_bytes", (TEXTS,)), ("id_int64", (WIDE,))]


def messages() -> list[bytes]:
    found = []
    for model, inputs in WRITTEN:
        for typed in (False, True):
            message = grpc_request(model, *inputs, typed=typed)
            found.append(message.SerializeToString())
            message.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 0
            message.parameters["priority"].int64_param = 1
            message.parameters["text"].string_param = "x"
            del message.outputs[0].parameters["classification"]
            found.append(message.SerializeToString())
    return found


MESSAGES = messages()


def test_a_damaged_message_is_refused_or_means_what_triton_takes_it_for(
    gateway: Gateway, infer: Any, straight: Any
):
    answered = 0

    @settings(SETTINGS, max_examples=300 * EXAMPLES)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        nonlocal answered
        body = data.draw(
            accidents(data.draw(st.sampled_from(MESSAGES)), data.draw(st.sampled_from(MESSAGES)))
        )
        call = infer.future(body, timeout=20)
        if call.code() is grpc.StatusCode.UNAVAILABLE:
            # On a machine that is too busy the Triton's health check is late. Dead, it stays away.
            gateway.wait_up("t")
            call = infer.future(body, timeout=20)
        if call.code() is not grpc.StatusCode.OK:
            assert call.code() in CALLERS_FAULT, (call.code(), call.details())
            assert call.details()
            return
        answered += 1
        direct = pb.ModelInferResponse.FromString(straight(body, timeout=20))
        assert pb.ModelInferResponse.FromString(call.result()) == direct

    check()
    assert answered > 10 * EXAMPLES
    assert infer(MESSAGES[0], timeout=20)
    assert gateway.process.poll() is None


REQUESTS = [
    (model, http_request(*inputs, binary=binary, binary_out=binary_out))
    for model, inputs in WRITTEN
    for binary in (False, True)
    for binary_out in (False, True)
]


def told(answer: httpx.Response) -> tuple[str, bytes]:
    """What an answer says, whatever the order of its members, and its binary data."""
    cut = int(answer.headers.get("inference-header-content-length", len(answer.content)))
    return json.dumps(json.loads(answer.content[:cut]), sort_keys=True), answer.content[cut:]


def test_a_damaged_body_is_refused_or_means_what_triton_takes_it_for(
    gateway: Gateway, triton: TritonServer, client: httpx.Client
):
    answered = 0

    @settings(SETTINGS, max_examples=300 * EXAMPLES)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        nonlocal answered
        model, good = data.draw(st.sampled_from(REQUESTS))
        request = data.draw(http_accidents(good))
        answer = post(client, gateway.http, model, request)
        if answer.status_code == 503:
            gateway.wait_up("t")
            answer = post(client, gateway.http, model, request)
        if answer.status_code != 200:
            assert answer.status_code in (400, 404, 413, 501), answer.text
            assert list(answer.json()) == ["error"]
            return
        answered += 1
        direct = post(client, f"127.0.0.1:{triton.http_port}", model, request)
        assert direct.status_code == 200, (request, direct.text)
        assert told(answer) == told(direct)

    check()
    assert answered > 10 * EXAMPLES
    model, good = REQUESTS[0]
    assert post(client, gateway.http, model, good).status_code == 200
    assert gateway.process.poll() is None
