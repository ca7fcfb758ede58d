"""The messages of ModelStreamInfer, written and read without protobuf.

A ModelStreamInferResponse holds a ModelInferResponse as it is, or an error's text beside one that says
whose it is. `triton_final_response` is the parameter by which a response says whether it is a request's
last; a model that answers a request once says so with that answer.
"""

from __future__ import annotations

from typing import NamedTuple

from oip.errors import OipError
from oip.parts import parameter_part, read_request
from oip.reasons import Reason
from oip.scan import (
    LEN,
    MAX_FIELDS,
    Broken,
    fields,
    refuse_broken,
    scan_response,
    string_field,
    text,
    varint_bytes,
)

_ERROR, _RESPONSE = 1, 2
_PARAMETERS = 4
REASON = "tidegate-reason"
"""The parameter by which a gateway tells another why a request failed."""


def _nested(number: int, message: bytes) -> bytes:
    return bytes((number << 3 | LEN,)) + varint_bytes(len(message)) + message


_FINAL = _nested(_PARAMETERS, string_field(1, "triton_final_response") + _nested(2, b"\x08\x01"))


class StreamMessage(NamedTuple):
    """`response` is a serialized ModelInferResponse; `error` is "" where it is an answer. Of an error, `model`
    is "" where no model had a part in it, and `reason` is a gateway's word for it, "" without one."""

    response: bytes
    error: str
    model: str = ""
    reason: str = ""


def as_final(response: bytes) -> bytes:
    """A serialized ModelInferResponse that says that it is its request's last."""
    return response + _FINAL


def stream_response(response: bytes) -> bytes:
    """A serialized ModelInferResponse as a ModelStreamInferResponse."""
    return _nested(_RESPONSE, response)


def stream_error(message: str, request_id: str, model: str = "", reason: str = "") -> bytes:
    """A ModelStreamInferResponse that ends the request `request_id` with an error. With `model` it was
    a model's doing, and says that nothing follows; without, the request never got to one. `reason` tells
    another gateway more."""
    told = string_field(1, model) + string_field(3, request_id)
    if model:
        told += _FINAL
    if reason:
        told += _nested(_PARAMETERS, string_field(1, REASON) + _nested(2, string_field(3, reason)))
    return string_field(_ERROR, message) + _nested(_RESPONSE, told)


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
    if not error:
        return StreamMessage(response, "")
    view = scan_response(response)
    return StreamMessage(response, error, view.model_name, _reason(response))


def _reason(response: bytes) -> str:
    budget = [MAX_FIELDS]
    try:
        for number, _, _, low, high in fields(response, 0, len(response), budget):
            if number == _PARAMETERS:
                key, _, value = parameter_part(response, low, high, budget)
                if key == REASON and isinstance(value, str):
                    return value
    except Broken as fault:
        refuse_broken(Reason.ENDPOINT_FAILED, "The endpoint's ModelInferResponse", fault)
    return ""


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
