"""One model, three places: the same answers from a device, a pool and a Triton, and the same errors."""

from __future__ import annotations

import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.demo.played import ENDPOINTS, MODEL, PIXELS, ROUTES, TOLERANCE, Played


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
