"""Requests that are answered, and with what, on every route."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.conformance.wire import LENGTH, Ask, binary, elements, tensor, text

BINARY_OUT = {"binary_data_output": True}
ONE = tensor("INPUT0", "FP32", [1], [1.5])
SIXTEEN = list(range(16))
_PAIR = (tensor("INPUT0", "INT32", [1, 16], SIXTEEN), tensor("INPUT1", "INT32", [1, 16], [1] * 16))
_SUM, _DIFFERENCE = json.dumps([n + 1 for n in SIXTEEN]), json.dumps([n - 1 for n in SIXTEEN])


def _rows(values: list[int]) -> str:
    return json.dumps(values)


def _flat(model: str, datatype: str, shape: list[int], data: list[Any], **members: Any) -> Ask:
    return text(model, tensor("INPUT0", datatype, shape, data), **members)


def _raw(model: str, datatype: str, shape: list[int], raw: bytes, **members: Any) -> Ask:
    return binary(model, (tensor("INPUT0", datatype, shape), raw), **members)


def _one(datatype: str, shape: tuple[int, ...], data: bytes | str) -> tuple[Any, ...]:
    return (("OUTPUT0", datatype, shape, data),)


_VALUES: Mapping[str, bytes] = {
    "BOOL": b"\x01\x00\x01",
    "UINT8": b"\x00\x7f\xff",
    "UINT16": np.array([0, 1, 2**16 - 1], "<u2").tobytes(),
    "UINT32": np.array([0, 1, 2**32 - 1], "<u4").tobytes(),
    "UINT64": np.array([0, 2**53 + 1, 2**64 - 1], "<u8").tobytes(),
    "INT8": np.array([-128, 0, 127], "<i1").tobytes(),
    "INT16": np.array([-(2**15), 0, 2**15 - 1], "<i2").tobytes(),
    "INT32": np.array([-(2**31), 0, 2**31 - 1], "<i4").tobytes(),
    "INT64": np.array([-(2**63), 2**53 + 1, 2**63 - 1], "<i8").tobytes(),
    "FP16": bytes.fromhex("cd46007c0080"),
    "BF16": bytes.fromhex("803f00c0c07f"),
    "FP32": struct.pack("<3I", 0x7FC00001, 0x80000000, 0x3F800001),
    "FP64": struct.pack("<3Q", 0x7FF8000000000001, 1 << 63, 0x3FF0000000000001),
    "BYTES": elements(b"a", b"", "é".encode()),
}
_JSON: Mapping[str, tuple[Any, ...]] = {
    "BOOL": (True, False),
    "UINT8": (0, 255),
    "UINT64": (2**53 + 1, 2**64 - 1),
    "INT8": (-128, 127),
    "INT64": (-(2**63), 2**53 + 1),
    "FP32": (0.1, -3.4028234663852886e38),
    "FP64": (0.1, 5e-324),
    "BYTES": ("a", "é\u0000"),
}

GOOD: dict[str, tuple[Ask, tuple[Any, ...]]] = {}
"""By name: the request, and the outputs that every route gives."""

for _datatype, _bytes in _VALUES.items():
    _model = f"id_{_datatype.lower()}"
    GOOD[f"{_datatype} keeps its bits"] = (
        _raw(_model, _datatype, [3], _bytes, parameters=BINARY_OUT),
        _one(_datatype, (3,), _bytes),
    )
    GOOD[f"no {_datatype} at all"] = (
        _raw(_model, _datatype, [0], b"", parameters=BINARY_OUT),
        _one(_datatype, (0,), b""),
    )
for _datatype, _values in _JSON.items():
    _told = [float(np.float32(v)) if _datatype == "FP32" else v for v in _values]
    GOOD[f"{_datatype} as JSON"] = (
        _flat(f"id_{_datatype.lower()}", _datatype, [2], list(_values)),
        _one(_datatype, (2,), json.dumps(_told)),
    )
GOOD |= {
    "both outputs in the signature's order": (
        text("simple", *_PAIR),
        (("OUTPUT0", "INT32", (1, 16), _SUM), ("OUTPUT1", "INT32", (1, 16), _DIFFERENCE)),
    ),
    "outputs in the signature's order, whatever is asked for": (
        text("simple", *_PAIR, outputs=[{"name": "OUTPUT1"}, {"name": "OUTPUT0"}]),
        (("OUTPUT0", "INT32", (1, 16), _SUM), ("OUTPUT1", "INT32", (1, 16), _DIFFERENCE)),
    ),
    "inputs in another order": (
        text("simple", *reversed(_PAIR), outputs=[{"name": "OUTPUT0"}]),
        (("OUTPUT0", "INT32", (1, 16), _SUM),),
    ),
    "a batch": (
        text(
            "simple",
            tensor("INPUT0", "INT32", [3, 16], list(range(48))),
            tensor("INPUT1", "INT32", [3, 16], [0] * 48),
            outputs=[{"name": "OUTPUT1"}],
        ),
        (("OUTPUT1", "INT32", (3, 16), _rows(list(range(48)))),),
    ),
    "INT8 wraps": (
        text(
            "simple_int8",
            tensor("INPUT0", "INT8", [1, 16], [127] * 16),
            tensor("INPUT1", "INT8", [1, 16], [1] * 16),
            outputs=[{"name": "OUTPUT0"}],
        ),
        (("OUTPUT0", "INT8", (1, 16), _rows([-128] * 16)),),
    ),
    "strings are reckoned with": (
        text(
            "simple_string",
            tensor("INPUT0", "BYTES", [1, 16], ["7"] * 16),
            tensor("INPUT1", "BYTES", [1, 16], ["-9"] * 16),
            outputs=[{"name": "OUTPUT0"}],
        ),
        (("OUTPUT0", "BYTES", (1, 16), json.dumps(["-2"] * 16)),),
    ),
    "all of them empty": (
        _raw("id_bytes", "BYTES", [2], elements(b"", b""), parameters=BINARY_OUT),
        _one("BYTES", (2,), elements(b"", b"")),
    ),
    "bytes that are no UTF-8": (
        _raw("id_bytes", "BYTES", [1], elements(b"\xff\xfe\x00A"), parameters=BINARY_OUT),
        _one("BYTES", (1,), elements(b"\xff\xfe\x00A")),
    ),
    "no rows": (_flat("id2d_fp32", "FP32", [0, 4], []), _one("FP32", (0, 4), "[]")),
    "no columns": (
        _raw("id2d_fp32", "FP32", [4, 0], b"", parameters=BINARY_OUT),
        _one("FP32", (4, 0), b""),
    ),
    "nested data": (
        text("id2d_fp32", tensor("INPUT0", "FP32", [2, 2], [[1, 2], [3, 4]])),
        _one("FP32", (2, 2), "[1.0, 2.0, 3.0, 4.0]"),
    ),
    "not a number, in bytes": (
        _flat("nan_out", "FP32", [1], [0], parameters=BINARY_OUT),
        _one("FP32", (6,), np.array([np.nan, np.inf, -np.inf, 1, 2, 3], "<f4").tobytes()),
    ),
    "not a number, in the words of Triton's JSON": (
        _flat("nan_out", "FP32", [1], [0]),
        _one("FP32", (6,), "[NaN, Infinity, -Infinity, 1.0, 2.0, 3.0]"),
    ),
    "outputs listed, all of them binary": (
        text("id_fp32", ONE, parameters=BINARY_OUT, outputs=[{"name": "OUTPUT0"}]),
        _one("FP32", (1,), struct.pack("<f", 1.5)),
    ),
    "an output's own word goes before": (
        text(
            "id_fp32",
            ONE,
            parameters=BINARY_OUT,
            outputs=[{"name": "OUTPUT0", "parameters": {"binary_data": False}}],
        ),
        _one("FP32", (1,), "[1.5]"),
    ),
    "one output binary": (
        text("id_fp32", ONE, outputs=[{"name": "OUTPUT0", "parameters": {"binary_data": True}}]),
        _one("FP32", (1,), struct.pack("<f", 1.5)),
    ),
    "members that are null": (
        text("id_fp32", ONE | {"parameters": None}, id=None, parameters=None, outputs=None),
        _one("FP32", (1,), "[1.5]"),
    ),
    "priority and timeout": (
        text("id_fp32", ONE, parameters={"priority": 3, "timeout": 60_000_000}),
        _one("FP32", (1,), "[1.5]"),
    ),
    "a sequence's parameters to a model without state": (
        text("id_fp32", ONE, parameters={"sequence_id": 7, "sequence_start": True, "sequence_end": True}),
        _one("FP32", (1,), "[1.5]"),
    ),
    "as a form, as curl says": (
        Ask("id_fp32", text("id_fp32", ONE).body, {"content-type": "application/x-www-form-urlencoded"}),
        _one("FP32", (1,), "[1.5]"),
    ),
    "gzip": (
        Ask("id_fp32", gzip.compress(text("id_fp32", ONE).body), {"content-encoding": "gzip"}),
        _one("FP32", (1,), "[1.5]"),
    ),
    "deflate": (
        Ask("id_fp32", zlib.compress(text("id_fp32", ONE).body), {"content-encoding": "deflate"}),
        _one("FP32", (1,), "[1.5]"),
    ),
    "a tensor and nothing else": (
        Ask("id_int32", np.array([1, -2], "<i4").tobytes(), {LENGTH: "0"}),
        _one("INT32", (2,), np.array([1, -2], "<i4").tobytes()),
    ),
    "the version that serves": (
        Ask("id_fp32/versions/1", text("", ONE).body),
        _one("FP32", (1,), "[1.5]"),
    ),
    "an answer larger than its request": (
        text("wide_out", tensor("N", "INT32", [1], [70_000]), parameters=BINARY_OUT),
        _one("FP32", (70_000,), np.arange(70_000, dtype="<f4").tobytes()),
    ),
}  # fmt: skip
