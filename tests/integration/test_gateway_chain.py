"""Gateway after gateway: what a site lets out, the cloud holds to; who asks; and where a route ends.

gw-a at site s1 knows gw-b in the cloud, which has a Triton and knows gw-a in turn, and gw-far, whose
Triton is in a place that gw-a's class `eu` forbids. Three replicas' processes, one Triton, a receiver
of traces.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.demo.triton import TritonServer
from tests.support.otlp import OtlpReceiver
from tests.support.replica import Replica
from tests.support.triton import REPOSITORY

A_TO_B = "the-token-that-gw-a-shows-to-gw-b-1"
B_TO_A = "the-token-that-gw-b-shows-to-gw-a-2"

CLASSES = """
privacy:
  default: public
  classes:
    public: {{allow: [{{tier: [device, site, regional, cloud]}}]}}
    {more}
policies: [{{name: default, match: {{}}, weights: {{quality: 1}}, retry: {{num_retries: 2}}}}]
telemetry: {{otlp_endpoint: "{otlp}", sample_ratio: 0}}
"""
A = (
    """
version: 1
gateway:
  name: gw-a
  location: {{tier: site, site: s1}}
  peers: [{{name: gw-b, token: {b_to_a}}}]
endpoints:
  - {{name: gw-b, kind: gateway, url: "grpc://127.0.0.1:{b}", token: {a_to_b}, location: {{tier: cloud, region: eu}}}}
  - {{name: gw-far, kind: gateway, url: "grpc://127.0.0.1:{far}", token: {a_to_b}, location: {{tier: cloud, region: eu}}}}
models:
  - {{name: simple, privacy: eu, idempotent: true, variants: [{{endpoint: gw-b, model: add}}]}}
  - {{name: far, privacy: eu, idempotent: true, variants: [{{endpoint: gw-far, model: add}}]}}
  - {{name: both, privacy: eu, idempotent: true, variants: [{{endpoint: gw-far, model: add, quality: 1}}, {{endpoint: gw-b, model: add, quality: 0.5}}]}}
  - {{name: anywhere, idempotent: true, variants: [{{endpoint: gw-far, model: add}}]}}
  - {{name: round, idempotent: true, variants: [{{endpoint: gw-b}}]}}
  - {{name: stay, privacy: site, variants: [{{endpoint: gw-b, model: add}}]}}
"""
    + CLASSES
)
B = (
    """
version: 1
gateway:
  name: {name}
  location: {{tier: cloud, region: eu}}
  peers: [{{name: gw-a, token: {a_to_b}, site: s1}}]
endpoints:
  - {{name: near, kind: triton, url: "grpc://127.0.0.1:{triton}", location: {{tier: cloud, region: eu}}}}
  - {{name: far, kind: triton, url: "grpc://127.0.0.1:{triton}", location: {{tier: cloud, region: us}}}}
  - {{name: gw-a, kind: gateway, url: "grpc://127.0.0.1:{a}", token: {b_to_a}, location: {{tier: site, site: s1}}}}
models:
  - {{name: add, idempotent: true, variants: [{{endpoint: {place}, model: simple}}]}}
  - {{name: round, idempotent: true, variants: [{{endpoint: gw-a}}]}}
"""
    + CLASSES
)


@dataclass(slots=True)
class Chain:
    a: Replica
    b: Replica
    far: Replica
    receiver: OtlpReceiver


@pytest.fixture(scope="module")
def triton() -> Iterator[TritonServer]:
    server = TritonServer(REPOSITORY, load=["simple"])
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def chain(triton: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    folder = tmp_path_factory.mktemp("chain")
    with OtlpReceiver() as receiver:
        a, b, far = (Replica("", folder / name) for name in ("a", "b", "far"))
        keys = {
            "a": a.grpc_port,
            "b": b.grpc_port,
            "far": far.grpc_port,
            "triton": triton.grpc_port,
            "a_to_b": A_TO_B,
            "b_to_a": B_TO_A,
            "otlp": receiver.url,
        }
        eu = "eu: {allow: [{tier: [device, site]}, {tier: [cloud], region: [eu]}]}"
        a.write(A.format(**keys, more=eu + "\n    site: {allow: [{tier: [device, site], same: [site]}]}"))
        b.write(B.format(**keys, name="gw-b", place="near", more=""))
        far.write(B.format(**keys, name="gw-far", place="far", more=""))
        started: list[Replica] = []
        try:
            for replica in (b, far, a):
                started.append(replica.start())
            yield Chain(a, b, far, receiver)
        finally:
            for replica in started:
                replica.kill()


def simple(model: str) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name=model)
    for name in ("INPUT0", "INPUT1"):
        tensor = message.inputs.add(name=name, datatype="INT32")
        tensor.shape.extend([1, 16])
        message.raw_input_contents.append(np.arange(16, dtype=np.int32).tobytes())
    return message


Metadata = tuple[tuple[str, str], ...]


def infer(at: Replica, model: str, metadata: Metadata = ()) -> tuple[np.ndarray, dict[str, str]]:
    """OUTPUT0 and the answer's headers. Raises RpcError."""
    with grpc.insecure_channel(at.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer, call = stub.ModelInfer.with_call(simple(model), timeout=10, metadata=metadata)
        assert answer.model_name == model
        headers = {k: v for k, v in call.initial_metadata() if isinstance(v, str)}
        return np.frombuffer(answer.raw_output_contents[0], np.int32), headers


def refused(at: Replica, model: str, metadata: Metadata = ()) -> tuple[str, str, dict[str, str]]:
    """Status, message and headers of an error."""
    with pytest.raises(grpc.RpcError) as caught:
        infer(at, model, metadata)
    error = caught.value
    return error.code().name, error.details(), dict(error.initial_metadata())


def bearer(token: str, *metadata: tuple[str, str]) -> Metadata:
    return (("authorization", f"Bearer {token}"), *metadata)


def test_an_answer_comes_back_over_two_gateways(chain: Chain):
    value, headers = infer(chain.a, "simple")
    assert value.tolist() == [2 * n for n in range(16)]
    assert (headers["tidegate-endpoint"], headers["tidegate-tier"]) == ("gw-b", "cloud")
    assert "tidegate-reason" not in headers


def test_a_question_is_passed_on_and_answered_under_the_own_name(chain: Chain):
    with grpc.insecure_channel(chain.a.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        metadata = stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="simple"), timeout=10)
        assert metadata.name == "simple"
        assert [tensor.name for tensor in metadata.inputs] == ["INPUT0", "INPUT1"]
        for version, ready in (("1", True), ("9", False)):
            asked = service_pb2.ModelReadyRequest(name="simple", version=version)
            assert stub.ModelReady(asked, timeout=10).ready is ready


def test_gateways_that_lead_to_each_other_have_nothing_ready(chain: Chain):
    with grpc.insecure_channel(chain.a.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert not stub.ModelReady(service_pb2.ModelReadyRequest(name="round"), timeout=10).ready


def test_a_loop_ends_where_it_closes(chain: Chain):
    """Sent straight into the circle: gw-b, asked by gw-a, would go back there."""
    status, message, _ = refused(
        chain.b, "round", bearer(A_TO_B, ("tidegate-allowed", "tier=site+cloud"), ("tidegate-hops", "gw-a"))
    )
    assert status == "UNAVAILABLE"
    assert "gw-a (hops): the request has passed gw-a before" in message
    status, message, headers = refused(
        chain.b, "add", bearer(A_TO_B, ("tidegate-allowed", "tier=cloud"), ("tidegate-hops", "gw-b,gw-a"))
    )
    assert status == "FAILED_PRECONDITION"
    assert headers["tidegate-reason"] == "loop"
    assert "gw-b" in message


def allowed(rule: str) -> tuple[str, str]:
    return ("tidegate-allowed", rule)


def test_what_a_forbids_b_does_not_do_although_its_own_class_would(chain: Chain):
    """The gateway behind gw-a may see the data, the place behind that may not."""
    for at, model, place in ((chain.far, "add", "far"), (chain.a, "anywhere", "gw-far")):
        value, headers = infer(at, model)
        assert (value[1], headers["tidegate-endpoint"]) == (2, place)
    status, message, headers = refused(chain.a, "far")
    assert (status, message) == (
        "PERMISSION_DENIED",
        "Endpoint gw-far has no place that the request may go to.",
    )
    assert (headers["tidegate-endpoint"], headers["tidegate-attempts"]) == ("gw-far", "1")
    for_eu = "tier=device+site,tier=cloud;region=eu"
    status, message, headers = refused(chain.far, "add", bearer(A_TO_B, allowed(for_eu)))
    assert status == "PERMISSION_DENIED"
    assert headers["tidegate-reason"] == "privacy"
    assert "No endpoint of model 'add'" in message
    assert "tidegate-endpoint" not in headers
    value, headers = infer(chain.far, "add", bearer(A_TO_B, allowed("tier=cloud")))
    assert headers["tidegate-endpoint"] == "far"


def test_a_gateway_without_an_allowed_place_is_passed_over_for_another(chain: Chain):
    value, headers = infer(chain.a, "both")
    assert value[1] == 2
    assert (headers["tidegate-endpoint"], headers["tidegate-attempts"]) == ("gw-b", "2")


def test_a_set_without_the_gateways_own_place_is_refused_there(chain: Chain):
    status, message, _ = refused(chain.b, "add", bearer(A_TO_B, allowed("tier=site;site=s1")))
    assert status == "PERMISSION_DENIED"
    assert "leave out this gateway's place" in message


def test_what_must_stay_on_site_does_not_leave_it(chain: Chain):
    status, message, headers = refused(chain.a, "stay")
    assert status == "PERMISSION_DENIED"
    assert headers["tidegate-attempts"] == "0"
    assert "'site'" in message


@pytest.mark.parametrize("forged", [allowed("tier=cloud"), ("tidegate-hops", "gw-x")])
def test_a_caller_that_is_no_peer_forges_nothing(chain: Chain, forged: tuple[str, str]):
    for at in (chain.a, chain.b):
        status, message, _ = refused(at, "anywhere" if at is chain.a else "add", (forged,))
        assert status == "INVALID_ARGUMENT"
        assert message.startswith(f"{forged[0]} is taken from a peer gateway alone")


def test_a_peer_must_say_where_the_data_may_go(chain: Chain):
    status, message, _ = refused(chain.b, "add", bearer(A_TO_B))
    assert status == "INVALID_ARGUMENT"
    assert "tidegate-allowed" in message


def test_a_wrong_token_is_401_in_both_bindings_and_nowhere_repeated(chain: Chain):
    wrong = "Bearer " + A_TO_B[::-1]
    status, message, _ = refused(chain.b, "add", (("authorization", wrong),))
    assert status == "UNAUTHENTICATED"
    body = {"inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}]}
    url = f"http://{chain.b.http}/v2/models/add"
    for answer in (
        httpx.post(f"{url}/infer", json=body, headers={"authorization": wrong}),
        httpx.get(f"{url}/ready", headers={"authorization": wrong}),
        httpx.get(f"http://{chain.b.http}/v2/health/live", headers={"authorization": wrong}),
    ):
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json() == {"error": message}
    for replica in (chain.a, chain.b):
        log = replica.log.read_text()
        assert not any(token in log + message for token in (A_TO_B, B_TO_A, A_TO_B[::-1]))


def test_a_mistake_is_found_at_the_first_gateway(chain: Chain):
    """gw-a knows what the model takes from gw-b, and says the same as that would."""
    body = {"inputs": [{"name": "WRONG", "datatype": "INT32", "shape": [1, 16], "data": list(range(16))}]}
    answers = [
        httpx.post(f"http://{at.http}/v2/models/{model}/infer", json=body)
        for at, model in ((chain.a, "simple"), (chain.b, "add"))
    ]
    assert [answer.status_code for answer in answers] == [400, 400]
    first, second = (answer.json()["error"] for answer in answers)
    assert first.replace("'simple'", "'add'") == second
    assert answers[0].headers["tidegate-attempts"] == "0"


def test_a_trace_crosses_both(chain: Chain):
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    infer(chain.a, "simple", (("traceparent", f"00-{trace_id}-{span_id}-01"),))

    def of(gateway: str) -> dict[str, object]:
        found = chain.receiver.trace(trace_id)
        roots = [
            s
            for s in found
            if s.name == "tidegate.request" and s.attributes.get("tidegate.gateway") == gateway
        ]
        attempts = [
            s for s in found if s.name == "tidegate.attempt" and roots and s.parent_id == roots[0].span_id
        ]
        return {"root": roots[0], "attempt": attempts[0]} if roots and attempts else {}

    chain.receiver.wait_for(lambda _: bool(of("gw-a") and of("gw-b")), timeout=30)
    a, b = of("gw-a"), of("gw-b")
    assert a["root"].parent_id == span_id
    assert a["attempt"].attributes["tidegate.endpoint"] == "gw-b"
    assert b["root"].parent_id == a["attempt"].span_id
    assert b["attempt"].attributes["tidegate.endpoint"] == "near"
