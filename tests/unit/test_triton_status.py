"""What a Triton's failures mean, on the texts that Triton and gRPC really give."""

from __future__ import annotations

import pytest

from gateway.backends._triton_status import MAX_TEXT, failure_of
from oip.reasons import Reason

UNKNOWN = "Request for unknown model: 'm' is not found"
NO_VERSION = "Request for unknown model: 'm' has no available versions"
NO_CONNECTION = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:8001: Connection refused"
)


@pytest.mark.parametrize(
    ("status", "text", "reason", "sent", "retryable", "public"),
    [
        ("UNAVAILABLE", NO_CONNECTION, Reason.UNAVAILABLE, False, True, "UNAVAILABLE"),
        ("UNAVAILABLE", "Stream removed (Socket closed)", Reason.UNAVAILABLE, True, True, "UNAVAILABLE"),
        ("UNAVAILABLE", "Exceeds maximum queue size", Reason.OVERLOADED, True, True, "UNAVAILABLE"),
        ("UNAVAILABLE", "Request timeout expired", Reason.OVERLOADED, True, True, "UNAVAILABLE"),
        ("UNAVAILABLE", NO_VERSION, Reason.ENDPOINT_FAILED, True, True, "UNAVAILABLE"),
        ("UNAVAILABLE", "Server is stopping", Reason.UNAVAILABLE, True, True, "UNAVAILABLE"),
        ("CANCELLED", "request was cancelled", Reason.UNAVAILABLE, True, True, "UNAVAILABLE"),
        ("UNKNOWN", "Stream removed", Reason.UNAVAILABLE, True, True, "UNAVAILABLE"),
        ("INTERNAL", "Received RST_STREAM with error code 2", Reason.UNAVAILABLE, True, True, "UNAVAILABLE"),
        ("INTERNAL", "Stub process 'm_0_0' is not healthy.", Reason.ENDPOINT_FAILED, True, True, "INTERNAL"),
        ("INTERNAL", "Unable to parse request", Reason.MALFORMED, True, False, "INTERNAL"),
        ("INTERNAL", "boom", Reason.ENDPOINT_FAILED, True, False, "INTERNAL"),
        ("NOT_FOUND", UNKNOWN, Reason.UNKNOWN_MODEL, True, True, "NOT_FOUND"),
        ("RESOURCE_EXHAUSTED", "Received message larger than max (5 vs. 4)", Reason.TOO_LARGE, True, False, "RESOURCE_EXHAUSTED"),
        ("RESOURCE_EXHAUSTED", "out of memory", Reason.OVERLOADED, True, True, "RESOURCE_EXHAUSTED"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", Reason.DEADLINE, True, False, "DEADLINE_EXCEEDED"),
        ("INVALID_ARGUMENT", "unexpected shape", Reason.MALFORMED, True, False, "INVALID_ARGUMENT"),
        ("UNIMPLEMENTED", "", Reason.NOT_SERVED, True, False, "UNIMPLEMENTED"),
        ("UNAUTHENTICATED", "no", Reason.ENDPOINT_FAILED, True, True, "UNAUTHENTICATED"),
        ("DATA_LOSS", "odd", Reason.ENDPOINT_FAILED, True, False, "DATA_LOSS"),
    ],
)  # fmt: skip
def test_meaning(status: str, text: str, reason: Reason, sent: bool, retryable: bool, public: str):
    error = failure_of("gpu", status, text)
    assert (error.reason, error.sent, error.retryable) == (reason, sent, retryable)
    assert error.grpc_status == public


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
