"""One model, three places: the same answers from a device, a pool and a Triton, and the same errors."""

from __future__ import annotations

import json
from collections.abc import Mapping

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from oip.reasons import STATUS
from tests.demo.played import ENDPOINTS, ROUTES, TOLERANCE, Played
from tests.support.mistakes import MISTAKES, HttpRequest, Mistake, json_request
from tests.support.storm import MODEL, PIXELS


def result_of(binding: str, played: Played, route: str, pixels: np.ndarray) -> np.ndarray:
    """Through an unmodified tritonclient; over HTTP with its tensors as JSON or as binary data."""
    module = tritonclient.grpc if binding == "grpc" else tritonclient.http
    address = played.running.plant.grpc if binding == "grpc" else played.running.plant.http
    tensor = module.InferInput("pixels", list(pixels.shape), "FP32")
    wanted = []
    if binding == "grpc":
        tensor.set_data_from_numpy(pixels)
    else:
        tensor.set_data_from_numpy(pixels, binary_data=binding == "binary")
        wanted = [module.InferRequestedOutput("probabilities", binary_data=binding == "binary")]
    with module.InferenceServerClient(address) as client:
        result = client.infer("digits", [tensor], outputs=wanted or None, headers=dict(ROUTES[route]))
    found = result.as_numpy("probabilities")
    assert found is not None
    return found


@pytest.mark.parametrize("binding", ["grpc", "json", "binary"])
@pytest.mark.parametrize("route", list(ROUTES))
def test_the_same_answers_everywhere(played: Played, route: str, binding: str):
    for rows in (1, 5):
        pixels = PIXELS[:rows]
        found = result_of(binding, played, route, pixels)
        assert found.shape == (rows, 10)
        assert np.allclose(found, MODEL.predict(pixels), atol=TOLERANCE[route])


@pytest.mark.parametrize("route", list(ROUTES))
def test_each_route_is_the_one_meant(played: Played, route: str):
    body = {"inputs": [{"name": "pixels", "shape": [1, 64], "datatype": "FP32", "data": PIXELS[0].tolist()}]}
    url = f"http://{played.running.plant.http}/v2/models/digits/infer"
    answer = httpx.post(url, json=body, headers=dict(ROUTES[route]), timeout=30)
    assert answer.status_code == 200, answer.text
    assert answer.headers["tidegate-endpoint"] == ENDPOINTS[route]


def told_over_grpc(address: str, body: bytes, options: Mapping[str, str]) -> tuple[str, str]:
    """Status and message."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as raised:
            call(body, metadata=tuple(options.items()), timeout=20)
    error = raised.value
    assert isinstance(error, grpc.Call)
    return error.code().name, error.details() or ""


def told_over_http(address: str, request: HttpRequest, options: Mapping[str, str]) -> tuple[int, bytes]:
    """Status and body."""
    answer = httpx.post(
        f"http://{address}/v2/models/digits/infer",
        content=request.body,
        headers={**request.headers, **options},
        timeout=20,
    )
    return answer.status_code, answer.content


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_the_same_error_everywhere_byte_for_byte(played: Played, mistake: Mistake):
    plant, cloud = played.running.plant, played.running.cloud
    agent = played.running.agents["cam-7b"]
    status = STATUS[mistake.reason]
    if mistake.grpc is not None:
        told = [told_over_grpc(plant.grpc, mistake.grpc, options) for options in ROUTES.values()]
        told.append(told_over_grpc(cloud.grpc, mistake.grpc, {}))
        told.append(told_over_grpc(agent["grpc"], mistake.grpc, {}))
        assert set(told) == {(status.grpc, mistake.message)}
    for request in (mistake.json, mistake.binary):
        if request is not None:
            bodies = [told_over_http(plant.http, request, options) for options in ROUTES.values()]
            bodies.append(told_over_http(cloud.http, request, {}))
            bodies.append(told_over_http(agent["http"], request, {}))
            assert set(bodies) == {(status.http, json.dumps({"error": mistake.message}).encode())}


@pytest.mark.parametrize("version", ["9", "01"])
def test_the_same_error_everywhere_for_a_version_that_is_not_there(played: Played, version: str):
    plant, path = played.running.plant, f"/v2/models/digits/versions/{version}"
    for method, what in (("POST", "/infer"), ("GET", ""), ("GET", "/config")):
        body = json_request().body if method == "POST" else b""
        told = {
            (answer.status_code, answer.content)
            for options in ROUTES.values()
            for answer in [
                httpx.request(
                    method,
                    f"http://{plant.http}{path}{what}",
                    content=body,
                    headers=dict(options),
                    timeout=20,
                )
            ]
        }
        assert len(told) == 1
        assert told.pop()[0] == (404 if version == "9" else 400)


def test_there_are_twenty_mistakes_at_least():
    assert sum(None not in (m.grpc, m.json, m.binary) for m in MISTAKES) >= 20
