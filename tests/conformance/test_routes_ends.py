"""Callers who leave and deadlines that pass, on every route: what the caller is told, and what the model sees."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.conformance.stage import HEADER, ROUTES, Stage
from tests.support.waiting import until_true

pb: Any = service_pb2
CANCELLING = ("r1", "r2")
"""Routes on which a run ends with whoever wanted it; see `routes.LIMITS`."""
LONG_S, SHORT_S = 30.0, 1.0
SOON_S = 10.0
"""What a busy machine may take over what takes milliseconds on a free one."""
_marks = count(1_000_001)


@pytest.fixture(scope="module")
def stub(stage: Stage) -> Iterator[Any]:
    with grpc.insecure_channel(stage.gateway.grpc) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


class Run:
    """A request to slow_identity that can be told from all others by its value, or on Triton by its id."""

    def __init__(self, stage: Stage, route: str, seconds: float) -> None:
        self.mark = next(_marks)
        self.route = route
        self._log = stage.slow_logs[route]
        self.message = pb.ModelInferRequest(model_name="slow_identity", id=str(self.mark))
        for name, datatype, value in (
            ("INPUT0", "INT32", np.array([self.mark], "<i4")),
            ("SECONDS", "FP32", np.array([seconds], "<f4")),
        ):
            self.message.inputs.add(name=name, datatype=datatype, shape=[1])
            self.message.raw_input_contents.append(value.tobytes())
        self.json = json.dumps(
            {
                "id": str(self.mark),
                "inputs": [
                    {"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [self.mark]},
                    {"name": "SECONDS", "datatype": "FP32", "shape": [1], "data": [seconds]},
                ],
            }
        ).encode()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return ((HEADER, self.route),)

    def seen(self) -> dict[str, Any] | None:
        """What the model wrote of it when it was done with it."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        for entry in map(json.loads, lines):
            if entry.get("id") == str(self.mark) or entry.get("first") == [self.mark]:
                return entry
        return None


def answers(stub: Any, run: Run) -> bool:
    response = stub.ModelInfer(run.message, timeout=60, metadata=run.metadata)
    return response.raw_output_contents[0] == np.array([run.mark], "<i4").tobytes()


def cut_off(stage: Stage, route: str, leave: Any) -> Run:
    """A long run whose caller left while the model had it. Leaving before it had it says nothing, and is tried
    again, later."""
    for wait_s in (0.3, 1.0, 3.0):
        run = Run(stage, route, LONG_S)
        leave(run, wait_s)
        left = time.monotonic()
        while time.monotonic() < left + SOON_S:
            if run.seen() is not None:
                return run
            time.sleep(0.02)
    raise AssertionError("the model has not written of any of them")


@pytest.mark.parametrize("route", CANCELLING)
def test_a_cancelled_call_ends_in_the_model(stage: Stage, stub: Any, route: str):
    def leave(run: Run, wait_s: float) -> None:
        call = stub.ModelInfer.future(run.message, timeout=60, metadata=run.metadata)
        time.sleep(wait_s)
        call.cancel()
        assert call.code() is grpc.StatusCode.CANCELLED

    seen = cut_off(stage, route, leave).seen()
    assert seen is not None
    assert seen["cancelled"]
    assert seen["end"] - seen["start"] < LONG_S / 2
    assert answers(stub, Run(stage, route, 0))


@pytest.mark.parametrize("route", CANCELLING)
def test_an_http_caller_who_hangs_up_ends_it_too(stage: Stage, stub: Any, route: str):
    host, _, port = stage.gateway.http.rpartition(":")

    def leave(run: Run, wait_s: float) -> None:
        head = (
            f"POST /v2/models/slow_identity/infer HTTP/1.1\r\nhost: gw\r\n{HEADER}: {route}\r\n"
            f"content-length: {len(run.json)}\r\n\r\n"
        )
        with socket.create_connection((host, int(port))) as caller:
            caller.sendall(head.encode() + run.json)
            time.sleep(wait_s)

    seen = cut_off(stage, route, leave).seen()
    assert seen is not None
    assert seen["cancelled"]
    assert seen["end"] - seen["start"] < LONG_S / 2


def test_a_device_drops_what_waits_and_the_answer_of_what_runs(stage: Stage, stub: Any):
    calls: list[Any] = []
    running, waiting = Run(stage, "r3", 3 * SHORT_S), Run(stage, "r3", LONG_S)
    for run in (running, waiting):
        calls.append(stub.ModelInfer.future(run.message, timeout=60, metadata=run.metadata))
        time.sleep(SHORT_S)
    for call in reversed(calls):
        call.cancel()
    assert [call.code() for call in calls] == [grpc.StatusCode.CANCELLED] * 2
    assert answers(stub, Run(stage, "r3", 0))
    assert running.seen() is not None
    assert waiting.seen() is None


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("binding", ["grpc", "http", "option"])
def test_a_deadline_ends_it_when_it_passes(stage: Stage, stub: Any, route: str, binding: str):
    """gRPC's own, and the option over both bindings. The model is given no more than what is left."""
    run = Run(stage, route, LONG_S if route in CANCELLING else SHORT_S)
    began = time.monotonic()
    if binding == "http":
        headers = {HEADER: route, "tidegate-deadline-ms": "500"}
        url = f"http://{stage.gateway.http}/v2/models/slow_identity/infer"
        answer = httpx.post(url, content=run.json, headers=headers, timeout=60)
        assert (answer.status_code, list(answer.json())) == (504, ["error"])
    else:
        metadata = (*run.metadata, *((("tidegate-deadline-ms", "500"),) if binding == "option" else ()))
        timeout = 60 if binding == "option" else 0.5
        call = stub.ModelInfer.future(run.message, timeout=timeout, metadata=metadata)
        assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    took = time.monotonic() - began
    assert 0.45 < took < 0.5 + SOON_S
    if route in CANCELLING:
        until_true(lambda: run.seen() is not None, SOON_S)
        seen = run.seen()
        assert seen is not None
        assert seen["cancelled"]
        assert seen["end"] - seen["start"] < 0.5 + SOON_S
    assert answers(stub, Run(stage, route, 0))


@pytest.mark.parametrize("route", ROUTES)
def test_a_deadline_that_has_passed_reaches_no_model(stage: Stage, stub: Any, route: str):
    run = Run(stage, route, 0)
    answer = stub.ModelInfer.future(
        run.message, timeout=60, metadata=(*run.metadata, ("tidegate-deadline-ms", "0"))
    )
    assert answer.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INVALID_ARGUMENT)
    assert answers(stub, Run(stage, route, 0))
    assert run.seen() is None
