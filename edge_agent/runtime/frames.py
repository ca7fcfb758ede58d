"""Messages between the agent and a worker: lengths, a JSON header, then tensors as they are. Pure.

A tensor's data travel as in raw_input_contents of the protocol: BYTES elements behind their lengths, all
else little-endian as numpy holds it.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from oip.tensors import pack_bytes, unpack_bytes

Array = np.ndarray[Any, np.dtype[Any]]
Header = dict[str, Any]

PREFIX = struct.Struct("<IQ")
"""Bytes of the header, bytes of the tensors behind it."""
MAX_HEADER_BYTES = 4 * 2**20
MAX_PAYLOAD_BYTES = 2**31
BYTES = "BYTES"


class BrokenFrame(Exception):
    """The other end sent what is no frame."""


def encode(header: Header, tensors: Mapping[str, Array] | None = None) -> list[bytes | memoryview]:
    """The pieces of a frame, in order. Arrays of dtype object hold bytes."""
    pieces: list[bytes | memoryview] = []
    described: list[list[Any]] = []
    for name, array in (tensors or {}).items():
        if array.dtype.hasobject:
            kind, data = BYTES, memoryview(pack_bytes(array.ravel().tolist()))
        else:
            kind = array.dtype.str
            data = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        described.append([name, kind, list(array.shape), len(data)])
        pieces.append(data)
    text = json.dumps({**header, "tensors": described}).encode()
    return [PREFIX.pack(len(text), sum(map(len, pieces))), text, *pieces]


def sizes(prefix: bytes) -> tuple[int, int]:
    """Bytes of the header and of the payload that follow. Raises BrokenFrame."""
    header, payload = PREFIX.unpack(prefix)
    if header > MAX_HEADER_BYTES or payload > MAX_PAYLOAD_BYTES:
        raise BrokenFrame("a frame is larger than any that is sent")
    return header, payload


def decode(text: bytes, payload: bytes) -> tuple[Header, dict[str, Array]]:
    """A frame's header and tensors; those are read-only views of `payload`. Raises BrokenFrame."""
    try:
        header: Header = json.loads(text)
        described: Sequence[Any] = header.pop("tensors")
        tensors: dict[str, Array] = {}
        at = 0
        for name, kind, shape, size in described:
            tensors[name] = _array(
                kind, tuple(shape), payload[at : at + size] if len(described) > 1 else payload
            )
            at += size
        if at != len(payload):
            raise ValueError(at)
    except (ValueError, TypeError, KeyError, AttributeError) as fault:
        raise BrokenFrame("a frame contradicts itself") from fault
    return header, tensors


def _array(kind: str, shape: tuple[int, ...], data: bytes) -> Array:
    if kind != BYTES:
        return np.frombuffer(data, dtype=kind).reshape(shape)
    array = np.empty(math.prod(shape), dtype=object)
    array[:] = unpack_bytes(data, len(array), "A tensor")
    return array.reshape(shape)
