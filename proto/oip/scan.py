"""What the gateway must know of an inference message, read without parsing its tensors.

`scan_request` and `scan_response` walk every top-level tag of a serialized ModelInferRequest or
ModelInferResponse and step over payloads by their lengths. Of an input or requested output only
the tags inside are walked, to see its parameter keys.

Invariant: whenever a scan succeeds and a protobuf parser accepts the same bytes, both see the same
model name, version, id and parameter keys. Where parsers could differ, or where protobuf would
quietly let a later field win, the message is refused instead:

- a singular field that occurs twice, and a map key that occurs twice;
- a known field with another wire type (protobuf would treat it as unknown), and an unknown field in
  a map's entry (some parsers then keep the key, some do not);
- more raw_input_contents than inputs (the surplus would travel on unseen by any check);
- tags of more than 32 bits or five bytes (some parsers drop the high bits, which turns such a tag
  into another field's), tags longer than they need to be (some parsers know no field by them),
  lengths of more than 31 bits or five bytes, field number 0, groups.

Lengths that are merely longer than they need to be are understood as protobuf does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from oip.errors import OipError
from oip.names import refuse_option, refuse_tensor_key, shown
from oip.reasons import Reason

MAX_FIELDS = 16_384
"""Most fields walked in one message, nested ones included: millions of tiny ones would only burn time."""

Span = tuple[int, int]
"""Where a field lies in the message: first byte of its tag, first byte after its value."""

VARINT, FIXED64, LEN, FIXED32 = 0, 1, 2, 5
_FIXED_SIZE = {FIXED64: 8, FIXED32: 4}


@dataclass(frozen=True, slots=True)
class RequestView:
    """What a serialized ModelInferRequest says outside its tensors.

    `model_version` and `id` are "" when absent. `parameters` are the request-level keys in order.
    The spans serve `splice`; None where the field is absent.
    """

    model_name: str
    model_version: str
    id: str
    parameters: tuple[str, ...]
    name_span: Span | None
    version_span: Span | None


@dataclass(frozen=True, slots=True)
class ResponseView:
    """What a serialized ModelInferResponse says outside its tensors; absent strings are ""."""

    model_name: str
    model_version: str
    id: str
    name_span: Span | None
    version_span: Span | None


class _Tensor(NamedTuple):
    """Field numbers of a message that describes one input or requested output."""

    what: str
    singular: frozenset[int]
    parameters: int
    shape: int
    """0 where the message has none."""
    last: int


_INPUT = _Tensor("an input", frozenset({1, 2, 5}), parameters=4, shape=3, last=5)
_OUTPUT = _Tensor("a requested output", frozenset({1}), parameters=2, shape=0, last=2)
_SINGULAR = {1: "model_name", 2: "model_version", 3: "id"}


class Broken(Exception):
    """The bytes are not a message of the kind; the text says what is wrong with them."""


def scan_request(body: bytes) -> RequestView:
    """Scan a serialized ModelInferRequest.

    Raises OipError: MALFORMED for bytes that parsers could read differently and for a missing model
    name, BAD_OPTION for a `tidegate-*` parameter, NOT_SERVED for shared memory.
    """
    found: dict[int, tuple[Span, str]] = {}
    keys: list[str] = []
    budget = [MAX_FIELDS]
    inputs = raws = 0
    try:
        for number, wire, start, low, high in fields(body, 0, len(body), budget):
            if number > 7:
                continue
            if wire != LEN:
                raise Broken(f"field {number} has wire type {wire}")
            if number == 7:
                raws += 1
            elif number == 5:
                inputs += 1
                _scan_tensor(body, low, high, budget, _INPUT)
            elif number == 6:
                _scan_tensor(body, low, high, budget, _OUTPUT)
            elif number == 4:
                keys.append(_entry_key(body, low, high, budget))
            else:
                take_singular(found, number, body, start, low, high)
        refuse_duplicates(keys)
    except Broken as fault:
        refuse_broken(Reason.MALFORMED, "The ModelInferRequest", fault)
    for key in keys:
        refuse_option(key)
    name_span, name = found.get(1, (None, ""))
    version_span, version = found.get(2, (None, ""))
    if not name:
        raise OipError(Reason.MALFORMED, "The ModelInferRequest has no model_name.")
    if raws > inputs:
        raise OipError(
            Reason.MALFORMED, f"The ModelInferRequest has {raws} raw_input_contents, but {inputs} inputs."
        )
    return RequestView(name, version, found[3][1] if 3 in found else "", tuple(keys), name_span, version_span)


def scan_response(body: bytes) -> ResponseView:
    """Scan a serialized ModelInferResponse.

    Raises OipError ENDPOINT_FAILED for what `scan_request` calls malformed: the endpoint sent it,
    not the caller. Outputs are stepped over whole.
    """
    found: dict[int, tuple[Span, str]] = {}
    try:
        for number, wire, start, low, high in fields(body, 0, len(body), [MAX_FIELDS]):
            if number > 6:
                continue
            if wire != LEN:
                raise Broken(f"field {number} has wire type {wire}")
            if number <= 3:
                take_singular(found, number, body, start, low, high)
    except Broken as fault:
        refuse_broken(Reason.ENDPOINT_FAILED, "The endpoint's ModelInferResponse", fault)
    name_span, name = found.get(1, (None, ""))
    version_span, version = found.get(2, (None, ""))
    return ResponseView(name, version, found[3][1] if 3 in found else "", name_span, version_span)


def splice(
    body: bytes,
    view: RequestView | ResponseView,
    *,
    model_name: str | None = None,
    model_version: str | None = None,
) -> bytes:
    """The message with its model name and version replaced, every other byte as it was.

    `view` is the scan of exactly this `body`. None keeps a field, "" removes it; a field that is
    absent is added. Name and version are fields 1 and 2 in requests and responses alike.
    """
    after_name = view.name_span[1] if view.name_span else 0
    edits: list[tuple[Span, bytes]] = []
    if model_name is not None and model_name != view.model_name:
        edits.append((view.name_span or (0, 0), string_field(1, model_name)))
    if model_version is not None and model_version != view.model_version:
        edits.append((view.version_span or (after_name, after_name), string_field(2, model_version)))
    if not edits:
        return body
    edits.sort(key=lambda edit: edit[0][0])
    whole = memoryview(body)
    parts: list[bytes | memoryview] = []
    at = 0
    for (start, end), replacement in edits:
        parts += (whole[at:start], replacement)
        at = end
    parts.append(whole[at:])
    return b"".join(parts)


def refuse_broken(reason: Reason, what: str, fault: Broken) -> NoReturn:
    raise OipError(reason, f"{what} is not well-formed protobuf: {fault}.") from None


def refuse_duplicates(keys: list[str]) -> None:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise Broken(f"parameter {shown(key)} occurs twice")
        seen.add(key)


def take_singular(
    found: dict[int, tuple[Span, str]], number: int, body: bytes, start: int, low: int, high: int
) -> None:
    if number in found:
        raise Broken(f"{_SINGULAR[number]} occurs twice")
    found[number] = ((start, high), text(body, low, high, _SINGULAR[number]))


def _scan_tensor(body: bytes, low: int, high: int, budget: list[int], kind: _Tensor) -> None:
    seen: set[int] = set()
    keys: list[str] = []
    for number, wire, _, inner_low, inner_high in fields(body, low, high, budget):
        if number > kind.last:
            continue
        if wire != LEN and not (wire == VARINT and number == kind.shape):
            raise Broken(f"field {number} of {kind.what} has wire type {wire}")
        if number == kind.parameters:
            keys.append(_entry_key(body, inner_low, inner_high, budget))
        elif number in kind.singular:
            if number in seen:
                raise Broken(f"field {number} of {kind.what} occurs twice")
            seen.add(number)
    if keys:
        refuse_duplicates(keys)
        for key in keys:
            refuse_tensor_key(key)


def _entry_key(body: bytes, low: int, high: int, budget: list[int]) -> str:
    """The key of one entry of a parameters map; "" when the entry has none, as in protobuf."""
    key = ""
    seen: set[int] = set()
    for number, wire, _, inner_low, inner_high in fields(body, low, high, budget):
        if number > 2 or wire != LEN:
            raise Broken(f"a parameter has a field {number} of wire type {wire}")
        if number in seen:
            raise Broken(f"the {'key' if number == 1 else 'value'} of a parameter occurs twice")
        seen.add(number)
        if number == 1:
            key = text(body, inner_low, inner_high, "a parameter's key")
    return key


def text(body: bytes, low: int, high: int, what: str) -> str:
    try:
        return body[low:high].decode("utf-8")
    except UnicodeDecodeError:
        raise Broken(f"{what} is not UTF-8") from None


def string_field(number: int, value: str) -> bytes:
    """A field of at most 15 with a string, as protobuf writes it: b"" for ""."""
    if not value:
        return b""
    data = value.encode("utf-8")
    return bytes((number << 3 | LEN,)) + varint_bytes(len(data)) + data


def varint_bytes(value: int) -> bytes:
    """A number of 0 or more as a varint."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def fields(body: bytes, at: int, end: int, budget: list[int]) -> Iterator[tuple[int, int, int, int, int]]:
    """Every field between `at` and `end`: number, wire type, start of its tag, value's start and end."""
    left = budget[0]
    while at < end:
        left -= 1
        if left < 0:
            raise Broken(f"it has more than {MAX_FIELDS} fields")
        budget[0] = left
        start = at
        tag = body[at]
        at += 1
        if tag > 0x7F:
            tag, at = length_varint(body, start, end, 0xFFFFFFFF, "a tag")
            if not body[at - 1]:
                raise Broken("a tag is longer than it needs to be")
        wire = tag & 7
        number = tag >> 3
        if not number:
            raise Broken("a field has number 0")
        if wire == LEN:
            if at >= end:
                raise Broken("it ends inside a field")
            size = body[at]
            at += 1
            if size > 0x7F:
                size, at = length_varint(body, at - 1, end, 0x7FFFFFFF, "a length")
            high = at + size
        elif wire == VARINT:
            high = _after_varint(body, at, end)
        elif wire in _FIXED_SIZE:
            high = at + _FIXED_SIZE[wire]
        else:
            raise Broken(f"field {number} has wire type {wire}")
        if high > end:
            raise Broken("it ends inside a field")
        yield number, wire, start, at, high
        left = budget[0]
        at = high


def length_varint(body: bytes, at: int, end: int, most: int, what: str) -> tuple[int, int]:
    """A tag or length of up to five bytes and at most `most`, and where it ends."""
    value = 0
    for index in range(5):
        if at >= end:
            raise Broken("it ends inside a field")
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if value > most:
                raise Broken(f"{what} is out of range")
            return value, at
    raise Broken(f"{what} is longer than five bytes")


def _after_varint(body: bytes, at: int, end: int) -> int:
    for place in range(at, min(at + 10, end)):
        if body[place] < 0x80:
            return place + 1
    raise Broken("it ends inside a field" if end - at < 10 else "a number is longer than ten bytes")
