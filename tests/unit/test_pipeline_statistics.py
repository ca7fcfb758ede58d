"""Statistics of a model: each request once, whatever became of its attempts and wherever it went."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from gateway.core.decision import VariantKey
from gateway.core.errors import Refusal
from gateway.core.ports import Health
from gateway.core.request import Options
from oip.codec import statistics_to_json
from oip.reasons import Reason
from oip.signature import Signature, TensorSpec
from tests.support.fakes import CODEC, Bench, bench, call_of, config_of, failure, request, response

NONE = Options()


async def stats(b: Bench, model: str = "digits", version: str = "") -> dict[str, dict[str, Any]]:
    told = json.loads(statistics_to_json(await b.director.statistics(model, version, NONE)))["model_stats"]
    assert {entry["name"] for entry in told} <= ({model} if model else {m.name for m in b.config.models})
    assert len({(entry["name"], entry["version"]) for entry in told}) == len(told)
    return {entry["version"]: entry for entry in told}


def counts(entry: dict[str, Any]) -> tuple[int, int, int]:
    """Inferences, successes, failures."""
    inside = entry["inference_stats"]
    return entry["inference_count"], inside["success"]["count"], inside["fail"]["count"]


def fails(b: Bench, *names: str) -> None:
    async def behaviour(message: service_pb2.ModelInferRequest, timeout_s: float) -> bytes:
        raise failure(Reason.UNAVAILABLE)

    for name in names:
        b.endpoints[name].behaviour = behaviour


async def test_a_retry_never_counts_twice():
    b = await bench()
    fails(b, "site")
    reply = await b.director.infer(call_of(), CODEC)
    assert dict(reply.metadata)["tidegate-attempts"] == "2"
    found = await stats(b)
    assert {version: counts(entry) for version, entry in found.items()} == {"1": (0, 0, 0), "3": (1, 1, 0)}
    assert found["3"]["execution_count"] == 1
    assert found["3"]["last_inference"] > 0
    assert found["3"]["inference_stats"]["success"]["ns"] > 0
    assert list(await stats(b, version="3")) == ["3"]


async def test_a_request_that_fails_everywhere_is_one_failure():
    b = await bench()
    fails(b, "site", "cloud", "far")
    assert (await b.director.infer(call_of(), CODEC)).error is not None
    for name in b.endpoints:
        b.state.heard(name, await b.endpoints[name].health(b.state.models_of(name), 1.0))
    found = await stats(b)
    assert {version: counts(entry) for version, entry in found.items()} == {"1": (0, 0, 0), "3": (0, 0, 1)}
    assert found["3"]["inference_stats"]["fail"]["ns"] > 0


async def test_what_was_refused_before_a_place_was_chosen_is_nobodys_failure():
    b = await bench()
    for call in (call_of(privacy="own"), call_of(bogus="1"), call_of(b"\xff")):
        assert (await b.director.infer(call, CODEC)).error is not None
    assert all(counts(entry) == (0, 0, 0) for entry in (await stats(b)).values())


async def test_rows_of_a_batch_are_inferences():
    b = await bench()
    key = VariantKey("site", "digits", "")
    b.state.learnt(key, Signature((TensorSpec("x", "FP32", (-1,)),), (), max_batch=8), 0.0)
    assert (await b.director.infer(call_of(request(payload=bytes(12))), CODEC)).error is None
    assert counts((await stats(b, version="1"))["1"]) == (3, 1, 0)


async def test_variants_of_one_version_are_one_entry():
    b = await bench()

    async def answers_as_1(message: service_pb2.ModelInferRequest, timeout_s: float) -> bytes:
        return response(message.model_name, "1")

    for endpoint in b.endpoints.values():
        endpoint.behaviour = answers_as_1
    await b.director.infer(call_of(), CODEC)
    b.state.heard("site", Health(up=False))
    await b.director.infer(call_of(), CODEC)
    assert counts((await stats(b))["1"]) == (2, 2, 0)


async def test_a_model_without_any_version_has_one_entry():
    model = {**config_of().models[0].model_dump(), "variants": [{"endpoint": "site"}]}
    b = await bench(config_of(models=[model]))

    async def nameless(model: str, version: str, timeout_s: float) -> bytes:
        return service_pb2.ModelMetadataResponse(name=model).SerializeToString()

    b.endpoints["site"].model_metadata = nameless
    assert list(await stats(b)) == [""]
    b.state.heard("site", Health(up=False))
    assert list(await stats(b)) == [""]


async def test_all_models_are_told_where_none_is_named():
    digits = config_of().models[0].model_dump()
    b = await bench(config_of(models=[digits, {**digits, "name": "letters"}]))
    await b.director.infer(call_of(request("letters")), CODEC)
    told = json.loads(statistics_to_json(await b.director.statistics("", "", NONE)))["model_stats"]
    assert [(entry["name"], entry["version"], entry["inference_count"]) for entry in told] == [
        ("digits", "1", 0),
        ("digits", "3", 0),
        ("letters", "1", 1),
        ("letters", "3", 0),
    ]


@pytest.mark.parametrize(("model", "version"), [("nobody", ""), ("digits", "v1")])
async def test_what_nobody_knows_has_no_statistics(model: str, version: str):
    b = await bench()
    with pytest.raises(Refusal):
        await b.director.statistics(model, version, NONE)


async def test_a_version_that_no_endpoint_knows_has_no_statistics():
    b = await bench()

    async def unknown(model: str, version: str, timeout_s: float) -> bytes:
        raise failure(Reason.UNKNOWN_MODEL)

    for endpoint in b.endpoints.values():
        endpoint.model_metadata = unknown
    with pytest.raises(Refusal) as caught:
        await b.director.statistics("digits", "77", NONE)
    assert caught.value.reason in (Reason.UNKNOWN_MODEL, Reason.UNKNOWN_VERSION)
