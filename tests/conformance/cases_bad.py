"""Requests with a mistake in them, the status that every route answers, and words of what it says."""

from __future__ import annotations

import gzip
import json
from typing import Any

from tests.conformance.cases_good import ONE
from tests.conformance.wire import LENGTH, Ask, binary, elements, tensor, text

_PAIR = (tensor("INPUT0", "INT32", [1, 16]), bytes(64)), (tensor("INPUT1", "INT32", [1, 16]), bytes(64))
_GOOD = binary("simple", *_PAIR)


def _cut(header: str | None) -> Ask:
    """A good binary request with another length of its JSON part."""
    return Ask("simple", _GOOD.body, {} if header is None else {LENGTH: header})


def _length(delta: int) -> Ask:
    return _cut(str(int(_GOOD.headers[LENGTH]) + delta))


def _sized(shape: list[int], raw: bytes, datatype: str = "FP32", model: str = "id_fp32") -> Ask:
    return binary(model, (tensor("INPUT0", datatype, shape), raw))


def _shaped(shape: Any) -> Ask:
    return text("id_fp32", tensor("INPUT0", "FP32", shape, [1.5]))


def _parameter(key: str, value: Any) -> Ask:
    return text("id_fp32", ONE, parameters={key: value})


def _plain(body: bytes) -> Ask:
    return Ask("id_fp32", body)


BAD: dict[str, tuple[Ask, int, str]] = {
    "binary data and no length of the header": (_cut(None), 400, ""),
    "a header longer than the body": (_cut(str(len(_GOOD.body) + 1)), 400, ""),
    "a header of negative length": (_cut("-1"), 400, ""),
    "a header's length in words": (_cut("abc"), 400, ""),
    "a header's length beyond any": (_cut("99999999999"), 400, ""),
    "a header's length as Python would read it": (_cut("12_3"), 400, ""),
    "a header cut short": (_length(-1), 400, ""),
    "a header that takes a byte of the tensor": (_length(1), 400, ""),
    "a tail that is too short": (Ask("simple", _GOOD.body[:-1], _GOOD.headers), 400, ""),
    "a tail that is too long": (Ask("simple", _GOOD.body + b"\0", _GOOD.headers), 400, ""),
    "more bytes than the shape takes": (_sized([8], bytes(40)), 400, "32"),
    "fewer bytes than the shape takes": (_sized([8], bytes(28)), 400, "28"),
    "a string's length beyond the data": (_sized([1], b"\x09\0\0\0ab", "BYTES", "id_bytes"), 400, ""),
    "a string too few": (_sized([2], elements(b"a"), "BYTES", "id_bytes"), 400, ""),
    "a string too many": (_sized([1], elements(b"a", b"b"), "BYTES", "id_bytes"), 400, ""),
    "ragged data": (text("id2d_fp32", tensor("INPUT0", "FP32", [2, 2], [[1, 2], [3]])), 400, ""),
    "fewer elements than the shape has": (text("id_fp32", tensor("INPUT0", "FP32", [3], [1, 2])), 400, ""),
    "more elements than the shape has": (text("id_fp32", tensor("INPUT0", "FP32", [1], [1, 2])), 400, ""),
    "a negative dimension": (_shaped([-1]), 400, ""),
    "a dimension that is no integer": (_shaped([1.0]), 400, ""),
    "a dimension that is a text": (_shaped(["1"]), 400, ""),
    "a dimension that is true": (_shaped([True]), 400, ""),
    "a shape that is no list": (_shaped(1), 400, ""),
    "a thousand dimensions": (_shaped([1] * 1000), 400, ""),
    "more dimensions than the model has": (_shaped([1, 1]), 400, ""),
    "a batch beyond the largest": (
        binary("simple", *((entry | {"shape": [9, 16]}, bytes(576)) for entry, _ in _PAIR)),
        400,
        "8",
    ),
    "a datatype of another protocol": (text("id_fp32", tensor("INPUT0", "STRING", [1], ["a"])), 400, "STRING"),
    "a datatype in small letters": (text("id_fp32", tensor("INPUT0", "fp32", [1], [1])), 400, "fp32"),
    "another datatype than the model's": (text("id_fp32", tensor("INPUT0", "INT32", [1], [1])), 400, "INT32"),
    "half precision as JSON": (text("id_fp16", tensor("INPUT0", "FP16", [1], [1])), 400, "FP16"),
    "bfloat16 as JSON": (text("id_bf16", tensor("INPUT0", "BF16", [1], [1])), 400, "BF16"),
    "bytes that are no text, as JSON": (_sized([1], elements(b"\xff"), "BYTES", "id_bytes"), 400, "binary"),
    "an integer beyond its datatype": (text("id_int8", tensor("INPUT0", "INT8", [1], [128])), 400, "128"),
    "a fraction for an integer": (text("id_int32", tensor("INPUT0", "INT32", [1], [1.5])), 400, ""),
    "a text for a number": (text("id_fp32", tensor("INPUT0", "FP32", [1], ["1"])), 400, ""),
    "a number for a text": (text("id_bytes", tensor("INPUT0", "BYTES", [1], [1])), 400, ""),
    "a number for a truth": (text("id_bool", tensor("INPUT0", "BOOL", [1], [2])), 400, ""),
    "an input missing": (binary("simple", _PAIR[0]), 400, "INPUT1"),
    "an input twice": (binary("simple", _PAIR[0], _PAIR[0]), 400, "INPUT0"),
    "an input of another name": (
        binary("simple", _PAIR[0], (tensor("INPUT9", "INT32", [1, 16]), bytes(64))),
        400,
        "INPUT9",
    ),
    "no inputs": (text("id_fp32"), 400, ""),
    "an output of another name": (text("id_fp32", ONE, outputs=[{"name": "OUTPUT9"}]), 400, "OUTPUT9"),
    "an output twice": (text("id_fp32", ONE, outputs=[{"name": "OUTPUT0"}] * 2), 400, "OUTPUT0"),
    "an id that is a number": (text("id_fp32", ONE, id=42), 400, "id"),
    "a timeout that is a text": (_parameter("timeout", "5"), 400, "timeout"),
    "a timeout below nothing": (_parameter("timeout", -1), 400, "timeout"),
    "a timeout that is true": (_parameter("timeout", True), 400, "timeout"),
    "a priority below nothing": (_parameter("priority", -1), 400, "priority"),
    "a sequence's start that is a number": (_parameter("sequence_start", 1), 400, "sequence_start"),
    "a parameter of Triton's own": (_parameter("triton_enable_empty_final_response", True), 400, "triton_"),
    "a request option as a parameter": (_parameter("tidegate-deadline-ms", 5), 400, "header"),
    "classification": (
        text("id_fp32", ONE, outputs=[{"name": "OUTPUT0", "parameters": {"classification": 1}}]),
        501,
        "classification",
    ),
    "a region of shared memory": (
        text(
            "id_fp32",
            tensor("INPUT0", "FP32", [1], shared_memory_region="r", shared_memory_byte_size=4),
        ),
        501,
        "shared memory",
    ),
    "a version that there is not": (Ask("id_fp32/versions/999", text("", ONE).body), 404, "Request for unknown model"),
    "a version that is no number": (Ask("id_fp32/versions/x", text("", ONE).body), 400, ""),
    "a model in other letters": (text("ID_FP32", ONE), 404, "Request for unknown model"),
    "no body": (_plain(b""), 400, ""),
    "a list": (_plain(b"[]"), 400, ""),
    "nothing but null": (_plain(b"null"), 400, ""),
    "a comma too many": (_plain(text("", ONE).body[:-1] + b",}"), 400, ""),
    "a member twice": (_plain(text("", ONE).body[:-1] + b',"inputs":[]}'), 400, "inputs"),
    "UTF-16": (_plain(text("", ONE).body.decode().encode("utf-16")), 400, ""),
    "half a character": (
        _plain(json.dumps({"inputs": [ONE], "id": "I"}).encode().replace(b'"I"', b'"\\ud800"')),
        400,
        "",
    ),
    "too deep": (_plain(b"[" * 250_000), 400, ""),
    "a number of a hundred thousand digits": (
        _plain(text("", ONE).body.replace(b"1.5", b"1" * 100_000)),
        400,
        "",
    ),
    "a number beyond FP64": (_plain(text("", ONE).body.replace(b"1.5", b"1e400")), 400, ""),
    "text that is no UTF-8": (_plain(text("", ONE).body.replace(b"INPUT0", b"\xff\xfe")), 400, ""),
    "gzip that is none": (Ask("id_fp32", b"no gzip", {"content-encoding": "gzip"}), 400, "gzip"),
    "gzip that ends early": (
        Ask("id_fp32", gzip.compress(text("", ONE).body)[:-5], {"content-encoding": "gzip"}),
        400,
        "gzip",
    ),
    "a coding that nobody knows": (Ask("id_fp32", b"", {"content-encoding": "br"}), 415, "gzip"),
    "a tensor and nothing else for two inputs": (Ask("simple", bytes(64), {LENGTH: "0"}), 400, ""),
    "an option that nobody knows": (Ask("id_fp32", text("", ONE).body, {"tidegate-colour": "red"}), 400, "tidegate-colour"),
    "an option with a bad value": (Ask("id_fp32", text("", ONE).body, {"tidegate-deadline-ms": "soon"}), 400, "tidegate-deadline-ms"),
}  # fmt: skip
"""By name: the request, the status, and what the message has in it."""
