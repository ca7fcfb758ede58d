"""Text on its way into headers and initial metadata."""

from __future__ import annotations


def header_value(text: str) -> str:
    """`text` as printable ASCII: other characters become the percent-encoding of their UTF-8.

    Both wires refuse or mangle anything else, and a line break would end the header.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if "\x20" <= c <= "\x7e" else "".join(f"%{byte:02X}" for byte in c.encode("utf-8", "replace"))
        for c in text
    )
