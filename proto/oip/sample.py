"""The name of a request's inputs: the same wherever and however they came.

A sample's id is the SHA-256, in hex, over its inputs sorted by the UTF-8 bytes of their names, each as

    length of the name (uint32), the name
    length of the datatype (uint32), the datatype, as the protocol calls it: "FP32"
    number of dimensions (uint32), each dimension (uint64)
    length of the data (uint64), the data as the protocol's raw data: row-major, little-endian, each
    element of BYTES behind its length (uint32)

All numbers are little-endian. Nothing else of a request counts: not its id, nor the model's name.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from oip import tensors

Array = np.ndarray[Any, np.dtype[Any]]

_NAMES = {tensors.dtype(name): name for name in tensors.SIZES if name != "BF16"}
"""What an array of a numpy type holds. BF16 is taken for the UINT16 that its bits are."""


def sample_id(inputs: Mapping[str, Array]) -> str:
    """64 hex digits. Arrays are of the types of `tensors.dtype`, their bytes in any order: BYTES are
    objects, `bytes` or `str`. Raises ValueError for one of another type."""
    digest = hashlib.sha256()
    for name, array in _by_name(inputs):
        datatype = _NAMES.get(array.dtype.newbyteorder("<"))
        if datatype is None:
            raise ValueError(f"numpy type {array.dtype} is no datatype of the protocol")
        raw = _raw(datatype, array)
        for text in (name, datatype.encode()):
            digest.update(struct.pack("<I", len(text)) + text)
        digest.update(struct.pack(f"<I{array.ndim}Q", array.ndim, *array.shape))
        digest.update(struct.pack("<Q", len(raw)) + raw)
    return digest.hexdigest()


def _raw(datatype: str, array: Array) -> bytes:
    if datatype != "BYTES":
        return np.ascontiguousarray(array, tensors.dtype(datatype)).tobytes()
    items = cast("list[bytes | str]", array.ravel().tolist())
    return tensors.pack_bytes([item.encode() if isinstance(item, str) else item for item in items])


def _by_name(inputs: Mapping[str, Array]) -> list[tuple[bytes, Array]]:
    return sorted(((name.encode(), array) for name, array in inputs.items()), key=lambda pair: pair[0])
