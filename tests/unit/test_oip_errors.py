"""An error's form over HTTP, whatever its message quotes."""

import json

import pytest

from oip.errors import MAX_ERROR_BODY_BYTES, OipError, error_body, http_error
from oip.reasons import Reason


def test_a_message_is_one_json_member():
    assert error_body('say "no"\n') == b'{"error": "say \\"no\\"\\n"}'


@pytest.mark.parametrize("character", ["a", '"', "\x00", "é", "模", "😀", "\ud800"])
def test_a_message_is_cut_where_its_json_would_be_too_long(character: str):
    head = "Request for unknown model: "
    body = error_body(head + character * 100_000)
    assert MAX_ERROR_BODY_BYTES - 12 < len(body) <= MAX_ERROR_BODY_BYTES
    message = json.loads(body)["error"]
    assert message == head + character * (len(message) - len(head) - 1) + "…"


def test_a_message_that_just_fits_is_whole():
    room = MAX_ERROR_BODY_BYTES - len(error_body(""))
    assert json.loads(error_body("a" * room))["error"] == "a" * room
    assert json.loads(error_body("a" * (room + 1)))["error"] == "a" * (room - 6) + "…"


@pytest.mark.parametrize(
    ("reason", "status", "headers"),
    [
        (Reason.MALFORMED, 400, {}),
        (Reason.UNAVAILABLE, 503, {"retry-after": "1"}),
        (Reason.UNSUPPORTED_CODING, 415, {"accept-encoding": "gzip, deflate"}),
    ],
)
def test_an_error_as_an_http_answer(reason: Reason, status: int, headers: dict[str, str]):
    answer = http_error(OipError(reason, "no"))
    assert (answer.status, answer.body) == (status, b'{"error": "no"}')
    assert dict(answer.headers) == {"content-type": "application/json"} | headers
