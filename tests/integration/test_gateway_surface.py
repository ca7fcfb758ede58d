"""What is served beside inferences and metadata, over a real Triton and a real pool: raw requests, compression,
statistics, and the model repository."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.http.aio as aio_http

from gateway.demo.triton import TritonServer
from tests.support.gateway import Gateway, running_gateway
from tests.support.onnx_models import identity

REPOSITORY = Path(__file__).parents[1] / "conformance" / "model_repository"
MODELS = ["simple", "id_fp32", "id2d_fp32", "id_bytes"]
RAW = {"inference-header-content-length": "0", "content-type": "application/octet-stream"}
FOUR = np.float32([1, 2, 3, 4])


@pytest.fixture(scope="module")
def triton() -> Iterator[TritonServer]:
    server = TritonServer(REPOSITORY, load=MODELS)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def gateway(triton: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    (folder / "identity.onnx").write_bytes(identity("n"))
    models = "\n".join(f"  - {{name: {m}, variants: [{{endpoint: t}}]}}" for m in MODELS)
    config = f"""
version: 1
gateway: {{name: gw, location: {{tier: cloud, region: eu}}}}
endpoints:
  - {{name: t, kind: triton, url: "grpc://127.0.0.1:{triton.grpc_port}", location: {{tier: cloud, region: eu}}}}
  - {{name: p, kind: pool, runtime: onnxruntime, replicas: {{min: 1, max: 1}}, location: {{tier: cloud, region: eu}}}}
models:
{models}
  - {{name: pooled, variants: [{{endpoint: p, artifact: identity.onnx}}]}}
  - {{name: renamed, variants: [{{endpoint: t, model: simple}}]}}
privacy: {{default: any, classes: {{any: {{allow: [{{tier: [device, site, regional, cloud]}}]}}}}}}
policies: [{{name: default, match: {{}}, weights: {{latency: 1}}}}]
"""
    with running_gateway(config, folder) as found:
        found.wait_up("t", "p", timeout_s=60)
        yield found


def post(gateway: Gateway, path: str, body: bytes = b"", **headers: str) -> httpx.Response:
    return httpx.post(f"http://{gateway.http}{path}", content=body, headers=headers, timeout=30)


@pytest.mark.parametrize("model", ["id_fp32", "pooled"])
def test_a_raw_request_gets_raw_answers(gateway: Gateway, model: str):
    answer = post(gateway, f"/v2/models/{model}/infer", FOUR.tobytes(), **RAW)
    assert answer.status_code == 200
    cut = int(answer.headers["inference-header-content-length"])
    (output,) = json.loads(answer.content[:cut])["outputs"]
    assert output["parameters"]["binary_data_size"] == 16
    assert answer.content[cut:] == FOUR.tobytes()
    refused = post(gateway, f"/v2/models/{model}/infer", FOUR.tobytes()[:-1], **RAW)
    assert refused.status_code == 400
    assert "input byte size mismatch" in refused.json()["error"]


@pytest.mark.parametrize("model", ["simple", "id2d_fp32", "id_bytes"])
def test_raw_requests_that_leave_the_shape_open_are_refused_as_by_triton(
    gateway: Gateway, triton: TritonServer, model: str
):
    answer = post(gateway, f"/v2/models/{model}/infer", FOUR.tobytes(), **RAW)
    assert answer.status_code == 400
    theirs = httpx.post(
        f"http://127.0.0.1:{triton.http_port}/v2/models/{model}/infer", content=FOUR.tobytes(), headers=RAW
    )
    assert theirs.status_code == 400
    beginning = {"simple": "Raw request must only have 1 input", "id2d_fp32": "The shape of the raw input"}
    words = beginning.get(model, "For BYTE datatype raw input 'INPUT0', the model must have input shape [1]")
    assert words in answer.json()["error"]
    assert words in theirs.json()["error"]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_both_ways_compressed(gateway: Gateway, coding: str):
    count = 5000
    given = triton_http.InferInput("INPUT0", [count], "FP32")
    given.set_data_from_numpy(np.ones(count, np.float32))
    with triton_http.InferenceServerClient(gateway.http) as client:
        result = client.infer(
            "id_fp32", [given], request_compression_algorithm=coding, response_compression_algorithm=coding
        )
    assert result.as_numpy("OUTPUT0").tolist() == [1.0] * count
    with triton_grpc.InferenceServerClient(gateway.grpc) as client:
        tensor = triton_grpc.InferInput("INPUT0", [count], "FP32")
        tensor.set_data_from_numpy(np.ones(count, np.float32))
        answered = client.infer("id_fp32", [tensor], compression_algorithm=coding)
    assert answered.as_numpy("OUTPUT0").tolist() == [1.0] * count


async def test_the_aio_client_which_always_asks_for_gzip_reads_every_answer(gateway: Gateway):
    given = triton_http.InferInput("INPUT0", [5000], "FP32")
    given.set_data_from_numpy(np.ones(5000, np.float32))
    async with aio_http.InferenceServerClient(gateway.http) as client:
        everything = await client.get_inference_statistics()
        assert len(json.dumps(everything)) > 1024
        assert len(await client.get_model_repository_index()) == len(MODELS) + 2
        assert (await client.get_model_config("simple"))["name"] == "simple"
        result = await client.infer("id_fp32", [given])
    assert result.as_numpy("OUTPUT0").tolist() == [1.0] * 5000


def counted(gateway: Gateway, model: str) -> dict[str, Any]:
    """The model's one entry, which is the same over both bindings."""
    with triton_http.InferenceServerClient(gateway.http) as client:
        (entry,) = client.get_inference_statistics(model)["model_stats"]
    with triton_grpc.InferenceServerClient(gateway.grpc) as client:
        (told,) = client.get_inference_statistics(model).model_stats
    assert (entry["name"], entry["version"]) == (told.name, told.version)
    assert entry["inference_count"] == told.inference_count
    assert entry["name"] == model
    return entry


def batch(rows: int) -> bytes:
    tensors = [
        {"name": name, "datatype": "INT32", "shape": [rows, 16], "data": [1] * 16 * rows}
        for name in ("INPUT0", "INPUT1")
    ]
    return json.dumps({"inputs": tensors}).encode()


def test_statistics_are_of_what_was_asked_here_under_that_name(gateway: Gateway):
    before = counted(gateway, "renamed")
    other = counted(gateway, "simple")
    assert post(gateway, "/v2/models/renamed/infer", batch(3)).status_code == 200
    assert post(gateway, "/v2/models/renamed/versions/1/infer", batch(1)).status_code == 200
    assert post(gateway, "/v2/models/renamed/infer", batch(9)).status_code == 400
    entry = counted(gateway, "renamed")
    assert entry["version"] == "1"
    assert entry["inference_count"] - before["inference_count"] == 4
    assert entry["execution_count"] - before["execution_count"] == 2
    assert entry["inference_stats"]["fail"]["count"] == before["inference_stats"]["fail"]["count"]
    assert counted(gateway, "simple")["inference_count"] == other["inference_count"]
    everything = gateway.get("/v2/models/stats")["model_stats"]
    assert {(entry["name"], entry["version"]) for entry in everything} == {
        (model, "1") for model in (*MODELS, "renamed", "pooled")
    }


def test_a_pool_says_how_long_a_request_waited_and_was_computed(gateway: Gateway):
    assert post(gateway, "/v2/models/pooled/infer", FOUR.tobytes(), **RAW).status_code == 200
    inside = counted(gateway, "pooled")["inference_stats"]
    assert inside["compute_infer"]["count"] == inside["success"]["count"] >= 1
    assert 0 < inside["compute_infer"]["ns"] < inside["success"]["ns"]


@pytest.mark.parametrize("path", ["nobody", "simple/versions/99", "simple/versions/v1"])
def test_statistics_of_what_there_is_not(gateway: Gateway, path: str):
    answer = httpx.get(f"http://{gateway.http}/v2/models/{path}/stats")
    assert answer.status_code in (400, 404)
    assert set(answer.json()) == {"error"}


def test_models_are_unloaded_and_loaded_under_the_gateways_own_name(gateway: Gateway):
    def states() -> dict[str, tuple[str, str]]:
        index = post(gateway, "/v2/repository/index").json()
        return {entry["name"]: (entry.get("version", ""), entry["state"]) for entry in index}

    assert states() == dict.fromkeys((*MODELS, "renamed", "pooled"), ("1", "READY"))
    with triton_grpc.InferenceServerClient(gateway.grpc) as client:
        client.unload_model("renamed")
        gateway.wait(lambda: not client.is_model_ready("renamed"), 5)
        gateway.wait(lambda: not client.is_model_ready("simple"), 5)
        assert states()["renamed"] == ("", "UNAVAILABLE")
        assert post(gateway, "/v2/models/renamed/infer", batch(1)).status_code == 503
        ready = post(gateway, "/v2/repository/index", b'{"ready": true}').json()
        assert "renamed" not in {entry["name"] for entry in ready}
        config = client.get_model_config("id_fp32", as_json=True)["config"]
        client.load_model("renamed")
        gateway.wait(lambda: client.is_model_ready("renamed"), 5)
        client.load_model(
            "id_fp32", config=json.dumps({**config, "parameters": {"k": {"string_value": "v"}}})
        )
        gateway.wait(lambda: client.is_model_ready("id_fp32"), 5)
        told = client.get_model_config("id_fp32").config.parameters
        assert {key: value.string_value for key, value in told.items()} == {"k": "v"}
        client.load_model("id_fp32")
    gateway.wait(lambda: states()["simple"] == ("1", "READY"), 5)


def test_what_a_load_cannot_do(gateway: Gateway):
    answer = post(gateway, "/v2/repository/models/pooled/load")
    assert (answer.status_code, "on no Triton server" in answer.json()["error"]) == (501, True)
    assert post(gateway, "/v2/repository/models/nobody/unload").status_code == 404
    broken = post(
        gateway,
        "/v2/repository/models/id_bytes/load",
        b'{"parameters": {"config": "{\\"max_batch_size\\": -7}"}}',
    )
    assert broken.status_code == 409
    assert broken.json()["error"].startswith(
        "Model 'id_bytes' was not loaded on t: failed to load 'id_bytes'"
    )
