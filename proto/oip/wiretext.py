"""Text on its way into headers and metadata."""

from __future__ import annotations

from oip.errors import shortened

MAX_STATUS_MESSAGE_BYTES = 4096
"""gRPC clients drop a call's whole status when its metadata is over their limit, 8 KiB at first."""


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


def status_message(text: str) -> str:
    """`text` as the message of a gRPC status: cut where gRPC's percent-encoding of it would be over
    MAX_STATUS_MESSAGE_BYTES."""
    return shortened(text, MAX_STATUS_MESSAGE_BYTES, _percent_encoded_size)


def _percent_encoded_size(character: str) -> int:
    if "\x20" <= character <= "\x7e" and character != "%":
        return 1
    return 3 * len(character.encode("utf-8", "replace"))
