"""Requests and answers of servers whose protocol is KServe's dialect of OIP, or may be.

KServe's own messages, which MLServer and other servers share, are those of the protocol but for two:
their parameters are bool, int64 or string. A double or uint64 reaches such a server as a parameter
without a value, and nobody is told. And an answer may have its outputs' data in typed contents, which
Triton's never has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from oip import contents, tensors
from oip.errors import OipError
from oip.names import shown
from oip.parts import InputPart, tensor_part, varint
from oip.reasons import Reason
from oip.scan import LEN, MAX_FIELDS, Broken, Span, fields, refuse_broken, text, varint_bytes
from oip.wording import malformed

_INT64_TAG = 2 << 3
_PARAMETERS = {5: 4, 6: 2}
"""Where inputs and requested outputs have their parameters, by their own field."""
_OUTPUT = 5
_OUTPUT_TAG = bytes((_OUTPUT << 3 | LEN,))
_RAW_OUTPUT = 6
_RAW_OUTPUT_TAG = bytes((_RAW_OUTPUT << 3 | LEN,))
_CONTENTS = 5


def to_dialect(body: bytes) -> bytes:
    """A serialized ModelInferRequest whose parameters, its tensors' too, such a server understands.

    A uint64 that an int64 can hold becomes one. A larger one, and every double, is refused. Raises OipError
    MALFORMED.
    """
    changed: bytearray | None = None
    budget = [MAX_FIELDS]
    try:
        for low, high in _parameters(body, budget):
            key, value = "", (high, high)
            for number, _, _, start, end in fields(body, low, high, budget):
                if number == 1:
                    key = text(body, start, end, "a parameter's key")
                elif number == 2:
                    value = (start, end)
            for number, _, tag, start, _ in fields(body, *value, budget):
                if number == 4:
                    raise _refused(key, "a double")
                if number == 5:
                    if varint(body, start)[0] >= 2**63:
                        raise _refused(key, "a uint64 beyond 2^63-1")
                    changed = changed or bytearray(body)
                    changed[tag] = _INT64_TAG
    except Broken as fault:
        refuse_broken(Reason.MALFORMED, "The ModelInferRequest", fault)
    return body if changed is None else bytes(changed)


def is_raw(response: bytes) -> bool:
    """Whether a serialized ModelInferResponse has the data of all its outputs in raw_output_contents.
    Raises OipError ENDPOINT_FAILED."""
    numbers = [number for number, *_ in _answer_fields(response)]
    return numbers.count(_OUTPUT) == numbers.count(_RAW_OUTPUT)


def to_raw(response: bytes) -> bytes:
    """A serialized ModelInferResponse with the data of all its outputs in raw_output_contents, in their
    order; all else as it was.

    Outputs with typed contents may stand beside others, whose raw data is then there in their order, as
    KServe's server writes it. Raises OipError ENDPOINT_FAILED for data that is not there, or contradicts
    its datatype or shape.
    """
    kept: list[bytes] = []
    raws: list[bytes] = []
    found: list[bytes | None] = []
    budget = [MAX_FIELDS]
    try:
        for number, low, high, (start, end) in _answer_fields(response):
            if number == _RAW_OUTPUT:
                raws.append(response[low:high])
            elif number == _OUTPUT:
                part = tensor_part(response, low, high, budget)
                found.append(None if part.contents is None else _raw_of(response, part, budget))
                kept += _without_contents(response, low, high, budget)
            else:
                kept.append(response[start:end])
        if found.count(None) != len(raws):
            raise Broken("it has not as many raw_output_contents as outputs without other data")
    except (Broken, OipError):
        raise OipError(
            Reason.ENDPOINT_FAILED, "The endpoint's answer is broken: its outputs cannot be read."
        ) from None
    rest = iter(raws)
    for raw in found:
        data = next(rest) if raw is None else raw
        kept += (_RAW_OUTPUT_TAG, varint_bytes(len(data)), data)
    return b"".join(kept)


def _parameters(body: bytes, budget: list[int]) -> Iterator[Span]:
    """Every entry of the parameters maps of a request."""
    for number, wire, _, low, high in fields(body, 0, len(body), budget):
        if wire != LEN:
            continue
        if number == 4:
            yield low, high
        elif number in _PARAMETERS:
            for inner, inner_wire, _, start, end in fields(body, low, high, budget):
                if inner == _PARAMETERS[number] and inner_wire == LEN:
                    yield start, end


def _refused(key: str, what: str) -> OipError:
    return malformed(
        f"Parameter {shown(key)} is {what}, which the server's protocol cannot carry:"
        " its parameters are bool, int64 or string. Send it as a string."
    )


def _answer_fields(response: bytes) -> Iterator[tuple[int, int, int, Span]]:
    """Every field: its number, where its value lies, and where all of it does."""
    try:
        for number, _, start, low, high in fields(response, 0, len(response), [MAX_FIELDS]):
            yield number, low, high, (start, high)
    except Broken as fault:
        refuse_broken(Reason.ENDPOINT_FAILED, "The endpoint's ModelInferResponse", fault)


def _without_contents(response: bytes, low: int, high: int, budget: list[int]) -> tuple[bytes, bytes, bytes]:
    kept = b"".join(
        response[start:end]
        for number, _, start, _, end in fields(response, low, high, budget)
        if number != _CONTENTS
    )
    return _OUTPUT_TAG, varint_bytes(len(kept)), kept


def _raw_of(response: bytes, part: InputPart, budget: list[int]) -> bytes:
    """An output's typed contents as raw data. Raises OipError and Broken."""
    tensors.check_datatype(part.datatype, "An output")
    tensors.check_shape(list(part.shape), "An output")
    spans = contents.find_elements(response, part, "", budget)
    if contents.count(response, part.datatype, spans) != math.prod(part.shape):
        raise Broken("an output has not as many elements as its shape")
    contents.check_range(response, part, spans)
    array = contents.decode(response, part.datatype, spans)
    return tensors.pack_bytes(array.tolist()) if array.dtype.hasobject else array.tobytes()
