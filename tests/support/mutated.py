"""Tensors of every datatype, requests that carry them on each wire, and such requests after an accident.

Values are kept as the raw bytes that must come back. What is done to a message is drawn by hypothesis, so that a
failure shrinks.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from oip.http_request import HEADER_LENGTH
from oip.tensors import SIZES

pb: Any = service_pb2
FORMATS = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "FP32": "f", "FP64": "d",
}  # fmt: skip
BINARY_ONLY = ("FP16", "BF16")
_CONTENTS = {
    "BOOL": "bool_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """`raw` as in raw_input_contents."""

    datatype: str
    shape: tuple[int, ...]
    raw: bytes

    @property
    def values(self) -> list[Any]:
        """The elements of a datatype that has a form in JSON; BYTES as bytes."""
        if self.datatype == "BYTES":
            found, at = [], 0
            while at < len(self.raw):
                (size,) = struct.unpack_from("<I", self.raw, at)
                found.append(self.raw[at + 4 : at + 4 + size])
                at += 4 + size
            return found
        return list(struct.unpack(f"<{math.prod(self.shape)}{FORMATS[self.datatype]}", self.raw))

    @property
    def sayable(self) -> bool:
        """Whether JSON has a form for it."""
        if self.datatype == "BYTES":
            try:
                return all(value.decode() is not None for value in self.values)
            except UnicodeDecodeError:
                return False
        return self.datatype not in BINARY_ONLY

    def same(self, raw: bytes) -> bool:
        """Whether these are its bytes; of a NaN only that it is one."""
        if raw == self.raw or self.datatype not in ("FP32", "FP64") or len(raw) != len(self.raw):
            return raw == self.raw
        size = len(raw) // max(1, math.prod(self.shape))
        return all(
            mine == theirs or (_nan(mine) and _nan(theirs))
            for mine, theirs in zip(_cut(self.raw, size), _cut(raw, size), strict=True)
        )


def _cut(raw: bytes, size: int) -> list[bytes]:
    return [raw[at : at + size] for at in range(0, len(raw), size)]


def _nan(raw: bytes) -> bool:
    return math.isnan(struct.unpack("<f" if len(raw) == 4 else "<d", raw)[0])


def _elements(datatype: str) -> st.SearchStrategy[bytes]:
    size = SIZES[datatype]
    if size is None:
        text = st.text(st.characters(codec="utf-8"), max_size=6).map(str.encode)
        return st.one_of(text, st.binary(max_size=6)).map(lambda item: struct.pack("<I", len(item)) + item)
    if datatype == "BOOL":
        return st.sampled_from([b"\0", b"\1"])
    whole = st.binary(min_size=size, max_size=size)
    if datatype in ("FP32", "FP64"):
        code = "<" + FORMATS[datatype]
        return whole | st.floats(width=8 * size).map(lambda value: struct.pack(code, value))
    return whole | st.sampled_from([bytes(size), b"\xff" * size, bytes(size - 1) + b"\x80"])


@st.composite
def tensors(draw: st.DrawFn, datatype: str, shapes: st.SearchStrategy[Sequence[int]]) -> Tensor:
    shape = tuple(draw(shapes))
    count = math.prod(shape)
    elements = draw(st.lists(_elements(datatype), min_size=count, max_size=count))
    return Tensor(datatype, shape, b"".join(elements))


def grpc_request(model: str, *inputs: Tensor, typed: bool = False) -> Any:
    """A ModelInferRequest with inputs INPUT0, INPUT1, ..., in raw or in typed contents."""
    message = pb.ModelInferRequest(model_name=model, id="7")
    for at, given in enumerate(inputs):
        entry = message.inputs.add(name=f"INPUT{at}", datatype=given.datatype, shape=given.shape)
        if typed:
            entry.contents.SetInParent()
            getattr(entry.contents, _CONTENTS[given.datatype]).extend(given.values)
        else:
            message.raw_input_contents.append(given.raw)
    return message


@dataclass(frozen=True)
class Http:
    """A request for POST /v2/models/MODEL/infer."""

    headers: dict[str, str]
    body: bytes


def http_request(*inputs: Tensor, binary: bool, binary_out: bool, nested: bool = False) -> Http:
    entries: list[dict[str, Any]] = []
    tail = b""
    for at, given in enumerate(inputs):
        entry: dict[str, Any] = {
            "name": f"INPUT{at}",
            "datatype": given.datatype,
            "shape": list(given.shape),
        }
        if binary:
            entry["parameters"] = {"binary_data_size": len(given.raw)}
            tail += given.raw
        else:
            said = given.values
            said = [value.decode() for value in said] if given.datatype == "BYTES" else said
            entry["data"] = _nested(list(given.shape), said) if nested else said
        entries.append(entry)
    document = {"id": "7", "inputs": entries, "parameters": {"binary_data_output": binary_out}}
    text = json.dumps(document).encode()
    return Http({HEADER_LENGTH: str(len(text))} if binary else {}, text + tail)


def _nested(shape: list[int], values: list[Any]) -> Any:
    if not shape:
        return values[0]
    step = math.prod(shape[1:])
    return [_nested(shape[1:], values[at * step : at * step + step]) for at in range(shape[0])]


def http_outputs(headers: dict[str, str], body: bytes) -> dict[str, Tensor | tuple[str, list[int], Any]]:
    """The outputs of an answer: a tensor where it came as binary data, else what JSON says of it."""
    cut = int(headers.get(HEADER_LENGTH.lower(), len(body)))
    found: dict[str, Tensor | tuple[str, list[int], Any]] = {}
    at = cut
    for entry in json.loads(body[:cut])["outputs"]:
        size = entry.get("parameters", {}).get("binary_data_size")
        if size is None:
            found[entry["name"]] = (entry["datatype"], entry["shape"], entry["data"])
        else:
            found[entry["name"]] = Tensor(entry["datatype"], tuple(entry["shape"]), body[at : at + size])
            at += size
    assert at == len(body)
    return found


def packed(datatype: str, values: list[Any]) -> bytes:
    """What JSON says, as raw bytes."""
    if datatype == "BYTES":
        items = [value.encode() for value in values]
        return b"".join(struct.pack("<I", len(item)) + item for item in items)
    return struct.pack(f"<{len(values)}{FORMATS[datatype]}", *values)


def fields_of(body: bytes) -> list[bytes]:
    """The top-level fields of a protobuf message, tags included."""
    found, at = [], 0
    while at < len(body):
        start = at
        tag, at = _varint(body, at)
        kind = tag & 7
        if kind == 0:
            _, at = _varint(body, at)
        elif kind == 2:
            size, at = _varint(body, at)
            at += size
        else:
            at += {1: 8, 5: 4}[kind]
        found.append(body[start:at])
    return found


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _place(draw: st.DrawFn, body: bytes | list[bytes]) -> int:
    return draw(st.integers(0, max(0, len(body) - 1)))


def _flip(draw: st.DrawFn, body: bytes) -> bytes:
    at, bit = _place(draw, body), draw(st.integers(0, 7))
    return body[:at] + bytes([body[at] ^ 1 << bit]) + body[at + 1 :] if body else body


def _cut_off(draw: st.DrawFn, body: bytes) -> bytes:
    return body[: _place(draw, body)]


def _splice(draw: st.DrawFn, body: bytes) -> bytes:
    at = _place(draw, body)
    return body[:at] + draw(st.binary(max_size=4)) + body[at + draw(st.integers(0, 4)) :]


def _length(draw: st.DrawFn, body: bytes) -> bytes:
    """A byte that may be a length, changed by a little or a lot."""
    if not body:
        return body
    at, by = _place(draw, body), draw(st.sampled_from([1, -1, 4, -4, 0x7F, 0x80]))
    return body[:at] + bytes([(body[at] + by) % 256]) + body[at + 1 :]


def _moved(draw: st.DrawFn, pieces: list[bytes], others: list[bytes]) -> list[bytes]:
    """Pieces repeated, lost, moved or taken from another message."""
    kind, at = draw(st.sampled_from(["twice", "lost", "moved", "foreign", "empty"])), _place(draw, pieces)
    found = list(pieces)
    if not found:
        return found
    if kind == "twice":
        found.insert(_place(draw, pieces), found[at])
    elif kind == "lost":
        del found[at]
    elif kind == "moved":
        found.insert(_place(draw, pieces), found.pop(at))
    elif kind == "foreign" and others:
        found.insert(at, others[_place(draw, others)])
    else:
        found[at] = found[at][:1] + b"\0"
    return found


@st.composite
def accidents(draw: st.DrawFn, body: bytes, other: bytes) -> bytes:
    """A serialized message after one to three accidents; `other` is one that pieces are taken from."""
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        kind = draw(st.sampled_from([_flip, _cut_off, _splice, _length, _moved, _moved]))
        if kind is _moved:
            try:
                pieces = fields_of(body)
            except (IndexError, KeyError):
                continue  # an accident before left no fields
            body = b"".join(_moved(draw, pieces, fields_of(other)))
        else:
            body = kind(draw, body)
    return body


_WORDS = """{ } [ ] , : " null NaN -1 1e99 1.5 true 18446744073709551616 \\ud800 "INPUT0" "id":"8", "parameters":{},
    "data":[1], "BYTES" "INT64" "shape":[2], "binary_data_size":4,"""
_TOKENS = st.sampled_from([b"\xff", *(word.encode() for word in _WORDS.split())])


_MEMBER = re.compile(rb'"(\w+)": (\[[^\[\]{}]*\]|"[^"]*"|\d+|true|false)(?:, )?')


def _member(draw: st.DrawFn, body: bytes) -> bytes:
    """A member said twice, with its own or another's value, or lost, or given another's name or value."""
    found = list(_MEMBER.finditer(body))
    if not found:
        return body
    one, other = (found[draw(st.integers(0, len(found) - 1))] for _ in range(2))
    name, value = one[1], other[2]
    if draw(st.booleans()):
        name, value = other[1], one[2]
    said = b'"' + name + b'": ' + value
    kind = draw(st.sampled_from(["twice", "twice", "lost", "changed"]))
    after = one[0][-2:] if one[0].endswith(b", ") else b""
    if kind == "twice":
        return body[: one.start()] + said + b", " + body[one.start() :]
    return body[: one.start()] + (said + after if kind == "changed" else b"") + body[one.end() :]


@st.composite
def http_accidents(draw: st.DrawFn, good: Http) -> Http:
    """A request after one to three accidents, to its body or to what its header says of it. One to a member leaves
    the header right."""
    body, headers = good.body, dict(good.headers)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        kind = draw(
            st.sampled_from([_flip, _cut_off, _splice, _length, _member, _member, _member, "token", "header"])
        )
        if kind == "token":
            at = _place(draw, body)
            body = body[:at] + draw(_TOKENS) + body[at + draw(st.integers(0, 3)) :]
        elif kind == "header":
            size = int(good.headers.get(HEADER_LENGTH, len(good.body)))
            near = [str(size + by) for by in (-4, -1, 1, 4)]
            headers[HEADER_LENGTH] = draw(st.sampled_from([*near, "0", "", "-1", "1.0", "9" * 20, "0x10"]))
        else:
            assert callable(kind)
            size = len(body)
            body = kind(draw, body)
            told = headers.get(HEADER_LENGTH, "")
            if kind is _member and told.isdigit():
                headers[HEADER_LENGTH] = str(int(told) + len(body) - size)
    return Http(headers, body)
