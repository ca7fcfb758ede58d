"""Names of signed targets, and what is signed with each besides its digest and size.

A target's name is MODEL/VERSION/SLOT, percent-encoded part by part; golden vectors have ".golden" behind
the slot, and a slot that ends so itself has "%2Egolden". The signed custom data is a JSON object:

    model, version   what the file is, the same as in its name
    format           "tflite" or "onnx"
    golden           the name of its golden vectors' target; absent where it has none
    order            how late it was released or ordered back, counted per model from 1. A device moves to
                     an order that is not below that of what serves on it, so an old file can come back
                     only by an order that was signed anew.
    trial            true: it may be tried and measured, and not serve
    places           edgewire.allowed, as text: where the file may go, as it was made from such data;
                     absent: anywhere
"""

from __future__ import annotations

from urllib.parse import quote, unquote

GOLDEN = ".golden"


def target_name(model: str, version: str, slot: str, *, golden: bool = False) -> str:
    """`slot` is a format, or the name of the endpoint that a file is for."""
    name = "/".join(quote(part, safe="") for part in (model, version, slot))
    if name.endswith(GOLDEN):
        name = f"{name.removesuffix(GOLDEN)}%2E{GOLDEN[1:]}"
    return name + (GOLDEN if golden else "")


def model_of(name: str) -> tuple[str, str] | None:
    """Model and version of a target's name; None where it is no such name."""
    parts = name.split("/")
    if len(parts) != 3 or not all(parts):
        return None
    return unquote(parts[0]), unquote(parts[1])
