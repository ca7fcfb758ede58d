"""A serialized ModelInferRequest taken apart, without its tensors' data and without protobuf.

`read_request` refuses whatever `scan.scan_request` refuses, and in the same words. Data is not copied:
a part says where it lies in the message.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from oip.errors import OipError
from oip.names import refuse_option, refuse_tensor_key, shown
from oip.reasons import Reason
from oip.scan import (
    FIXED64,
    LEN,
    MAX_FIELDS,
    VARINT,
    Broken,
    Span,
    fields,
    refuse_broken,
    text,
)

ParameterValue = bool | int | float | str | None
"""None: a parameter that holds no value of a known kind."""


class Parameter(NamedTuple):
    """`kind` is the member of InferParameter that holds `value`, "" where none does."""

    key: str
    kind: str
    value: ParameterValue


class InputPart(NamedTuple):
    """One input. `contents` is where its typed contents lie, None without any; dimensions are as they
    were sent, negative ones too."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    contents: Span | None


class OutputPart(NamedTuple):
    """One requested output and its parameters."""

    name: str
    parameters: tuple[Parameter, ...]


class RequestParts(NamedTuple):
    """Strings are "" when absent. `raws` is where each entry of raw_input_contents lies."""

    model_name: str
    model_version: str
    id: str
    parameters: tuple[Parameter, ...]
    inputs: tuple[InputPart, ...]
    outputs: tuple[OutputPart, ...]
    raws: tuple[Span, ...]


_STRINGS = ("", "model_name", "model_version", "id")
_DOUBLE = struct.Struct("<d")


def read_request(body: bytes) -> RequestParts:
    """Take a serialized ModelInferRequest apart.

    Raises OipError: MALFORMED for bytes that parsers could read differently and for a missing model
    name, BAD_OPTION for a `tidegate-*` parameter, NOT_SERVED for shared memory.
    """
    strings: dict[int, str] = {}
    parameters: list[Parameter] = []
    inputs: list[InputPart] = []
    outputs: list[OutputPart] = []
    raws: list[Span] = []
    budget = [MAX_FIELDS]
    try:
        for number, wire, _, low, high in fields(body, 0, len(body), budget):
            if number > 7:
                continue
            if wire != LEN:
                raise Broken(f"field {number} has wire type {wire}")
            if number == 7:
                raws.append((low, high))
            elif number == 5:
                inputs.append(tensor_part(body, low, high, budget))
            elif number == 6:
                outputs.append(_output(body, low, high, budget))
            elif number == 4:
                parameters.append(parameter_part(body, low, high, budget))
            elif number in strings:
                raise Broken(f"{_STRINGS[number]} occurs twice")
            else:
                strings[number] = text(body, low, high, _STRINGS[number])
        _refuse_duplicates(parameters)
    except Broken as fault:
        refuse_broken(Reason.MALFORMED, "The ModelInferRequest", fault)
    for parameter in parameters:
        refuse_option(parameter.key)
    name = strings.get(1, "")
    if not name:
        raise OipError(Reason.MALFORMED, "The ModelInferRequest has no model_name.")
    if len(raws) > len(inputs):
        raise OipError(
            Reason.MALFORMED,
            f"The ModelInferRequest has {len(raws)} raw_input_contents, but {len(inputs)} inputs.",
        )
    return RequestParts(
        name,
        strings.get(2, ""),
        strings.get(3, ""),
        tuple(parameters),
        tuple(inputs),
        tuple(outputs),
        tuple(raws),
    )


def signed(value: int) -> int:
    """A varint's 64 bits as the int64 they stand for."""
    value &= 0xFFFFFFFFFFFFFFFF
    return value - 2**64 if value >> 63 else value


def varint(body: bytes, at: int) -> tuple[int, int]:
    """The varint that begins at `at`, and where it ends; the caller knows that it ends within the body."""
    value = 0
    for shift in range(0, 70, 7):
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Broken("a number is longer than ten bytes")


def tensor_part(body: bytes, low: int, high: int, budget: list[int]) -> InputPart:
    """One input, or an output of an answer, whose fields are the same. Raises Broken, and OipError for a key
    that is refused."""
    name = datatype = ""
    shape: list[int] = []
    contents: Span | None = None
    keys: list[Parameter] = []
    seen = 0
    for number, wire, _, start, end in fields(body, low, high, budget):
        if number > 5:
            continue
        if wire != LEN and not (wire == VARINT and number == 3):
            raise Broken(f"field {number} of an input has wire type {wire}")
        if number == 3:
            _dimensions(body, start, end, wire, shape, budget)
        elif number == 4:
            keys.append(parameter_part(body, start, end, budget))
        else:
            if seen & 1 << number:
                raise Broken(f"field {number} of an input occurs twice")
            seen |= 1 << number
            if number == 1:
                name = text(body, start, end, "an input's name")
            elif number == 2:
                datatype = text(body, start, end, "an input's datatype")
            else:
                contents = (start, end)
    _check_tensor_keys(keys)
    return InputPart(name, datatype, tuple(shape), contents)


def _output(body: bytes, low: int, high: int, budget: list[int]) -> OutputPart:
    name: str | None = None
    parameters: list[Parameter] = []
    for number, wire, _, start, end in fields(body, low, high, budget):
        if number > 2:
            continue
        if wire != LEN:
            raise Broken(f"field {number} of a requested output has wire type {wire}")
        if number == 2:
            parameters.append(parameter_part(body, start, end, budget))
        elif name is not None:
            raise Broken("field 1 of a requested output occurs twice")
        else:
            name = text(body, start, end, "a requested output's name")
    _check_tensor_keys(parameters)
    return OutputPart(name or "", tuple(parameters))


def _dimensions(body: bytes, at: int, end: int, wire: int, shape: list[int], budget: list[int]) -> None:
    """Adds the dimensions between `at` and `end`, packed or alone, to `shape`; each takes of the budget,
    or a message could hold millions."""
    if wire == LEN and end > at and body[end - 1] > 0x7F:
        raise Broken("a shape ends inside a number")
    while at < end:
        value, at = varint(body, at)
        budget[0] -= 1
        if budget[0] < 0:
            raise Broken(f"it has more than {MAX_FIELDS} fields and dimensions")
        shape.append(signed(value))


def _check_tensor_keys(parameters: list[Parameter]) -> None:
    if parameters:
        _refuse_duplicates(parameters)
        for parameter in parameters:
            refuse_tensor_key(parameter.key)


def _refuse_duplicates(parameters: list[Parameter]) -> None:
    seen: set[str] = set()
    for parameter in parameters:
        if parameter.key in seen:
            raise Broken(f"parameter {shown(parameter.key)} occurs twice")
        seen.add(parameter.key)


def parameter_part(body: bytes, low: int, high: int, budget: list[int]) -> Parameter:
    """One entry of a parameters map; the key is "" when the entry has none, as in protobuf."""
    key = kind = ""
    value: ParameterValue = None
    seen = 0
    for number, wire, _, start, end in fields(body, low, high, budget):
        if number > 2 or wire != LEN:
            raise Broken(f"a parameter has a field {number} of wire type {wire}")
        if seen & number:
            raise Broken(f"the {'key' if number == 1 else 'value'} of a parameter occurs twice")
        seen |= number
        if number == 1:
            key = text(body, start, end, "a parameter's key")
        else:
            kind, value = _value(body, start, end, budget)
    return Parameter(key, kind, value)


def _value(body: bytes, low: int, high: int, budget: list[int]) -> tuple[str, ParameterValue]:
    """The member that an InferParameter has set, and its value. The last one counts, as in protobuf."""
    kind = ""
    value: ParameterValue = None
    for number, wire, _, start, end in fields(body, low, high, budget):
        if wire == VARINT and number in (1, 2, 5):
            number64 = varint(body, start)[0] & 0xFFFFFFFFFFFFFFFF
            if number == 1:
                kind, value = "bool_param", number64 != 0
            elif number == 2:
                kind, value = "int64_param", signed(number64)
            else:
                kind, value = "uint64_param", number64
        elif wire == LEN and number == 3:
            kind, value = "string_param", text(body, start, end, "a parameter's value")
        elif wire == FIXED64 and number == 4:
            kind, value = "double_param", float(_DOUBLE.unpack_from(body, start)[0])
    return kind, value
