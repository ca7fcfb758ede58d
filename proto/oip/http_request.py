"""An inference request as HTTP carries it: OIP's JSON with the binary tensor data extension.

`parse_infer` turns headers and body into an `HttpInfer`, in which every input is raw data already;
`codec` writes that as protobuf. Decisions where the protocol leaves room:

- A member that is null counts as absent. Members that the protocol does not define are ignored,
  as in Triton; `model_name` in the body is one of them, since the URL names the model.
- Parameters keep their types. Integers beyond int64 become uint64. `priority` is a uint64, `timeout`
  an int64 in microseconds, `sequence_id` an integer from 0 to 2**63-1 or a string,
  `sequence_start` and `sequence_end` are booleans: what Triton's gRPC side takes.
- Classification and shared memory are NOT_SERVED.
- A header length of 0 makes the body the one input's data: `is_raw` tells, and `codec_raw.decode_raw` reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, cast

from oip import tensors, wording
from oip.errors import OipError
from oip.names import refuse_option, refuse_tensor_key, shown
from oip.reasons import Reason
from oip.strict_json import loads
from oip.validate import check_framing

HEADER_LENGTH = "Inference-Header-Content-Length"

_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)
_Object = dict[str, object]


class Parameter(NamedTuple):
    """`kind` is the member of InferParameter that holds `value`."""

    key: str
    kind: str
    value: bool | int | float | str


@dataclass(frozen=True, slots=True)
class HttpInput:
    """`raw` is a view of the body where the data came as binary data."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes | memoryview
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class HttpOutput:
    """`binary` is the output's own `binary_data`, None where it has none."""

    name: str
    binary: bool | None
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class HttpInfer:
    """`id` is "" when absent; `binary_output` is the request's `binary_data_output`."""

    id: str
    binary_output: bool
    parameters: tuple[Parameter, ...]
    inputs: tuple[HttpInput, ...]
    outputs: tuple[HttpOutput, ...]


def parse_infer(
    headers: Mapping[str, str], body: bytes, max_bytes: int | None = None, model: str = ""
) -> HttpInfer:
    """Parse one request.

    `headers` has lower-case names; of a header that came more than once, the values joined by
    commas. `body` has its content coding undone. The inputs' raw data is at most `max_bytes` together,
    None for any size. Messages call the model `model`. Raises OipError: MALFORMED naming the member at fault, BAD_OPTION, NOT_SERVED,
    TOO_LARGE.
    """
    document, tail = _split(headers, body)
    request_id = document.get("id")
    if request_id is not None and not isinstance(request_id, str):
        _refuse("The request", "needs a string as its id")
    members = parameters_of(document, "The request")
    binary_output = _take_flag(members, "binary_data_output", "The request")
    parameters = tuple(request_parameter(key, value) for key, value in members.items())
    inputs = _inputs(document, tail, max_bytes, model)
    outputs = tuple(_output(entry, where) for entry, where in _named(document, "outputs", "Output"))
    return HttpInfer(request_id or "", bool(binary_output), parameters, inputs, outputs)


def joined_headers(headers: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    """Headers as `parse_infer` takes them, from pairs of lower-case name and value as they arrived."""
    joined: dict[str, str] = {}
    for key, value in headers:
        text = value if isinstance(value, str) else value.decode("latin-1")
        joined[key] = f"{joined[key]},{text}" if key in joined else text
    return joined


def is_raw(headers: Mapping[str, str]) -> bool:
    """Whether the body is a raw binary request: the data of the model's one input, and nothing else."""
    declared = headers.get(HEADER_LENGTH.lower(), "")
    return declared.isascii() and declared.isdigit() and not declared.strip("0")


def json_length(headers: Mapping[str, str], length: int) -> int:
    """How much of a body of `length` bytes is JSON, as far as a well-formed header says."""
    declared = headers.get(HEADER_LENGTH.lower(), "")
    plain = declared.isascii() and declared.isdigit() and len(declared) <= 20
    return min(int(declared), length) if plain else length


def _refuse(where: str, fault: str) -> NoReturn:
    raise OipError(Reason.MALFORMED, f"{where} {fault}.")


def _split(headers: Mapping[str, str], body: bytes) -> tuple[_Object, memoryview | None]:
    """The JSON object and the binary data behind it, None without the header that announces it."""
    declared = headers.get(HEADER_LENGTH.lower())
    tail: memoryview | None = None
    text = body
    if declared is not None:
        cut = _header_length(declared, len(body))
        text, tail = body[:cut], memoryview(body)[cut:]
    try:
        document = loads(text)
    except OipError as error:
        if tail is None and b"binary_data_size" in body:
            raise OipError(
                error.reason, f"Binary tensor data needs the header {HEADER_LENGTH}: {error.message}"
            ) from None
        raise
    if not isinstance(document, dict):
        _refuse("The request", "is not a JSON object")
    return cast("_Object", document), tail


def _header_length(declared: str, length: int) -> int:
    if not (declared.isascii() and declared.isdigit()):
        raise OipError(Reason.MALFORMED, f"The header {HEADER_LENGTH} is not a decimal number.")
    if len(declared) > 20 or int(declared) > length:
        raise OipError(
            Reason.MALFORMED, f"The header {HEADER_LENGTH} is more than the body's {length} bytes."
        )
    return int(declared)


def _named(document: _Object, member: str, what: str) -> Iterator[tuple[_Object, str]]:
    """Each object of a list member with its name for messages; names are strings and differ."""
    entries = document.get(member)
    if entries is None:
        return
    if not isinstance(entries, list):
        _refuse("The request", f"needs a list as its {member}")
    seen: set[str] = set()
    for at, entry in enumerate(cast("list[object]", entries)):
        if not isinstance(entry, dict):
            _refuse("The request", f"needs an object as {member}[{at}]")
        name = cast("_Object", entry).get("name")
        if not isinstance(name, str) or not name:
            _refuse("The request", f"needs a non-empty string as the name of {member}[{at}]")
        if name in seen:
            raise wording.duplicate_input(name) if what == "Input" else wording.duplicate_output(name)
        seen.add(name)
        yield cast("_Object", entry), f"{what} {shown(name)}"


def _inputs(
    document: _Object, tail: memoryview | None, max_bytes: int | None, model: str
) -> tuple[HttpInput, ...]:
    if document.get("inputs") is None:
        _refuse("The request", "has no inputs")
    inputs: list[HttpInput] = []
    at = 0
    total = 0
    for entry, where in _named(document, "inputs", "Input"):
        datatype = tensors.check_datatype(entry.get("datatype"), where)
        shape = tensors.check_shape(entry.get("shape"), where)
        members = parameters_of(entry, where)
        size = members.pop("binary_data_size", None)
        for key in members:
            refuse_tensor_key(key)
        data = entry.get("data")
        if size is None:
            if data is None:
                _refuse(where, "has neither data nor the parameter binary_data_size")
            limit_tensors(total + tensors.least_bytes(datatype, shape), max_bytes)
            raw = tensors.from_json(datatype, shape, data, where)
        else:
            if data is not None:
                _refuse(where, "has both data and the parameter binary_data_size")
            raw = _binary_data(cast(str, entry["name"]), model, datatype, shape, size, tail, at)
            at += len(raw)
        total += len(raw)
        limit_tensors(total, max_bytes)
        parameters = tuple(_parameter(key, value, where) for key, value in members.items())
        inputs.append(HttpInput(cast(str, entry["name"]), datatype, shape, raw, parameters))
    if tail is not None and at != len(tail):
        _refuse("The request", f"has {len(tail) - at} bytes of binary data beyond its inputs' {at}")
    return tuple(inputs)


def limit_tensors(size: int, max_bytes: int | None) -> None:
    """Refuse tensors of `size` bytes together as TOO_LARGE."""
    if max_bytes is not None and size > max_bytes:
        raise OipError(
            Reason.TOO_LARGE,
            f"The request's tensors take {_number(size)} bytes, more than the limit of {max_bytes}.",
        )


def _binary_data(
    name: str,
    model: str,
    datatype: str,
    shape: tuple[int, ...],
    size: object,
    tail: memoryview | None,
    at: int,
) -> memoryview:
    """The next `size` bytes of the binary data, checked against datatype and shape."""
    where = tensors.input_at(name)
    if type(size) is not int or size not in _UINT64:
        _refuse(where, "needs an integer from 0 to 2**64-1 as its binary_data_size")
    if tail is None:
        _refuse(where, f"has binary_data_size, but the request has no header {HEADER_LENGTH}")
    count = math.prod(shape)
    element = tensors.SIZES[datatype]
    if element is not None and size != count * element:
        raise wording.other_size(name, model, count * element, size)
    if size > len(tail) - at:
        _refuse(where, f"has binary_data_size {size}, but {len(tail) - at} bytes of data are left")
    raw = tail[at : at + size]
    if element is None:
        check_framing(name, model, raw, count)
    return raw


def _number(value: int) -> str:
    """An integer for messages: Python refuses to print those of thousands of digits."""
    return str(value) if value in _UINT64 else "beyond 64 bits"


def _output(entry: _Object, where: str) -> HttpOutput:
    members = parameters_of(entry, where)
    binary = _take_flag(members, "binary_data", where)
    for key in members:
        refuse_tensor_key(key)
    if "classification" in members:
        raise wording.classification(where)
    parameters = tuple(_parameter(key, value, where) for key, value in members.items())
    return HttpOutput(cast(str, entry["name"]), binary, parameters)


def parameters_of(holder: _Object, where: str) -> _Object:
    """A copy of the holder's parameters without those that are null."""
    members = holder.get("parameters")
    if members is None:
        return {}
    if not isinstance(members, dict):
        _refuse(where, "needs an object as its parameters")
    return {key: value for key, value in cast("_Object", members).items() if value is not None}


def _take_flag(members: _Object, key: str, where: str) -> bool | None:
    value = members.pop(key, None)
    if value is not None and not isinstance(value, bool):
        _refuse(where, f"needs true or false as its parameter {key}")
    return value


def request_parameter(key: str, value: object) -> Parameter:
    """One of a request's own parameters, held against what the protocol says of it."""
    refuse_option(key)
    where = "The request"
    if key.startswith("triton_"):
        _refuse(where, f"sets parameter {shown(key)}, but names beginning triton_ are reserved")
    if key == "priority":
        if type(value) is not int or value not in _UINT64:
            _refuse(where, "needs an integer from 0 to 2**64-1 as its parameter priority")
        return Parameter(key, "uint64_param", value)
    if key == "timeout":
        if type(value) is not int or value < 0 or value not in _INT64:
            _refuse(where, "needs an integer of 0 or more microseconds as its parameter timeout")
    elif key == "sequence_id":
        if not isinstance(value, str) and (type(value) is not int or value < 0 or value not in _INT64):
            _refuse(where, "needs an integer from 0 to 2**63-1 or a string as its parameter sequence_id")
    elif key in ("sequence_start", "sequence_end") and not isinstance(value, bool):
        _refuse(where, f"needs true or false as its parameter {key}")
    return _parameter(key, value, where)


def _parameter(key: str, value: object, where: str) -> Parameter:
    if isinstance(value, bool):
        return Parameter(key, "bool_param", value)
    if isinstance(value, str):
        return Parameter(key, "string_param", value)
    if isinstance(value, int) and (value in _INT64 or value in _UINT64):
        return Parameter(key, "int64_param" if value in _INT64 else "uint64_param", value)
    if isinstance(value, float) and math.isfinite(value):
        return Parameter(key, "double_param", value)
    _refuse(where, f"needs a string, a boolean or a finite 64-bit number as its parameter {shown(key)}")
