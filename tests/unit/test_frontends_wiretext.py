"""Header values never leave printable ASCII."""

import pytest

from gateway.frontends.wiretext import header_value


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
