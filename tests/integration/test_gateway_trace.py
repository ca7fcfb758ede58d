"""One trace from the caller through the gateway into Triton's own spans, as an OTLP receiver got it."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.demo.triton import TritonServer, trace_args
from tests.support.gateway import Gateway, running_gateway
from tests.support.otlp import Blackhole, OtlpReceiver

REPOSITORY = Path(__file__).parents[1] / "conformance" / "model_repository"

CONFIG = """
version: 1
gateway: {{name: gw, location: {{tier: cloud, region: eu}}}}
endpoints:
  - {{name: t, kind: triton, url: "grpc://127.0.0.1:{port}", location: {{tier: cloud, region: eu}}}}
models: [{{name: simple, variants: [{{endpoint: t}}]}}]
privacy: {{default: any, classes: {{any: {{allow: [{{tier: [device, site, regional, cloud]}}]}}}}}}
policies: [{{name: default, match: {{}}, weights: {{latency: 1}}}}]
telemetry: {{otlp_endpoint: "{otlp}", sample_ratio: {ratio}}}
"""


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as found:
        yield found


@pytest.fixture(scope="module")
def triton(receiver: OtlpReceiver) -> Iterator[TritonServer]:
    server = TritonServer(REPOSITORY, load=["simple"], extra_args=trace_args(f"{receiver.url}/v1/traces"))
    server.start()
    yield server
    server.stop()


def simple() -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name="simple")
    for name in ("INPUT0", "INPUT1"):
        tensor = message.inputs.add(name=name, datatype="INT32")
        tensor.shape.extend([1, 16])
        message.raw_input_contents.append(np.arange(16, dtype=np.int32).tobytes())
    return message


def test_one_trace_holds_the_caller_the_gateway_and_triton(
    receiver: OtlpReceiver, triton: TritonServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    provider = TracerProvider(resource=Resource.create({"service.name": "caller"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{receiver.url}/v1/traces")))
    config = CONFIG.format(port=triton.grpc_port, otlp=receiver.url, ratio=0.0)
    with running_gateway(config, tmp_path) as gateway, grpc.insecure_channel(gateway.grpc) as channel:
        gateway.wait_up("t")
        span = provider.get_tracer("test").start_span("caller.infer")
        context = span.get_span_context()
        trace_id = f"{context.trace_id:032x}"
        header = f"00-{trace_id}-{context.span_id:016x}-01"
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        stub.ModelInfer(simple(), timeout=10, metadata=(("traceparent", header),))
        span.end()

        def complete(_: OtlpReceiver) -> bool:
            names = {s.name for s in receiver.trace(trace_id)}
            return {"caller.infer", "tidegate.request", "tidegate.attempt", "InferRequest"} <= names

        receiver.wait_for(complete, timeout=30)
    provider.shutdown()
    spans = receiver.trace(trace_id)
    with capsys.disabled():
        print()
        show(spans)
    by_name = {s.name: s for s in spans}
    assert by_name["tidegate.request"].parent_id == by_name["caller.infer"].span_id
    assert by_name["tidegate.decide"].parent_id == by_name["tidegate.request"].span_id
    assert by_name["tidegate.attempt"].parent_id == by_name["tidegate.request"].span_id
    assert by_name["InferRequest"].parent_id == by_name["tidegate.attempt"].span_id
    assert by_name["tidegate.attempt"].attributes["tidegate.endpoint"] == "t"


def show(spans) -> None:
    """The trace as an indented list."""
    children: dict[str, list] = {}
    ids = {s.span_id for s in spans}
    for span in sorted(spans, key=lambda s: s.start_ns):
        children.setdefault(span.parent_id if span.parent_id in ids else "", []).append(span)

    def lines(parent: str, depth: int) -> None:
        for span in children.get(parent, []):
            took = (span.end_ns - span.start_ns) / 1e6
            print(f"  {'  ' * depth}{span.name} [{span.service or 'triton'}] {took:.2f} ms")
            lines(span.span_id, depth + 1)

    print(f"trace {spans[0].trace_id}")
    lines("", 0)


def test_caller_that_does_not_sample_is_not_exported(
    receiver: OtlpReceiver, triton: TritonServer, tmp_path: Path
):
    config = CONFIG.format(port=triton.grpc_port, otlp=receiver.url, ratio=1.0)
    unsampled, sampled = secrets.token_hex(16), secrets.token_hex(16)
    with running_gateway(config, tmp_path) as gateway, grpc.insecure_channel(gateway.grpc) as channel:
        gateway.wait_up("t")
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for trace_id, flags in ((unsampled, "00"), (sampled, "01")):
            header = (("traceparent", f"00-{trace_id}-{secrets.token_hex(8)}-{flags}"),)
            stub.ModelInfer(simple(), timeout=10, metadata=header)
        receiver.wait_for(
            lambda _: any(s.name == "tidegate.request" for s in receiver.trace(sampled)), timeout=30
        )
    assert not [s for s in receiver.trace(unsampled) if s.name.startswith("tidegate.")]


@pytest.mark.quiet
def test_blackholed_receiver_slows_nothing(
    triton: TritonServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The same load on two gateways at once, one with a receiver that works and one with a receiver
    that never answers, taking turns. Every request is sampled."""
    with OtlpReceiver() as working, Blackhole() as blackhole:
        ports = {"working": working.url, "blackholed": blackhole.url}
        configs = {
            name: CONFIG.format(port=triton.grpc_port, otlp=url, ratio=1.0) for name, url in ports.items()
        }
        with (
            running_gateway(configs["working"], tmp_path / "working") as one,
            running_gateway(configs["blackholed"], tmp_path / "blackholed") as other,
        ):
            one.wait_up("t")
            other.wait_up("t")
            rounds = [(p50_ms(one), p50_ms(other)) for _ in range(15)]
    ratio = statistics.median(b / w for w, b in rounds[2:])
    with capsys.disabled():
        print(f"\n  p50 with the receiver blackholed over p50 with it working: {ratio:.3f}")
    assert ratio < 1.25


def p50_ms(gateway: Gateway) -> float:
    message, took = simple(), []
    with grpc.insecure_channel(gateway.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(60):
            started = time.perf_counter()
            stub.ModelInfer(message, timeout=10)
            took.append((time.perf_counter() - started) * 1000)
    return statistics.median(took)
