"""What a Triton's failures mean, on the texts that Triton and gRPC really give."""

from __future__ import annotations

import grpc
import pytest

from gateway.backends._triton_follow import words_of
from gateway.backends._triton_status import MAX_TEXT, failure_of, status_of
from oip.reasons import Reason

UNKNOWN = "Request for unknown model: 'm' is not found"
NO_VERSION = "Request for unknown model: 'm' has no available versions"
NO_CONNECTION = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:8001: Connection refused"
)


BAD_GATEWAY_LOGIN = "the gateway's token was refused by 10.0.0.1"
DOWN, BUSY, BROKEN = ("UNAVAILABLE", 503), ("UNAVAILABLE", 503), ("INTERNAL", 500)
CALLERS = ("INVALID_ARGUMENT", 400)


@pytest.mark.parametrize(
    ("status", "text", "reason", "sent", "retryable", "public"),
    [
        ("UNAVAILABLE", NO_CONNECTION, Reason.UNAVAILABLE, False, True, DOWN),
        ("UNAVAILABLE", "Stream removed (Socket closed)", Reason.UNAVAILABLE, True, True, DOWN),
        ("UNAVAILABLE", "Exceeds maximum queue size", Reason.OVERLOADED, True, True, BUSY),
        ("UNAVAILABLE", "Request timeout expired", Reason.OVERLOADED, True, True, BUSY),
        ("UNAVAILABLE", NO_VERSION, Reason.MODEL_UNAVAILABLE, True, True, DOWN),
        ("UNAVAILABLE", "Model 'm' version 1 is not ready", Reason.MODEL_UNAVAILABLE, True, True, DOWN),
        ("UNAVAILABLE", "Server is stopping", Reason.UNAVAILABLE, True, True, DOWN),
        ("CANCELLED", "request was cancelled", Reason.UNAVAILABLE, True, True, DOWN),
        ("UNKNOWN", "Stream removed", Reason.UNAVAILABLE, True, True, DOWN),
        ("UNKNOWN", "odd", Reason.ENDPOINT_FAILED, True, False, BROKEN),
        ("INTERNAL", "Received RST_STREAM with error code 2", Reason.UNAVAILABLE, True, True, DOWN),
        ("INTERNAL", "Stub process 'm_0_0' is not healthy.", Reason.ENDPOINT_FAILED, True, True, BROKEN),
        ("INTERNAL", "Unable to parse request", Reason.MALFORMED, True, False, CALLERS),
        ("INTERNAL", "boom", Reason.ENDPOINT_FAILED, True, False, BROKEN),
        ("NOT_FOUND", UNKNOWN, Reason.UNKNOWN_MODEL, True, True, ("NOT_FOUND", 404)),
        ("RESOURCE_EXHAUSTED", "Received message larger than max (5 vs. 4)", Reason.TOO_LARGE, True, False, ("RESOURCE_EXHAUSTED", 413)),
        ("RESOURCE_EXHAUSTED", "out of memory", Reason.OVERLOADED, True, True, BUSY),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", Reason.DEADLINE, True, False, ("DEADLINE_EXCEEDED", 504)),
        ("INVALID_ARGUMENT", "unexpected shape", Reason.MALFORMED, True, False, CALLERS),
        ("OUT_OF_RANGE", "too far", Reason.MALFORMED, True, False, CALLERS),
        ("FAILED_PRECONDITION", "not now", Reason.MALFORMED, True, False, CALLERS),
        ("ALREADY_EXISTS", "sequence 7", Reason.MALFORMED, True, False, CALLERS),
        ("UNIMPLEMENTED", "", Reason.NOT_SERVED, True, False, ("UNIMPLEMENTED", 501)),
        ("UNAUTHENTICATED", BAD_GATEWAY_LOGIN, Reason.ENDPOINT_FAILED, True, True, BROKEN),
        ("PERMISSION_DENIED", BAD_GATEWAY_LOGIN, Reason.ENDPOINT_FAILED, True, True, BROKEN),
        ("ABORTED", "odd", Reason.ENDPOINT_FAILED, True, False, BROKEN),
        ("DATA_LOSS", "odd", Reason.ENDPOINT_FAILED, True, False, BROKEN),
    ],
)  # fmt: skip
def test_meaning(
    status: str, text: str, reason: Reason, sent: bool, retryable: bool, public: tuple[str, int]
):
    error = failure_of("gpu", status, text)
    assert (error.reason, error.sent, error.retryable) == (reason, sent, retryable)
    assert error.status == public
    assert error.grpc_status == status


@pytest.mark.parametrize("status", [code.name for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_status_has_a_meaning_and_none_says_that_the_caller_is_not_let_in(status: str):
    for text in ("", "odd", NO_VERSION, NO_CONNECTION, "Stream removed", "Unable to parse request"):
        error = failure_of("gpu", status, text)
        assert error.status.grpc not in ("OK", "PERMISSION_DENIED", "UNAUTHENTICATED")
        assert error.status.http not in (200, 401, 403)


def test_a_place_that_does_not_let_the_gateway_in_is_told_in_words_of_ours():
    for status in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        message = failure_of("gpu", status, BAD_GATEWAY_LOGIN).message
        assert message == "Endpoint gpu does not let this gateway in."


def test_a_verdict_keeps_tritons_words_and_a_lost_connection_gets_ours():
    assert failure_of("gpu", "NOT_FOUND", UNKNOWN).message == UNKNOWN
    assert failure_of("gpu", "UNAVAILABLE", NO_CONNECTION).message == "Endpoint gpu cannot be reached."
    assert failure_of("gpu", "UNAVAILABLE", "Socket closed at 10.0.0.1").message == (
        "Endpoint gpu went away before it answered."
    )
    assert failure_of("gpu", "UNIMPLEMENTED", "").message == (
        "Endpoint gpu answered UNIMPLEMENTED without a reason."
    )


def test_a_traceback_and_an_endless_text_do_not_travel():
    raised = (
        "Failed to process the request(s) for model 'm_0_0', message: RuntimeError: boom\n\n"
        "At:\n  /models/m/1/model.py(17): execute\n"
    )
    message = failure_of("gpu", "INTERNAL", raised).message
    assert message.endswith("RuntimeError: boom")
    assert "/models" not in message
    assert len(failure_of("gpu", "INVALID_ARGUMENT", "x" * 5000).message) == MAX_TEXT


def test_what_triton_says_of_a_load_names_no_path():
    said = (
        "load failed: unable to load /models/my-sets.v1/1/model.onnx: No such file, see 'file:///var/log/x y'"
    )
    error = failure_of("gpu", "INVALID_ARGUMENT", said)
    assert words_of(error) == "Triton says: load failed: unable to load ...: No such file, see 'file:... y'"


@pytest.mark.parametrize(
    ("text", "by_model", "status"),
    [
        ("Request for unknown model: 'm' is not found", False, "NOT_FOUND"),
        ("Request for unknown model: 'm' has no available versions", False, "UNAVAILABLE"),
        ("Exceeds maximum queue size", True, "UNAVAILABLE"),
        ("expected 1 inputs but got 0 inputs for model 'm'", False, "INVALID_ARGUMENT"),
        ("An Error Occurred", True, "INTERNAL"),
    ],
)
def test_an_error_inside_a_stream_has_the_status_of_its_text(text: str, by_model: bool, status: str):
    assert status_of(text, by_model) == status
