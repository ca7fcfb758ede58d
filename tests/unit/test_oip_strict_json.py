"""Hostile JSON: every text is one document or one clear refusal."""

from __future__ import annotations

import math

import pytest

from oip.errors import OipError
from oip.reasons import Reason
from oip.strict_json import InfinityWord, loads

HOSTILE = {
    "empty": b"",
    "blank": b"   ",
    "trailing-comma": b'{"a":[1,]}',
    "comment": b"/* c */ {}",
    "single-quotes": b"{'a':1}",
    "cut": b'{"a":1',
    "two-documents": b"{}{}",
    "garbage-after": b"{}x",
    "nul-after": b"{}\x00",
    "byte-order-mark": b"\xef\xbb\xbf{}",
    "utf16": '{"a":1}'.encode("utf-16"),
    "invalid-utf8": b'{"a":"\xff\xfe"}',
    "raw-newline": b'{"a":"x\ny"}',
    "lone-surrogate": rb'{"a":"\ud800"}',
    "lone-low-surrogate": rb'{"a":"x\uDFFFy"}',
    "lone-surrogate-key": rb'{"\ud800":1}',
    "duplicate": b'{"a":1,"a":1}',
    "duplicate-deep": b'{"a":[{"b":{"c":1,"c":2}}]}',
    "duplicate-escaped": rb'{"a":1,"\u0061":2}',
    "huge-integer": b"[" + b"9" * 100_000 + b"]",
    "leading-zero": b"[00]",
    "plus": b"[+1]",
    "hex": b"[0x1]",
    "word": b"[Nan]",
    "deep-list": b"[" * 250_000,
    "deep-list-closed": b"[" * 250_000 + b"]" * 250_000,
    "deep-object": b'{"a":' * 250_000,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_texts_are_refused(kind: str):
    with pytest.raises(OipError) as caught:
        loads(HOSTILE[kind])
    assert caught.value.reason is Reason.MALFORMED
    assert caught.value.message.endswith(".")


def test_a_duplicate_key_is_named():
    with pytest.raises(OipError, match="member 'shape' twice"):
        loads(b'{"inputs":[{"shape":[1],"shape":[2]}]}')


def test_surrogate_pairs_and_nul_escapes_are_text():
    assert loads(rb'["\ud83d\ude00","a\u0000b"]') == ["\U0001f600", "a\x00b"]


def test_infinity_the_word_differs_from_a_number_too_large():
    document = loads(b"[Infinity,-Infinity,1e400,NaN]")
    assert isinstance(document, list)
    assert document[:3] == [math.inf, -math.inf, math.inf]
    assert [type(value) for value in document] == [InfinityWord, InfinityWord, float, float]
    assert math.isnan(document[3])
