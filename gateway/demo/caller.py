"""How the demo's scenes call the gateway: tritonclient's stubs, and plain HTTP for what they hide."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import httpx
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer as the caller saw it; `cost` None where it is not known. `endpoint` is "" and `status` the gRPC status where it failed."""

    endpoint: str
    decision: str
    latency_ms: float
    cost: float | None
    attempts: int
    probabilities: np.ndarray | None
    status: str = "OK"
    message: str = ""


@dataclass(slots=True)
class Tally:
    """Answers of one scene."""

    answers: list[Answer] = field(default_factory=list[Answer])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, answer: Answer) -> None:
        with self.lock:
            self.answers.append(answer)

    @property
    def endpoints(self) -> list[str]:
        """Who answered, in the order of first appearance."""
        return list(dict.fromkeys(a.endpoint for a in self.answers if a.endpoint))

    @property
    def failed(self) -> list[Answer]:
        return [a for a in self.answers if a.status != "OK"]

    @property
    def p50_ms(self) -> float | None:
        times = [a.latency_ms for a in self.answers if a.status == "OK"]
        return statistics.median(times) if times else None

    @property
    def cost_per_1k(self) -> float | None:
        costs = [a.cost for a in self.answers if a.status == "OK" and a.cost is not None]
        return statistics.mean(costs) * 1000 if costs else None


def infer_request(pixels: np.ndarray, model: str = "digits") -> Any:
    """A ModelInferRequest. `pixels`: FP32 [N, 64], each 0..1."""
    request = cast("Any", service_pb2).ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="pixels", datatype="FP32")
    tensor.shape.extend(pixels.shape)
    request.raw_input_contents.append(np.ascontiguousarray(pixels, np.float32).tobytes())
    return request


class Caller:
    """Calls one gateway over gRPC with tritonclient's own stubs, so that metadata can be seen."""

    def __init__(self, address: str, model: str = "digits") -> None:
        self._model = model
        self._channel = grpc.insecure_channel(
            address, options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def ask(self, pixels: np.ndarray, options: dict[str, str], timeout_s: float = DEADLINE_S) -> Answer:
        """One inference with `tidegate-*` options as metadata. A refusal is an answer too."""
        started = time.perf_counter()
        try:
            reply, call = self._stub.ModelInfer.with_call(
                infer_request(pixels, self._model), timeout=timeout_s, metadata=tuple(options.items())
            )
        except grpc.RpcError as raised:
            error = cast("grpc.Call", raised)
            elapsed_ms = (time.perf_counter() - started) * 1000
            headers = _text(error.initial_metadata())
            return Answer(
                "",
                headers.get("tidegate-decision", ""),
                elapsed_ms,
                0.0,
                int(headers.get("tidegate-attempts", 0)),
                None,
                error.code().name,
                error.details() or "",
            )
        elapsed_ms = (time.perf_counter() - started) * 1000
        headers = _text(call.initial_metadata())
        values = np.frombuffer(reply.raw_output_contents[0], np.float32).reshape(reply.outputs[0].shape)
        return Answer(
            headers["tidegate-endpoint"],
            headers["tidegate-decision"],
            elapsed_ms,
            float(headers["tidegate-cost"]) if "tidegate-cost" in headers else None,
            int(headers["tidegate-attempts"]),
            values,
        )


def decision_record(http: str, decision: str) -> dict[str, Any]:
    """The record behind an answer, from the operator API."""
    response = httpx.get(f"http://{http}/api/v1/decisions/{decision}", timeout=10)
    response.raise_for_status()
    return response.json()


def why(record: dict[str, Any]) -> str:
    """A record's reasons in a few words: what kept the others out, or whose score won."""
    parts = []
    for candidate in record["candidates"]:
        if candidate["verdict"] == "excluded":
            rules = "; ".join(f"{r['rule']}: {r['detail']}" for r in candidate["reasons"])
            parts.append(f"{candidate['endpoint']} excluded ({rules})")
    if not parts:
        scored = sorted(record["candidates"], key=lambda c: -c["scores"]["total"])
        parts.append(", ".join(f"{c['endpoint']} scores {c['scores']['total']:.2f}" for c in scored))
    return "; ".join(parts)


def _text(metadata: Sequence[tuple[str, str | bytes]] | None) -> dict[str, str]:
    return {k: v for k, v in metadata or () if isinstance(v, str)}
