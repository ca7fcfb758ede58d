"""Over HTTP: whatever the route, the same answer to the same request, mistakes included."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.conformance.cases_bad import BAD
from tests.conformance.cases_good import GOOD, ONE
from tests.conformance.stage import HEADER, ROUTES, Stage
from tests.conformance.wire import Answer, Ask, answer_of, raw_of, send, tensor, text

PLACES = {"r1": ("triton", "cloud"), "r2": ("pool", "regional"), "r3": ("cameras", "device")}


@pytest.fixture(scope="module")
def client(stage: Stage) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{stage.gateway.http}") as found:
        yield found


def on_all(client: httpx.Client, ask: Ask) -> dict[str, Answer]:
    return {route: send(client, route, ask) for route in ROUTES}


@pytest.mark.parametrize("route", ROUTES)
def test_the_route_is_the_one_meant(client: httpx.Client, route: str):
    response = client.post(
        "/v2/models/id_fp32/infer", content=text("", ONE).body, headers={HEADER: route}, timeout=30
    )
    assert response.status_code == 200
    assert (response.headers["tidegate-endpoint"], response.headers["tidegate-tier"]) == PLACES[route]
    assert response.headers["tidegate-attempts"] == "1"


@pytest.mark.parametrize("name", GOOD)
def test_the_same_answer(client: httpx.Client, name: str):
    ask, outputs = GOOD[name]
    expected = Answer(200, "", outputs)
    for route, answer in on_all(client, ask).items():
        assert answer == expected, route


@pytest.mark.parametrize("name", BAD)
def test_the_same_mistake_the_same_words(client: httpx.Client, name: str):
    ask, status, words = BAD[name]
    answers = on_all(client, ask)
    assert {(a.status, a.error) for a in answers.values()} == {(status, answers["r1"].error)}
    assert words in answers["r1"].error
    assert client.get("/v2/health/live").status_code == 200
    for route in ROUTES:
        assert send(client, route, text("id_fp32", ONE)).status == 200


def test_a_scalar_has_no_dimensions(client: httpx.Client):
    ask = text("scalar_out", tensor("INPUT0", "FP32", [2], [1.5, 2]))
    for route in ("r2", "r3"):
        answer = send(client, route, ask)
        assert answer.outputs == (("SCALAR", "FP32", (), "[3.5]"), ("ONE", "FP32", (1,), "[3.5]"))


@pytest.mark.parametrize("id", ["42", "", 'é\u2028"\n\\', "x" * 10_000])
def test_an_id_comes_back_as_it_was(client: httpx.Client, id: str):
    for route, answer in on_all(client, text("id_fp32", ONE, id=id)).items():
        assert answer.id == (id or None), route


@pytest.mark.parametrize("route", ROUTES)
def test_answers_are_never_crossed(client: httpx.Client, route: str):
    """Two hundred at once, each with an id and a value of its own."""

    def ask(at: int) -> bool:
        body = text("id_int32", tensor("INPUT0", "INT32", [2], [at, -at]), id=f"{route}-{at}")
        answer = send(client, route, body)
        return (answer.id, raw_of(answer)) == (f"{route}-{at}", [json.dumps([at, -at])])

    with ThreadPoolExecutor(16) as callers:
        assert all(callers.map(ask, range(200)))


def test_an_input_that_may_be_left_out_is_told_as_such(client: httpx.Client):
    """On the routes that know of such inputs; `routes.LIMITS` names the other."""
    given = [tensor(f"INPUT{at}", "FP32", [1], [1]) for at in range(4)]
    for route in ("r1", "r2"):
        for count in (3, 4):
            assert raw_of(send(client, route, text("opt_in", *given[:count]))) == [f"[{count}.0]"]
    slow = text("slow_identity", tensor("INPUT0", "INT32", [1], [1]))
    refused = send(client, "r3", slow)
    assert refused.status == 400
    assert "missing required input(s) ['SECONDS']" in refused.error
    assert send(client, "r3", text("opt_in", *given)).status == 403


def test_a_model_that_fails_says_so_without_its_words(client: httpx.Client):
    """What it was given may be in them."""
    ask = text("boom", tensor("INPUT0", "INT32", [2], [-271828, 5]))
    for route in ("r2", "r3"):
        answer = send(client, route, ask)
        assert answer.status == 500
        assert "271828" not in answer.error
        assert send(client, route, text("boom", tensor("INPUT0", "INT32", [1], [5]))).status == 200


@pytest.mark.parametrize("what", ["", "/config", "/ready"])
def test_what_models_take_is_told_alike(client: httpx.Client, what: str):
    """Of what the routes can know: platforms and backends differ, tensors and batches do not."""

    def told(route: str, model: str) -> object:
        response = client.get(f"/v2/models/{model}{what}", headers={HEADER: route}, timeout=30)
        assert response.status_code == 200, response.text
        if not response.content:
            return None
        document = response.json()
        keys = ("name", "versions", "inputs", "outputs") if not what else ("name", "max_batch_size")
        tensors = (
            [[(t["name"], t["data_type"], t["dims"]) for t in document[side]] for side in ("input", "output")]
            if what
            else []
        )
        return {key: document[key] for key in keys} | {"tensors": tensors}

    for model in ("simple", "simple_string", "id_fp16", "id2d_fp32"):
        answers = [told(route, model) for route in ROUTES]
        assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("route", ROUTES)
def test_generate_answers_on_every_route(client: httpx.Client, route: str):
    body = json.dumps({"INPUT0": [1.5, 2]}).encode()
    response = client.post("/v2/models/id_fp32/generate", content=body, headers={HEADER: route}, timeout=30)
    assert response.status_code == 200, response.text
    assert response.json()["OUTPUT0"] == [1.5, 2]
    streamed = client.post(
        "/v2/models/id_fp32/generate_stream", content=body, headers={HEADER: route}, timeout=30
    )
    assert streamed.headers["content-type"].startswith("text/event-stream")
    events = [line for line in streamed.text.split("\n\n") if line]
    assert [json.loads(event.removeprefix("data:"))["OUTPUT0"] for event in events] == [[1.5, 2]]
    wrong = client.post("/v2/models/id_fp32/generate", content=b"{}", headers={HEADER: route}, timeout=30)
    assert answer_of(wrong).status == 400


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_answers_are_packed_where_the_caller_takes_it(client: httpx.Client, coding: str):
    ask = text("wide_out", tensor("N", "INT32", [1], [5_000]))
    bodies = set()
    for route in ROUTES:
        headers = {HEADER: route, "accept-encoding": coding}
        response = client.post("/v2/models/wide_out/infer", content=ask.body, headers=headers, timeout=30)
        assert (response.status_code, response.headers["content-encoding"]) == (200, coding)
        bodies.add(response.content)
    assert len(bodies) == 1
