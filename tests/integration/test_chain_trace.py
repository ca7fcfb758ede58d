"""A caller, the cloud's gateway, a plant's gateway and a device of the plant: one trace, one wall, and
what a kill on the way costs.

gw-plant-7 is `tidegate up` with a hub, cam-7a a `tidegate-agent` at it, gw-cloud a data plane replica that
knows the plant's gateway alone.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import numpy as np
import psutil
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from edgewire.v1 import edge_pb2, edge_pb2_grpc
from gateway.demo.caller import Answer, Caller
from gateway.telemetry import names
from tests.support.agent import AgentProcess, running_agent
from tests.support.gateway import Gateway, running_gateway
from tests.support.otlp import OtlpReceiver, ReceivedSpan
from tests.support.replica import Replica
from tests.support.storm import CALLERS, MODEL, PIXELS, answers_again, right, storm
from tests.support.waiting import until_true

CLOUD_TO_PLANT = "the-token-that-gw-cloud-shows-at-the-plant"
PLANT_TO_CLOUD = "the-token-that-gw-plant-7-shows-in-the-cloud"
TOLERANCE = 1e-3
LEFT = 200 - 200 // 3 + CALLERS
"""Of 200 requests, those that a kill after a third of them can reach."""

CLOUD = """
version: 1
gateway:
  name: gw-cloud
  location: {{tier: cloud, region: eu}}
  peers: [{{name: gw-plant-7, token: {to_cloud}, site: plant-7}}]
endpoints:
  - {{name: gw-plant-7, kind: gateway, url: "grpc://{plant}", token: {to_plant}, location: {{tier: site, site: plant-7}}}}
models:
  - {{name: digits, idempotent: true, variants: [{{endpoint: gw-plant-7}}]}}
  - {{name: digits-of-the-site, idempotent: true, variants: [{{endpoint: gw-plant-7}}]}}
privacy:
  default: public
  classes:
    public: {{allow: [{{tier: [device, site, regional, cloud]}}]}}
    no-device: {{allow: [{{tier: [site, regional, cloud]}}]}}
    personal: {{allow: [{{tier: [device, site], same: site}}]}}
policies: [{{name: default, match: {{}}, weights: {{latency: 1}}, retry: {{num_retries: 1, budget_percent: 100}}}}]
telemetry: {{otlp_endpoint: "{otlp}", sample_ratio: 0}}
"""
PLANT = """
version: 1
gateway:
  name: gw-plant-7
  location: {{tier: site, site: plant-7, region: relay}}
  peers: [{{name: gw-cloud, token: {to_plant}}}]
endpoints:
  - {{name: cameras, kind: edge, select: {{site: [plant-7]}}}}
  - {{name: gw-cloud, kind: gateway, url: "grpc://{cloud}", token: {to_cloud}, location: {{tier: cloud, region: eu}}}}
models:
  - {{name: digits, idempotent: true, variants: [{{endpoint: cameras, artifact: digits.tflite}}]}}
  - {{name: digits-of-the-site, privacy: personal, idempotent: true, variants: [{{endpoint: cameras, artifact: digits.tflite}}]}}
  - {{name: round, idempotent: true, variants: [{{endpoint: gw-cloud, model: digits}}]}}
privacy:
  default: public
  classes:
    public: {{allow: [{{tier: [device, site, regional, cloud]}}]}}
    personal: {{allow: [{{tier: [device, site], same: site}}]}}
    own-device: {{allow: [{{tier: site, region: relay}}, {{tier: device, same: device}}]}}
    secret: {{allow: [{{tier: device, same: device}}]}}
policies: [{{name: default, match: {{}}, weights: {{latency: 1}}, retry: {{num_retries: 1, budget_percent: 100}}}}]
telemetry: {{otlp_endpoint: "{otlp}", sample_ratio: 0}}
"""


class Camera:
    """cam-7a, killed and started over as by what keeps it running."""

    def __init__(self, state: Path, hub: str, token: str) -> None:
        self._state, self._hub, self._token = state, hub, token
        self._running = ExitStack()
        self.agent: AgentProcess | None = None

    def start(self) -> None:
        self.agent = self._running.enter_context(
            running_agent(self._state, self._hub, "--token", self._token)
        )

    def kill(self) -> None:
        assert self.agent is not None
        self.agent.process.kill()
        self.agent.process.wait()

    def close(self) -> None:
        self._running.close()

    @property
    def pid(self) -> int:
        assert self.agent is not None
        return self.agent.pid

    @property
    def credential(self) -> str:
        return (self._state / "credential").read_text().strip()


@dataclass(slots=True)
class Chain:
    cloud: Replica
    plant: Gateway
    camera: Camera
    receiver: OtlpReceiver

    def ask(self, at: str, model: str = "digits", /, **options: str) -> Answer:
        """Over gRPC; `privacy="x"` is `tidegate-privacy: x`, and `authorization` is a credential."""
        caller = Caller(at, model)
        try:
            return caller.ask(PIXELS[:1], metadata(**options))
        finally:
            caller.close()


def metadata(**options: str) -> dict[str, str]:
    bearer = options.pop("authorization", "")
    given = {f"tidegate-{key}": value for key, value in options.items() if key != "traceparent"}
    given |= {key: value for key, value in options.items() if key == "traceparent"}
    return {**given, "authorization": f"Bearer {bearer}"} if bearer else given


def enrolment(plant: Gateway, device: str) -> str:
    answer = httpx.post(
        f"http://{plant.http}/api/v1/devices/tokens", json={"site": "plant-7", "device": device}, timeout=10
    )
    answer.raise_for_status()
    return answer.json()["token"]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    folder = tmp_path_factory.mktemp("chain")
    (folder / "plant").mkdir()
    (folder / "plant" / "digits.tflite").write_bytes(MODEL.tflite())
    with OtlpReceiver() as receiver, ExitStack() as stack:
        cloud = Replica("", folder / "cloud")
        keys = {"otlp": receiver.url, "to_cloud": PLANT_TO_CLOUD, "to_plant": CLOUD_TO_PLANT}
        plant = stack.enter_context(running_gateway(PLANT.format(**keys, cloud=cloud.grpc), folder / "plant"))
        cloud.write(CLOUD.format(**keys, plant=plant.grpc))
        cloud.start()
        stack.callback(cloud.kill)
        assert plant.edge is not None
        camera = Camera(folder / "cam-7a", plant.edge, enrolment(plant, "cam-7a"))
        stack.callback(camera.close)
        camera.start()
        answers_again(cloud.grpc, {})
        yield Chain(cloud, plant, camera, receiver)


Tree = tuple[str, str, list["Tree"]]
"""A span's name, who exported it, and what is below it, by start."""


def trees(spans: list[ReceivedSpan]) -> list[Tree]:
    """Every span of one trace, below its parent or at the top."""
    known = {span.span_id for span in spans}

    def below(parent: str) -> list[Tree]:
        here = [s for s in spans if (s.parent_id if s.parent_id in known else "") == parent]
        return [(s.name, who(s), below(s.span_id)) for s in sorted(here, key=lambda s: s.start_ns)]

    return below("")


def who(span: ReceivedSpan) -> str:
    return span.resource["service.instance.id"] if span.service == "tidegate" else span.service


def lines(found: list[Tree], depth: int = 1) -> str:
    return "".join(f"{'  ' * depth}{name} [{by}]\n{lines(under, depth + 1)}" for name, by, under in found)


def at_gateway(name: str, *below: Tree) -> Tree:
    return ("tidegate.request", name, [("tidegate.decide", name, []), ("tidegate.attempt", name, [*below])])


AT_THE_PLANT = at_gateway("gw-plant-7", ("tidegate.agent.infer", "gw-plant-7", []))


def traced(chain: Chain, at: str, **options: str) -> list[ReceivedSpan]:
    """The whole trace of one request below a caller's span, as OpenTelemetry's SDK makes it."""
    provider = TracerProvider(resource=Resource.create({"service.name": "caller"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{chain.receiver.url}/v1/traces")))
    span = provider.get_tracer("test").start_span("caller.infer")
    context = span.get_span_context()
    trace_id = f"{context.trace_id:032x}"
    header = f"00-{trace_id}-{context.span_id:016x}-01"
    answer = chain.ask(at, traceparent=header, **options)
    span.end()
    provider.shutdown()
    assert answer.status == "OK", answer.message

    def complete(_: OtlpReceiver) -> bool:
        spans = chain.receiver.trace(trace_id)
        roots = [s for s in spans if s.name == "tidegate.request"]
        # A request's span is the last that its gateway exports.
        return len(roots) == (2 if at == chain.cloud.grpc else 1)

    chain.receiver.wait_for(complete, timeout=30)
    return chain.receiver.trace(trace_id)


def test_one_trace_crosses_both_gateways_into_the_device(chain: Chain, capsys: pytest.CaptureFixture[str]):
    spans = traced(chain, chain.cloud.grpc)
    with capsys.disabled():
        print(f"\n{lines(trees(spans))}", end="")
    assert trees(spans) == [("caller.infer", "caller", [at_gateway("gw-cloud", AT_THE_PLANT)])]
    attempts = {who(s): s.attributes for s in spans if s.name == "tidegate.attempt"}
    assert attempts["gw-cloud"]["tidegate.endpoint"] == "gw-plant-7"
    assert "tidegate.device" not in attempts["gw-cloud"]
    assert attempts["gw-plant-7"]["tidegate.endpoint"] == "cameras"
    assert attempts["gw-plant-7"]["tidegate.device"] == "cam-7a"
    (infer,) = (s for s in spans if s.name == "tidegate.agent.infer")
    assert infer.attributes == {"tidegate.outcome": "ok"}
    for span in spans:
        above = next((s for s in spans if s.span_id == span.parent_id), span)
        assert above.start_ns <= span.start_ns <= span.end_ns <= above.end_ns, (span.name, above.name)


def test_a_span_holds_names_and_numbers_and_nothing_of_the_caller(chain: Chain):
    """Neither a pixel, nor what the caller, a gateway or the device shows as itself."""
    credential = chain.camera.credential
    spans = traced(chain, chain.plant.grpc, authorization=credential, privacy="own-device", device="cam-7a")
    assert trees(spans) == [("caller.infer", "caller", [AT_THE_PLANT])]
    spans += traced(chain, chain.cloud.grpc)
    ours = [s for s in spans if s.name != "caller.infer"]
    known = {getattr(names, key) for key in dir(names) if key.startswith("ATTR_")}
    assert {key for span in ours for key in span.attributes} <= known
    values = [str(value) for span in ours for value in (*span.attributes.values(), *span.resource.values())]
    shown = (credential, hashlib.sha256(credential.encode()).hexdigest(), CLOUD_TO_PLANT, PLANT_TO_CLOUD)
    assert not [value for value in values for secret in shown if secret in value]
    assert all(len(value) <= 64 and not set(value) & set(" []{},=") for value in values), values


@pytest.mark.parametrize("at", ["cloud", "plant"])
def test_what_the_caller_does_not_sample_nobody_exports(chain: Chain, at: str):
    address = chain.cloud.grpc if at == "cloud" else chain.plant.grpc
    unsampled = secrets.token_hex(16)
    header = f"00-{unsampled}-{secrets.token_hex(8)}-00"
    assert chain.ask(address, traceparent=header).status == "OK"
    # Exported in turn: what comes after it has come says that it does not.
    assert trees(traced(chain, address))
    assert chain.receiver.trace(unsampled) == []


def test_a_public_request_in_the_cloud_is_answered_by_the_plants_device(chain: Chain):
    answer = chain.ask(chain.cloud.grpc)
    assert (answer.status, answer.endpoint) == ("OK", "gw-plant-7"), answer.message
    assert right(answer, PIXELS[:1], TOLERANCE)
    body = {"inputs": [{"name": "pixels", "shape": [1, 64], "datatype": "FP32", "data": PIXELS[0].tolist()}]}
    over_http = httpx.post(f"http://{chain.cloud.http}/v2/models/digits/infer", json=body, timeout=20)
    assert over_http.status_code == 200, over_http.text
    found = np.array(over_http.json()["outputs"][0]["data"])
    assert np.allclose(found, MODEL.predict(PIXELS[:1]).ravel(), atol=TOLERANCE)


def requests_at(plant: Gateway) -> float:
    """How many inferences the plant's gateway has seen."""
    text = httpx.get(f"http://{plant.metrics}/metrics", timeout=15).text
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("tidegate_requests_total{")
    )


def test_personal_data_is_refused_in_the_cloud_and_not_passed_on(chain: Chain):
    before = requests_at(chain.plant)
    for options in ({}, {"site": "plant-7"}, {"device": "cam-7a"}):
        answer = chain.ask(chain.cloud.grpc, privacy="personal", **options)
        assert (answer.status, answer.attempts) == ("PERMISSION_DENIED", 0), answer.message
        assert "'personal'" in answer.message
    assert requests_at(chain.plant) == before
    assert chain.ask(chain.plant.grpc, privacy="personal").status == "OK"


def test_the_plant_enforces_again_what_the_cloud_allows(chain: Chain):
    """Once the cloud's set is the narrower, once the plant's own class."""
    narrow = chain.ask(chain.cloud.grpc, privacy="no-device")
    assert (narrow.status, narrow.attempts) == ("PERMISSION_DENIED", 1), narrow.message
    # The cloud is told that the plant has nothing for it, and need not send; sent all the same, it is refused.
    wide = chain.ask(chain.cloud.grpc, "digits-of-the-site")
    assert (wide.status, wide.attempts) == ("UNAVAILABLE", 0), wide.message
    peer = {"authorization": CLOUD_TO_PLANT, "allowed": "tier=device+site+regional+cloud"}
    sent = chain.ask(chain.plant.grpc, "digits-of-the-site", **peer)
    assert (sent.status, sent.attempts) == ("PERMISSION_DENIED", 0), sent.message
    assert chain.ask(chain.plant.grpc, **peer).status == "OK"
    assert chain.ask(chain.plant.grpc, "digits-of-the-site").status == "OK"


def test_a_request_that_comes_round_ends(chain: Chain):
    answer = chain.ask(chain.plant.grpc, "round")
    assert answer.status == "UNAVAILABLE", answer.message


def enrolled(chain: Chain, device: str) -> str:
    """The credential of a device that has enrolled and is away."""
    credential = secrets.token_urlsafe(32)
    assert chain.plant.edge is not None
    with grpc.insecure_channel(chain.plant.edge) as channel:
        edge_pb2_grpc.EdgeHubStub(channel).Enrol(
            edge_pb2.EnrolRequest(
                token=enrolment(chain.plant, device),
                device=device,
                credential_sha256=hashlib.sha256(credential.encode()).digest(),
            ),
            timeout=10,
        )
    # The gateway hears of it from the hub.
    until_true(lambda: chain.ask(chain.plant.grpc, authorization=credential).status == "OK")
    return credential


def test_only_the_device_itself_is_its_own(chain: Chain):
    plant, mine = chain.plant.grpc, chain.camera.credential
    other = enrolled(chain, "cam-7b")

    def told(credential: str = "", **options: str) -> str:
        answer = chain.ask(plant, authorization=credential, **options)
        assert mine not in answer.message
        assert other not in answer.message
        return answer.status

    own = {"privacy": "own-device"}
    assert told(mine, **own) == told(mine, **own, device="cam-7a", site="plant-7") == "OK"
    # Another device's data has nowhere to go while that device is away, and never to cam-7a.
    answer = chain.ask(plant, authorization=other, **own)
    assert (answer.status, answer.attempts) == ("UNAVAILABLE", 0)
    assert "cam-7b" in answer.message
    for credential, device in ((mine, "cam-7b"), (other, "cam-7a"), (mine, "cam-7x")):
        assert told(credential, **own, device=device) == "PERMISSION_DENIED"
    assert told(mine, **own, site="plant-9") == "PERMISSION_DENIED"
    # A name alone is no credential, and a peer is no device.
    assert told("", **own, device="cam-7a") == told("", **own) == "PERMISSION_DENIED"
    assert told(CLOUD_TO_PLANT, **own, device="cam-7a") == "INVALID_ARGUMENT"
    assert told(CLOUD_TO_PLANT, **own, allowed="tier=site+device") == "PERMISSION_DENIED"
    # What no gateway may see, none takes, not even from the device.
    assert told(mine, privacy="secret") == told(other, privacy="secret") == "PERMISSION_DENIED"
    assert told(mine[::-1], **own) == told(mine + "x", **own) == "UNAUTHENTICATED"
    assert chain.ask(chain.cloud.grpc, authorization=mine).status == "UNAUTHENTICATED"
    for log in (chain.plant.log, chain.cloud.log):
        assert not [secret for secret in (mine, other) if secret in log.read_text()]


def test_a_revoked_device_is_nobody(chain: Chain):
    other = enrolled(chain, "cam-7r")
    revoked = httpx.post(f"http://{chain.plant.http}/api/v1/devices/cam-7r/revoke", timeout=10)
    assert revoked.status_code == 200, revoked.text

    def shut_out() -> bool:
        answer = chain.ask(chain.plant.grpc, authorization=other, privacy="own-device")
        assert answer.status in ("UNAVAILABLE", "UNAUTHENTICATED"), answer.message
        return answer.status == "UNAUTHENTICATED"

    until_true(shut_out)
    assert chain.ask(chain.plant.grpc, authorization=other).status == "UNAUTHENTICATED"


def test_a_killed_agent_amid_requests(chain: Chain):
    """The only device of the plant: there are errors until it is started over, and no wrong answer."""
    workers = psutil.Process(chain.camera.pid).children(recursive=True)
    assert workers
    got = storm(chain.cloud.grpc, {}, chain.camera.kill)
    got.check("cam-7a's agent", TOLERANCE, failed_at_most=LEFT)
    assert got.failed
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive
    chain.camera.start()
    print(f"answers again {answers_again(chain.cloud.grpc, {}) - got.killed_at:.1f} s after the kill")
    assert trees(traced(chain, chain.cloud.grpc))[0][2] == [at_gateway("gw-cloud", AT_THE_PLANT)]


def test_a_killed_data_plane_of_the_plant_amid_requests(chain: Chain):
    """Ray Serve starts another on the same port; device, hub and cloud find it by themselves."""
    (pid,) = chain.plant.pids["data_plane"]
    got = storm(chain.cloud.grpc, {}, lambda: os.kill(pid, signal.SIGKILL))
    got.check("gw-plant-7's data plane", TOLERANCE, failed_at_most=LEFT)
    print(f"answers again {answers_again(chain.cloud.grpc, {}) - got.killed_at:.1f} s after the kill")
    assert trees(traced(chain, chain.cloud.grpc))[0][2] == [at_gateway("gw-cloud", AT_THE_PLANT)]
