"""Header values never leave printable ASCII, and status messages stay within what clients take."""

import pytest

from oip.wiretext import MAX_STATUS_MESSAGE_BYTES, header_value, status_message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("gpu-east 50%", "gpu-east 50%"),
        ("", ""),
        ("a\r\nset-cookie: b", "a%0D%0Aset-cookie: b"),
        ("模", "%E6%A8%A1"),
        ("é\x7f", "%C3%A9%7F"),
        ("\ud800", "?"),
    ],
)
def test_header_value(text, value):
    assert header_value(text) == value.replace("?", "%3F")


@pytest.mark.parametrize(
    ("character", "encoded"), [("a", 1), ("%", 3), ("\n", 3), ("é", 6), ("模", 9), ("😀", 12)]
)
def test_a_status_message_is_cut_by_its_percent_encoding(character: str, encoded: int):
    fits = character * (MAX_STATUS_MESSAGE_BYTES // encoded)
    assert status_message(fits) == fits
    assert status_message(fits + character) == character * ((MAX_STATUS_MESSAGE_BYTES - 9) // encoded) + "…"
