"""What a failed call to an OIP server means: reason, whether it was sent, whether another place might answer."""

from __future__ import annotations

import re

import pytest

from gateway.backends import _oip_status
from gateway.backends._oip_status import failure_of
from oip.reasons import STATUS, Reason

SECRET = "it holds 31337"
CASES = [
    (
        "UNAVAILABLE",
        "failed to connect to all addresses; last error: 10.1.2.3",
        Reason.UNAVAILABLE,
        False,
        True,
    ),
    ("UNAVAILABLE", "Model with name m is not ready.", Reason.MODEL_UNAVAILABLE, True, True),
    ("UNAVAILABLE", "Socket closed", Reason.UNAVAILABLE, True, True),
    ("CANCELLED", SECRET, Reason.UNAVAILABLE, True, True),
    ("UNKNOWN", "Stream removed", Reason.UNAVAILABLE, True, True),
    ("INTERNAL", "Received RST_STREAM with error code 2", Reason.UNAVAILABLE, True, True),
    ("UNKNOWN", f"Unexpected <class 'ValueError'>: {SECRET}", Reason.ENDPOINT_FAILED, True, False),
    ("INTERNAL", SECRET, Reason.ENDPOINT_FAILED, True, False),
    ("NOT_FOUND", SECRET, Reason.UNKNOWN_MODEL, True, True),
    ("RESOURCE_EXHAUSTED", "Received message larger than max (5 vs. 4)", Reason.TOO_LARGE, True, False),
    ("RESOURCE_EXHAUSTED", SECRET, Reason.OVERLOADED, True, True),
    ("DEADLINE_EXCEEDED", SECRET, Reason.DEADLINE, True, False),
    ("INVALID_ARGUMENT", SECRET, Reason.MALFORMED, True, False),
    ("INVALID_ARGUMENT", "Model m is not ready yet.", Reason.MODEL_UNAVAILABLE, True, True),
    ("OUT_OF_RANGE", SECRET, Reason.MALFORMED, True, False),
    ("FAILED_PRECONDITION", SECRET, Reason.MALFORMED, True, False),
    ("ALREADY_EXISTS", SECRET, Reason.MALFORMED, True, False),
    ("UNIMPLEMENTED", "Method not found!", Reason.NOT_SERVED, True, False),
    ("PERMISSION_DENIED", SECRET, Reason.ENDPOINT_FAILED, True, True),
    ("UNAUTHENTICATED", SECRET, Reason.ENDPOINT_FAILED, True, True),
    ("DATA_LOSS", SECRET, Reason.ENDPOINT_FAILED, True, False),
]


@pytest.mark.parametrize(("status", "details", "reason", "sent", "retryable"), CASES)
def test_a_status_means(status: str, details: str, reason: Reason, sent: bool, retryable: bool):
    error = failure_of("mls", status, details)
    assert (error.reason, error.sent, error.retryable, error.grpc_status) == (reason, sent, retryable, status)
    assert error.message.startswith("Endpoint mls ")
    assert len(error.message) < 200
    for part in ("31337", "10.1.2.3", "Model", "Stream", "ValueError", "(5"):
        assert part not in error.message


def test_what_is_in_a_text_decides_nothing_where_data_may_be_in_it():
    """A request whose data are quoted must not choose how its refusal is taken."""
    for words in ("x is not ready", "Stream removed", "larger than max"):
        error = failure_of("mls", "INVALID_ARGUMENT", f"cannot take ['{words}']")
        assert (error.reason, error.retryable) == (Reason.MALFORMED, False)
        error = failure_of("mls", "INTERNAL", f"cannot take ['{words}']")
        assert (error.reason, error.retryable) == (Reason.ENDPOINT_FAILED, False)


def test_the_table_in_the_module_is_this_one():
    rows = re.findall(
        r"^\| ([A-Z_, ]+|the rest) \|.*\| ([a-z_]+)(?:, not sent)? \| (yes|no)",
        _oip_status.__doc__ or "",
        re.MULTILINE,
    )
    written = {(name, reason, again == "yes") for names, reason, again in rows for name in names.split(", ")}
    shown = {("the rest" if s == "DATA_LOSS" else s, r.value, again) for s, _, r, _, again in CASES}
    assert shown == written
    assert all(reason in STATUS for _, _, reason, _, _ in CASES)
