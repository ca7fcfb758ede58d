"""Tensor bytes against the canonical oracles, and what JSON data may and may not hold."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest

from oip import tensors
from oip.errors import OipError
from oip.reasons import Reason
from oip.strict_json import loads

WHERE = "Input 'X'"


def encode(datatype: str, shape: list[int], text: str) -> bytes:
    return tensors.from_json(datatype, shape, loads(text.encode()), WHERE)


def refused(datatype: str, shape: list[int], text: str) -> str:
    with pytest.raises(OipError) as caught:
        encode(datatype, shape, text)
    assert caught.value.reason is Reason.MALFORMED
    assert caught.value.message.startswith(WHERE)
    return caught.value.message


def test_bytes_have_their_lengths_before_them():
    raw = bytes.fromhex("0100000061 00000000 02000000c3a9")
    assert encode("BYTES", [3], '["a","","é"]') == raw
    assert tensors.to_json("BYTES", [3], raw, WHERE) == ["a", "", "é"]
    assert tensors.pack_bytes([b"\x00\xff"]) == bytes.fromhex("0200000000ff")
    assert tensors.unpack_bytes(bytes.fromhex("0200000000ff"), 1, WHERE) == [b"\x00\xff"]


def test_an_empty_string_is_not_an_empty_tensor():
    assert encode("BYTES", [1, 1], '[""]') == bytes(4)
    assert encode("BYTES", [1, 0], "[]") == b""
    assert tensors.to_json("BYTES", [1, 1], bytes(4), WHERE) == [""]
    assert tensors.to_json("BYTES", [1, 0], b"", WHERE) == []


def test_bool_is_one_byte():
    assert encode("BOOL", [2], "[true,false]") == b"\x01\x00"
    assert tensors.to_json("BOOL", [3], b"\x01\x00\x02", WHERE) == [True, False, True]


def test_half_precision_is_binary_only_in_both_directions():
    fp16 = bytes.fromhex("cd469a41cd449a3d0046cd428044663e")
    tensors.check_raw("FP16", [2, 4], fp16, WHERE)
    tensors.check_raw("BF16", [2], bytes.fromhex("803f00c0"), WHERE)
    for datatype in ("FP16", "BF16"):
        assert "binary" in refused(datatype, [1], "[1.5]")
        with pytest.raises(OipError, match="ask for binary"):
            tensors.to_json(datatype, [1], bytes(2), WHERE)


EXACT = {
    "INT8": [-128, 127, 0],
    "UINT8": [255, 0],
    "INT16": [-32768, 32767],
    "UINT16": [65535],
    "INT32": [-(2**31), 2**31 - 1],
    "UINT32": [2**32 - 1],
    "INT64": [9007199254740993, -9223372036854775808, 9223372036854775807],
    "UINT64": [18446744073709551615, 9223372036854775808, 0],
}


@pytest.mark.parametrize("datatype", EXACT)
def test_integers_are_exact_to_the_ends_of_their_range(datatype: str):
    values = EXACT[datatype]
    size = tensors.SIZES[datatype]
    assert size is not None
    raw = b"".join(v.to_bytes(size, "little", signed=datatype[0] == "I") for v in values)
    assert encode(datatype, [len(values)], str(values)) == raw
    back = tensors.to_json(datatype, [len(values)], raw, WHERE)
    assert back == values
    assert {type(value) for value in back} == {int}


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        ("INT64", "9223372036854775808"),
        ("INT64", "-9223372036854775809"),
        ("UINT64", "18446744073709551616"),
        ("UINT64", "-1"),
        ("UINT8", "-1"),
        ("UINT8", "256"),
        ("INT8", "128"),
        ("INT16", "32768"),
        ("UINT32", "4294967296"),
        ("INT32", "1.5"),
        ("INT32", "1.0"),
        ("INT32", "1e2"),
        ("INT32", '"1"'),
        ("INT32", "true"),
        ("INT32", "null"),
        ("INT32", "NaN"),
        ("BOOL", "1"),
        ("BOOL", '"true"'),
        ("FP32", "true"),
        ("FP32", '"1"'),
        ("FP32", "null"),
        ("FP64", "{}"),
        ("BYTES", "1"),
        ("BYTES", "null"),
    ],
)
def test_no_value_is_bent_to_fit(datatype: str, value: str):
    refused(datatype, [1], f"[{value}]")
    good = {"BOOL": "true", "BYTES": '"a"'}.get(datatype, "1")
    assert "value 1 of its data" in refused(datatype, [3], f"[{good},{value},{good}]")


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        ("FP32", "1e39"),
        ("FP32", "-3.5e38"),
        ("FP32", "1e400"),
        ("FP64", "1e400"),
        ("FP64", "-1e999"),
        ("FP64", "1" + "0" * 400),
    ],
)
def test_numbers_beyond_the_range_are_refused_even_beside_infinity(datatype: str, value: str):
    assert f"range of {datatype}" in refused(datatype, [2], f"[Infinity,{value}]")


def test_fp32_takes_its_extremes_and_rounds_to_the_nearest():
    assert encode("FP32", [2], "[3.4028234663852886e38,16777217]") == struct.pack(
        "<2f", 3.4028234663852886e38, 16777216
    )
    assert encode("FP32", [1], "[1e-60]") == bytes(4)
    assert encode("FP64", [2], "[9007199254740993,-0.0]") == struct.pack("<2d", 9007199254740992, -0.0)


def test_nan_and_infinity_are_bare_words_in_both_directions():
    raw = struct.pack("<3f", math.nan, math.inf, -math.inf)
    assert encode("FP32", [3], "[NaN,Infinity,-Infinity]") == raw
    assert repr(tensors.to_json("FP32", [3], raw, WHERE)) == "[nan, inf, -inf]"
    assert encode("FP64", [1], "[-Infinity]") == struct.pack("<d", -math.inf)


NESTED_OR_FLAT = {
    "[[1,2],[3,4]]": True,
    "[1,2,3,4]": True,
    "[[1,2,3,4]]": False,
    "[[1],[2],[3],[4]]": False,
    "[[1,2],[3]]": False,
    "[[1,2],[3,4,5]]": False,
    "[[1,2],3,4]": False,
    "[1,2,[3,4]]": False,
    "[[[1,2],[3,4]]]": False,
    "[[[1],[2]],[[3],[4]]]": False,
    "[1]": False,
    "[[1,2]]": False,
    "1": False,
    '"1234"': False,
    "{}": False,
    "[]": False,
}


@pytest.mark.parametrize("text", NESTED_OR_FLAT)
def test_data_is_flat_or_nested_as_the_shape_says(text: str):
    if NESTED_OR_FLAT[text]:
        assert encode("FP32", [2, 2], text) == struct.pack("<4f", 1, 2, 3, 4)
    else:
        assert "data" in refused("FP32", [2, 2], text)


@pytest.mark.parametrize("count", [0, 15, 17, 18])
def test_the_shape_counts_the_values(count: int):
    message = refused("INT32", [1, 16], str(list(range(count))))
    assert f"{count} values" in message
    assert "takes 16" in message


@pytest.mark.parametrize(
    ("shape", "text"),
    [([0], "[]"), ([0, 4], "[]"), ([4, 0], "[]"), ([4, 0], "[[],[],[],[]]"), ([2, 0, 3], "[[],[]]")],
)
def test_dimensions_of_size_zero_hold_nothing(shape: list[int], text: str):
    for datatype in ("FP32", "INT64", "BOOL", "BYTES"):
        assert encode(datatype, shape, text) == b""
        assert tensors.to_json(datatype, shape, b"", WHERE) == []


def test_zero_sized_nesting_must_match_too():
    refused("FP32", [4, 0], "[[],[]]")
    refused("FP32", [0], "[[]]")


def test_a_scalar_has_one_element():
    for text in ("[5]", "5"):
        assert encode("INT32", [], text) == struct.pack("<i", 5)
    assert tensors.to_json("INT32", [], struct.pack("<i", 5), WHERE) == [5]
    refused("INT32", [], "[]")
    refused("INT32", [], "[[5]]")
    refused("INT32", [1], "5")


@pytest.mark.parametrize(
    "shape",
    [
        *("[2,-5]", "[-1]", "[1.0]", '["1"]', "[true]", "[null]", "[[1]]", '"16"', "16", "{}", "null"),
        *("[9223372036854775808]", "[4294967296,4294967296]", str([1] * 65)),
    ],
)
def test_shapes_that_are_no_shapes_are_refused(shape: str):
    with pytest.raises(OipError, match="shape") as caught:
        tensors.check_shape(loads(shape.encode()), WHERE)
    assert caught.value.reason is Reason.MALFORMED


def test_good_shapes_pass():
    for shape in ([], [0], [2**63 - 1], [2**62, 2**62, 0], [1] * 64):
        assert tensors.check_shape(shape, WHERE) == tuple(shape)


@pytest.mark.parametrize(
    "datatype", ["STRING", "TYPE_INT32", "int32", "FLOAT", "FP128", "", "INT32 ", None, 5, [], True]
)
def test_wrong_datatype_names_are_refused(datatype: Any):
    with pytest.raises(OipError, match="datatype"):
        tensors.check_datatype(datatype, WHERE)


def test_raw_data_of_another_size_says_both_sizes():
    with pytest.raises(OipError, match=r"40 bytes.*FP32 \[1, 8\] takes 32"):
        tensors.check_raw("FP32", [1, 8], bytes(40), WHERE)
    with pytest.raises(OipError, match="3 bytes"):
        tensors.check_raw("FP16", [2], bytes(3), WHERE)


@pytest.mark.parametrize(
    "raw",
    [
        "ffffffff61",
        "0500000061",
        "0100000061",
        "010000006101000000610100000061",
        "0100000061010000006100",
        "0100000061010000",
        "010000",
        "",
    ],
)
def test_bytes_lengths_that_lie_are_refused(raw: str):
    with pytest.raises(OipError) as caught:
        tensors.check_raw("BYTES", [2], bytes.fromhex(raw), WHERE)
    assert caught.value.reason is Reason.MALFORMED


def test_an_absurd_count_of_bytes_elements_is_refused_at_once():
    with pytest.raises(OipError, match="too few"):
        tensors.check_raw("BYTES", [2**40], bytes(4), WHERE)


@pytest.mark.parametrize("item", [b"\xff\xfe\x00A", b"\x80", b"\xe6\x97", b"\xed\xa0\x80"])
def test_bytes_that_are_not_utf8_have_no_json_form(item: bytes):
    with pytest.raises(OipError, match="ask for binary"):
        tensors.to_json("BYTES", [1], tensors.pack_bytes([item]), WHERE)
