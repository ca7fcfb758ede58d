"""The typed contents of an input (InferTensorContents), read without protobuf.

Numbers are counted and decoded by numpy, so that this takes little more than looking at the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oip import tensors, wording
from oip.parts import InputPart
from oip.scan import FIXED32, FIXED64, LEN, VARINT, Broken, Span, fields, length_varint

Array = np.ndarray[Any, np.dtype[Any]]

_BYTES = 8
_TYPE = {1: "BOOL", 2: "INT32", 3: "INT64", 4: "UINT32", 5: "UINT64", 6: "FP32", 7: "FP64", 8: "BYTES"}
"""What each field holds, in the words of Triton's messages."""
_FIELD = {
    "BOOL": 1,
    "INT8": 2,
    "INT16": 2,
    "INT32": 2,
    "INT64": 3,
    "UINT8": 4,
    "UINT16": 4,
    "UINT32": 4,
    "UINT64": 5,
    "FP32": 6,
    "FP64": 7,
    "BYTES": 8,
}
"""Where a datatype's elements are; FP16 and BF16 have no place in typed contents."""
_WIRE = {1: VARINT, 2: VARINT, 3: VARINT, 4: VARINT, 5: VARINT, 6: FIXED32, 7: FIXED64, 8: LEN}
_NARROW = frozenset({"INT8", "INT16", "UINT8", "UINT16"})
"""Datatypes that their field has room to exceed."""


def find_elements(body: bytes, part: InputPart, model: str, budget: list[int]) -> list[Span]:
    """Where the elements of `part` lie in its typed contents: numbers without their tags, several in one
    span where they are packed; BYTES as one span of whole fields.

    `budget` is how many fields may be walked, those of BYTES excepted; it is counted down. Raises
    OipError MALFORMED for elements of another type than the input's, and Broken.
    """
    assert part.contents is not None
    wanted = _FIELD.get(part.datatype, 0)
    low, high = part.contents
    if wanted == _BYTES and _count_bytes(body, low, high) is not None:
        return [(low, high)]
    spans: list[Span] = []
    others: set[int] = set()
    for number, wire, _, start, end in fields(body, low, high, budget):
        if number > _BYTES:
            continue
        if wire not in (_WIRE[number], LEN):
            raise Broken(f"field {number} of an input's contents has wire type {wire}")
        if number == wanted != _BYTES:
            if start < end:
                spans.append((start, end))
        elif start < end or number == _BYTES:
            others.add(number)
    if not others:
        return spans
    if others == {_BYTES} == {wanted}:
        raise Broken("an input's contents hold BYTES and unknown fields")
    if spans and min(others) > wanted:
        raise wording.second_contents(part.name, model)
    raise wording.other_contents(part.name, model, _TYPE[min(others)], part.datatype)


def count(body: bytes, datatype: str, spans: Sequence[Span]) -> int:
    """How many elements the spans hold. Raises Broken for spans that end inside one."""
    field = _FIELD.get(datatype, 0)
    if field == _BYTES:
        return sum(_count_bytes(body, low, high) or 0 for low, high in spans)
    if _WIRE.get(field) == VARINT:
        return sum(len(_ends(body, span)) for span in spans)
    size = tensors.SIZES[datatype] or 1
    total = sum(end - start for start, end in spans)
    if any((end - start) % size for start, end in spans):
        raise Broken("an input's contents end inside a number")
    return total // size


def decode(body: bytes, datatype: str, spans: Sequence[Span]) -> Array:
    """The elements of the spans as an array of one dimension, of the numpy type of `tensors.dtype`.

    An int32 or uint32 in the message is the low 32 bits of its varint, as in protobuf.
    """
    kind = tensors.dtype(datatype)
    if _FIELD.get(datatype) == _BYTES:
        items = [body[start:end] for low, high in spans for *_, start, end in fields(body, low, high, [high])]
        elements = np.empty(len(items), dtype=object)
        elements[:] = items
        return elements
    if not spans:
        return np.empty(0, dtype=kind)
    if _WIRE[_FIELD[datatype]] != VARINT:
        return np.frombuffer(b"".join(body[start:end] for start, end in spans), dtype=kind)
    numbers = np.concatenate([_varints(body, span) for span in spans])
    return numbers != 0 if datatype == "BOOL" else numbers.astype(kind)


def check_range(body: bytes, part: InputPart, spans: Sequence[Span]) -> None:
    """Refuse integers that do not fit a datatype of 8 or 16 bits; Triton would cut them to size."""
    if part.datatype in _NARROW and spans:
        wide = decode(body, "INT32" if part.datatype[0] == "I" else "UINT32", spans)
        bounds = np.iinfo(tensors.dtype(part.datatype))
        outside = np.flatnonzero((wide < bounds.min) | (wide > bounds.max))
        if len(outside):
            raise tensors.out_of_range(part.datatype, int(outside[0]), tensors.input_at(part.name))


def _count_bytes(body: bytes, low: int, high: int) -> int | None:
    """How many elements contents hold that are nothing but bytes_contents, of which there may be millions;
    None for other contents."""
    found = 0
    at = low
    while at < high:
        if body[at] != _BYTES << 3 | LEN or at + 1 == high:
            return None
        size = body[at + 1]
        at += 2
        if size > 0x7F:
            size, at = length_varint(body, at - 1, high, 0x7FFFFFFF, "a length")
        at += size
        if at > high:
            return None
        found += 1
    return found


def _ends(body: bytes, span: Span) -> Array:
    """Where in the span each varint's last byte is."""
    start, end = span
    ends = np.flatnonzero(np.frombuffer(body, dtype=np.uint8, count=end - start, offset=start) < 0x80)
    if not len(ends) or ends[-1] != end - start - 1:
        raise Broken("an input's contents end inside a number")
    if ends[0] > 9 or (len(ends) > 1 and int(np.diff(ends).max()) > 10):
        raise Broken("a number is longer than ten bytes")
    return ends


def _varints(body: bytes, span: Span) -> Array:
    """The varints of a span as uint64."""
    start, end = span
    data = np.frombuffer(body, dtype=np.uint8, count=end - start, offset=start)
    ends = _ends(body, span)
    begins = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - begins + 1
    numbers = np.zeros(len(ends), dtype=np.uint64)
    for at in range(int(lengths.max())):
        has = np.flatnonzero(lengths > at)
        numbers[has] |= (data[begins[has] + at].astype(np.uint64) & np.uint64(0x7F)) << np.uint64(7 * at)
    return numbers
