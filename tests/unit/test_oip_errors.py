"""An error's form over HTTP, whatever its message quotes."""

import json

import pytest

from oip.errors import MAX_ERROR_BODY_BYTES, error_body


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
