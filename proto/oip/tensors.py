"""Datatypes of the Open Inference Protocol: sizes, shapes, and JSON data to raw bytes and back.

Raw data is little-endian and row-major; BYTES elements are each preceded by their length as four
bytes. A shape is a tuple of dimensions, each 0 or more; () is a scalar of one element.

What JSON may hold, one policy for every route:

- `data` is flat, or nested exactly as the shape says; anything else is refused, even where the
  number of elements would fit.
- Integers are exact and in range: no fraction, no boolean, no string, no wraparound.
- FP32 and FP64 take integers, numbers and the bare words NaN, Infinity and -Infinity, and write
  them so, as Triton does. A number is rounded to the nearest value of the datatype; one beyond its
  range is refused. Output is the shortest text that reads back as the same double, so that FP32
  values come back bit for bit (except the payload of a NaN, which JSON cannot say).
- FP16 and BF16 have no JSON form, in either direction: they travel as binary data.
- BYTES are UTF-8 strings; other content travels as binary data.

Every function raises OipError MALFORMED; `where` names the tensor in its message.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np

from oip.errors import OipError
from oip.names import shown
from oip.reasons import Reason
from oip.strict_json import InfinityWord

MAX_RANK = 64
"""Most dimensions of a shape."""

_INT64_MAX = 2**63 - 1
_INTEGERS = {
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
}
_FLOATS = {"FP32": "<f4", "FP64": "<f8"}
_BINARY_ONLY = frozenset({"FP16", "BF16"})

SIZES: dict[str, int | None] = {
    "BOOL": 1,
    **{name: int(code[2]) for name, code in (_INTEGERS | _FLOATS).items()},
    "FP16": 2,
    "BF16": 2,
    "BYTES": None,
}
"""Bytes of one element by datatype name; None for BYTES, whose elements vary."""

_LENGTH = struct.Struct("<I")
_DTYPES = {
    **{name: np.dtype(code) for name, code in (_INTEGERS | _FLOATS).items()},
    "BOOL": np.dtype(np.bool_),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "BYTES": np.dtype(object),
}


class Framing(NamedTuple):
    """What is wrong with raw BYTES data.

    `kind` is "length" (`left` bytes where the four of a length should be), "beyond" (more elements than
    there should be), "elements" (fewer), or "element" (the last one has `size` bytes by its length,
    but `left` are there). `found` elements have begun.
    """

    kind: str
    found: int
    size: int = 0
    left: int = 0


def dtype(datatype: str) -> np.dtype[Any]:
    """The numpy type of a datatype's elements: `bytes` objects for BYTES, the bits as uint16 for BF16."""
    return _DTYPES[datatype]


def input_at(name: str) -> str:
    """An input as the `where` of messages."""
    return f"Input {shown(name)}"


def out_of_range(datatype: str, at: int, where: str) -> OipError:
    """For an integer that its datatype cannot hold."""
    bounds = np.iinfo(_INTEGERS[datatype])
    return OipError(
        Reason.MALFORMED,
        f"{where} has value {at} of its data outside the range of {datatype}, {bounds.min} to {bounds.max}.",
    )


def framing_fault(raw: bytes | memoryview, count: int) -> Framing | None:
    """What keeps raw BYTES data from being exactly `count` elements, each behind its length."""
    at, end = 0, len(raw)
    found = size = 0
    unpack = _LENGTH.unpack_from
    while at < end:
        if end - at < 4:
            return Framing("length", found, left=end - at)
        found += 1
        if found > count:
            return Framing("beyond", found)
        (size,) = unpack(raw, at)
        at += 4 + size
    if found != count:
        return Framing("elements", found)
    return Framing("element", found, size, size - (at - end)) if at > end else None


def check_datatype(value: object, where: str) -> str:
    """`value` if it is the exact name of a datatype."""
    if not isinstance(value, str):
        _refuse(where, "has no datatype" if value is None else "needs a string as its datatype")
    if value not in SIZES:
        _refuse(where, f"has the unknown datatype {shown(value)}; the datatypes are {', '.join(SIZES)}")
    return value


def check_shape(value: object, where: str) -> tuple[int, ...]:
    """A shape as JSON has it: a list of integers from 0 to 2**63-1, at most MAX_RANK of them."""
    if not isinstance(value, list):
        _refuse(where, "has no shape" if value is None else "needs a list of integers as its shape")
    dims = cast("list[object]", value)
    if len(dims) > MAX_RANK:
        _refuse(where, f"has a shape of {len(dims)} dimensions; at most {MAX_RANK} are served")
    for at, dim in enumerate(dims):
        if type(dim) is not int or not 0 <= dim <= _INT64_MAX:
            _refuse(where, f"needs an integer of 0 or more as dimension {at} of its shape")
    shape = tuple(cast("list[int]", dims))
    if math.prod(shape) > _INT64_MAX:
        _refuse(where, "has a shape of more elements than 63 bits can count")
    return shape


def least_bytes(datatype: str, shape: Sequence[int]) -> int:
    """How many bytes raw data of `shape` takes at least; exactly, but for BYTES."""
    return math.prod(shape) * (SIZES[datatype] or _LENGTH.size)


def check_raw(datatype: str, shape: Sequence[int], raw: bytes | memoryview, where: str) -> None:
    """Refuse raw data that is not exactly the elements that `shape` counts, framing of BYTES included."""
    count = math.prod(shape)
    size = SIZES[datatype]
    if size is None:
        _element_ends(raw, count, where)
    elif len(raw) != count * size:
        _refuse(where, f"has {len(raw)} bytes of data, but {described(datatype, shape)} takes {count * size}")


def described(datatype: str, shape: Sequence[int]) -> str:
    """Datatype and shape as messages show them, as in "FP32 [1, 8]"."""
    return f"{datatype} [{', '.join(map(str, shape))}]"


def from_json(datatype: str, shape: Sequence[int], data: object, where: str) -> bytes:
    """JSON `data` (as `strict_json.loads` gives it) as raw data of `shape`."""
    if datatype in _BINARY_ONLY:
        _refuse(where, f"is {datatype}, which JSON cannot carry exactly: send it as binary data")
    return pack(datatype, _flat(shape, data, where), where)


def to_json(datatype: str, shape: Sequence[int], raw: bytes, where: str) -> list[object]:
    """Raw data as the flat list that JSON shows: booleans, exact integers, doubles or strings.

    A BOOL byte other than 0 is true. FP16, BF16 and BYTES that are not UTF-8 are refused with the
    advice to ask for binary data.
    """
    check_raw(datatype, shape, raw, where)
    if datatype in _BINARY_ONLY:
        _refuse(where, f"is {datatype}, which JSON cannot carry exactly: ask for binary data")
    if datatype == "BYTES":
        try:
            return [item.decode("utf-8") for item in unpack_bytes(raw, math.prod(shape), where)]
        except UnicodeDecodeError:
            _refuse(where, "holds BYTES that are not UTF-8, which JSON cannot carry: ask for binary data")
    if datatype == "BOOL":
        return [byte != 0 for byte in raw]
    return np.frombuffer(raw, dtype=_INTEGERS.get(datatype) or _FLOATS[datatype]).tolist()


def pack(datatype: str, values: Sequence[object], where: str) -> bytes:
    """Flat JSON values as raw data; every datatype but FP16 and BF16."""
    if datatype == "BYTES":
        _only(values, {str}, "a string", where)
        try:
            return pack_bytes([text.encode("utf-8") for text in cast("Sequence[str]", values)])
        except UnicodeEncodeError:
            _refuse(where, "has a string with a lone surrogate in its data")
    if datatype == "BOOL":
        _only(values, {bool}, "true or false", where)
        return bytes(cast("Sequence[bool]", values))
    if datatype in _INTEGERS:
        return _pack_integers(datatype, values, where)
    return _pack_floats(datatype, values, where)


def pack_bytes(items: Sequence[bytes]) -> bytes:
    """Elements as raw BYTES data, each behind its length."""
    length = _LENGTH.pack
    return b"".join([part for item in items for part in (length(len(item)), item)])


def unpack_bytes(raw: bytes, count: int, where: str) -> list[bytes]:
    """The `count` elements of raw BYTES data."""
    items: list[bytes] = []
    start = 0
    for end in _element_ends(raw, count, where):
        items.append(raw[start + 4 : end])
        start = end
    return items


def _refuse(where: str, fault: str) -> NoReturn:
    raise OipError(Reason.MALFORMED, f"{where} {fault}.")


def _element_ends(raw: bytes | memoryview, count: int, where: str) -> list[int]:
    """Where each of the `count` elements of raw BYTES data ends."""
    at, end = 0, len(raw)
    if count * 4 > end:
        _refuse(where, f"has {end} bytes of data, too few for {count} BYTES elements with their lengths")
    ends: list[int] = []
    unpack = _LENGTH.unpack_from
    for index in range(count):
        if at + 4 > end:
            _refuse(where, f"has data that ends inside the length of element {index} of {count}")
        at += 4 + unpack(raw, at)[0]
        if at > end:
            _refuse(where, f"has data that ends inside element {index} of {count}")
        ends.append(at)
    if at != end:
        _refuse(where, f"has {end - at} bytes of data beyond its {count} BYTES elements")
    return ends


def _flat(shape: Sequence[int], data: object, where: str) -> list[object]:
    """The elements of `data`, which is flat or nested exactly as `shape` says."""
    count = math.prod(shape)
    if not isinstance(data, list):
        if shape:
            _refuse(where, "needs a list as its data")
        return [data]
    level = cast("list[object]", data)
    if list in set(map(type, level)):
        level = [cast(object, data)]
        for dim in shape:
            if any(type(row) is not list for row in level):
                break
            rows = cast("list[list[object]]", level)
            if any(len(row) != dim for row in rows):
                break
            level = list(chain.from_iterable(rows))
        else:
            return level
        _refuse(where, f"has data that is neither flat nor nested as its shape {list(shape)} says")
    if len(level) != count:
        _refuse(where, f"has {len(level)} values of data, but its shape {list(shape)} takes {count}")
    return level


def _only(values: Sequence[object], kinds: set[type], wanted: str, where: str) -> None:
    if set(map(type, values)) <= kinds:
        return
    at = next(at for at, value in enumerate(values) if type(value) not in kinds)
    _refuse(where, f"needs {wanted} as value {at} of its data")


def _pack_integers(datatype: str, values: Sequence[object], where: str) -> bytes:
    _only(values, {int}, "an integer", where)
    integers = cast("Sequence[int]", values)
    if not integers:
        return b""
    bounds = np.iinfo(_INTEGERS[datatype])
    low, high = int(bounds.min), int(bounds.max)
    if min(integers) < low or max(integers) > high:
        at = next(at for at, value in enumerate(integers) if not low <= value <= high)
        raise out_of_range(datatype, at, where)
    return np.array(integers, dtype=_INTEGERS[datatype]).tobytes()


def _pack_floats(datatype: str, values: Sequence[object], where: str) -> bytes:
    _only(values, {int, float, InfinityWord}, "a number", where)
    try:
        doubles = np.array(values, dtype="<f8")
    except OverflowError:
        _refuse(where, f"has data beyond the range of {datatype}")
    with np.errstate(over="ignore", under="ignore"):
        numbers = doubles.astype(_FLOATS[datatype])
    for at in np.flatnonzero(np.isinf(numbers)).tolist():
        if type(values[at]) is not InfinityWord:
            _refuse(where, f"has value {at} of its data beyond the range of {datatype}")
    return numbers.tobytes()
