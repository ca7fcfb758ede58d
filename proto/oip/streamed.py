"""The messages of ModelStreamInfer, written and read without protobuf.

A ModelStreamInferResponse holds a ModelInferResponse as it is, or an error's text beside one that says
whose it is. `triton_final_response` is the parameter by which a response says whether it is a request's
last; a model that answers a request once says so with that answer.
"""

from __future__ import annotations

from typing import NamedTuple

from oip.errors import OipError
from oip.parts import read_request
from oip.reasons import Reason
from oip.scan import LEN, MAX_FIELDS, Broken, fields, refuse_broken, string_field, text, varint_bytes

_ERROR, _RESPONSE = 1, 2
_PARAMETERS = 4


def _nested(number: int, message: bytes) -> bytes:
    return bytes((number << 3 | LEN,)) + varint_bytes(len(message)) + message


_FINAL = _nested(_PARAMETERS, string_field(1, "triton_final_response") + _nested(2, b"\x08\x01"))


class StreamMessage(NamedTuple):
    """`response` is a serialized ModelInferResponse; `error` is "" where it is an answer."""

    response: bytes
    error: str


def as_final(response: bytes) -> bytes:
    """A serialized ModelInferResponse that says that it is its request's last."""
    return response + _FINAL


def stream_response(response: bytes) -> bytes:
    """A serialized ModelInferResponse as a ModelStreamInferResponse."""
    return _nested(_RESPONSE, response)


def stream_error(message: str, request_id: str, model: str = "") -> bytes:
    """A ModelStreamInferResponse that ends the request `request_id` with an error. With `model` it was
    a model's doing, and says that nothing follows; without, the request never got to one."""
    told = string_field(1, model) + string_field(3, request_id)
    return string_field(_ERROR, message) + _nested(_RESPONSE, told + _FINAL if model else told)


def read_stream_response(message: bytes) -> StreamMessage:
    """A serialized ModelStreamInferResponse taken apart. Raises OipError ENDPOINT_FAILED."""
    response, error = b"", ""
    seen: set[int] = set()
    try:
        for number, wire, _, low, high in fields(message, 0, len(message), [MAX_FIELDS]):
            if number > _RESPONSE:
                continue
            if wire != LEN:
                raise Broken(f"field {number} has wire type {wire}")
            if number in seen:
                raise Broken(f"field {number} occurs twice")
            seen.add(number)
            if number == _ERROR:
                error = text(message, low, high, "error_message")
            else:
                response = message[low:high]
    except Broken as fault:
        refuse_broken(Reason.ENDPOINT_FAILED, "The endpoint's ModelStreamInferResponse", fault)
    return StreamMessage(response, error)


class Heading(NamedTuple):
    """Of a request on a stream: `id` and `model` are "" where it has none. `sequence` tells those apart
    that must keep their order; None for a request of no sequence."""

    id: str
    model: str
    sequence: tuple[str, int | str] | None


def read_heading(body: bytes) -> Heading:
    """What a stream must know of a serialized ModelInferRequest; nothing of one that will be refused."""
    try:
        parts = read_request(body)
    except OipError:
        return Heading("", "", None)
    found = next((p.value for p in parts.parameters if p.key == "sequence_id"), None)
    if not isinstance(found, int | str) or isinstance(found, bool) or not found:
        return Heading(parts.id, parts.model_name, None)
    return Heading(parts.id, parts.model_name, (parts.model_name, found))
