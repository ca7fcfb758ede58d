"""Content codings: headers read, bodies inflated within their limit, answers compressed where it pays."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable

import pytest

from oip.content_coding import (
    LEAST_BYTES,
    MAX_MEMBERS,
    QUICK_BYTES,
    STEP_BYTES,
    Coding,
    Inflater,
    Wish,
    answer_coding,
    body_coding,
    coded_answer,
)
from oip.errors import OipError
from oip.reasons import Reason

LIMIT = 4 * STEP_BYTES
JSON = b'{"inputs": []}'
RAW_DEFLATE = zlib.compressobj(wbits=-15)
UNWRAPPED = RAW_DEFLATE.compress(JSON) + RAW_DEFLATE.flush()


class Steps:
    """Runs what goes beside the loop, and counts it."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, step: Callable[[], bytes]) -> bytes:
        self.count += 1
        return step()


async def inflated(coding: Coding, *parts: bytes, limit: int = LIMIT, steps: Steps | None = None) -> bytes:
    pieces: list[bytes] = []
    inflater = Inflater(coding, limit)
    for part in parts:
        await inflater.inflate(part, steps or Steps(), pieces.append)
    inflater.finish()
    return b"".join(pieces)


@pytest.mark.parametrize(
    ("values", "coding"),
    [
        ([], None),
        (["identity"], None),
        ([""], None),
        (["gzip"], Coding.GZIP),
        (["GZip"], Coding.GZIP),
        (["x-gzip"], Coding.GZIP),
        (["identity, deflate"], Coding.DEFLATE),
        (["identity", "gzip"], Coding.GZIP),
    ],
)
def test_a_bodys_coding(values: list[str], coding: Coding | None):
    assert body_coding([("host", "gw"), *(("content-encoding", value) for value in values)]) is coding


@pytest.mark.parametrize("values", [["br"], ["gzip, deflate"], ["gzip", "gzip"], ["gzip;q=1"], ["*"]])
def test_a_coding_that_is_not_served(values: list[str]):
    with pytest.raises(OipError) as caught:
        body_coding([("content-encoding", value) for value in values])
    assert caught.value.reason is Reason.UNSUPPORTED_CODING
    assert "gzip, deflate" in caught.value.message


@pytest.mark.parametrize(
    ("accept", "wish"),
    [
        ("", Wish(None)),
        ("gzip", Wish(Coding.GZIP)),
        ("x-gzip", Wish(Coding.GZIP)),
        ("deflate", Wish(Coding.DEFLATE)),
        ("deflate, gzip", Wish(Coding.GZIP)),
        ("gzip;q=0.5, deflate;q=0.6", Wish(Coding.DEFLATE)),
        ("GZIP ; Q=0.5", Wish(Coding.GZIP)),
        ("gzip;q=0", Wish(None)),
        ("br, zstd", Wish(None)),
        ("*", Wish(Coding.GZIP)),
        ("gzip;q=0, *", Wish(Coding.DEFLATE)),
        ("gzip;q=0.5, identity", Wish(None)),
        ("gzip, identity", Wish(Coding.GZIP)),
        ("identity;q=0.5, gzip;q=0.8", Wish(Coding.GZIP)),
        ("gzip, identity;q=0", Wish(Coding.GZIP, needed=True)),
        ("gzip, *;q=0", Wish(Coding.GZIP, needed=True)),
        ("*;q=0", Wish(None)),
        ("gzip;q=2, deflate;q=nan", Wish(None)),
        ("gzip;level=9", Wish(None)),
    ],
)
def test_what_an_answer_may_be_sent_in(accept: str, wish: Wish):
    assert answer_coding([("accept-encoding", accept)]) == wish
    assert answer_coding([]) == Wish(None)


@pytest.mark.parametrize(
    ("coding", "squeeze"), [(Coding.GZIP, gzip.compress), (Coding.DEFLATE, zlib.compress)]
)
async def test_a_body_is_inflated_however_it_is_cut(coding: Coding, squeeze: Callable[[bytes], bytes]):
    body = random.Random(1).randbytes(QUICK_BYTES) + bytes(3 * STEP_BYTES)
    squeezed = squeeze(body)
    assert await inflated(coding, squeezed) == body
    assert await inflated(coding, *(squeezed[at : at + 1] for at in range(len(squeezed)))) == body


async def test_what_is_large_goes_beside_the_loop_in_steps():
    steps = Steps()
    await inflated(Coding.GZIP, gzip.compress(bytes(QUICK_BYTES - 1)), steps=steps)
    assert steps.count == 0
    await inflated(Coding.GZIP, gzip.compress(bytes(QUICK_BYTES + 2 * STEP_BYTES + 1)), steps=steps)
    assert steps.count == 3


async def test_gzip_bodies_of_several_members():
    members = [gzip.compress(part) for part in (b"one ", b"", b"two")]
    assert await inflated(Coding.GZIP, b"".join(members)) == b"one two"
    assert await inflated(Coding.GZIP, *members) == b"one two"
    await inflated(Coding.GZIP, gzip.compress(b"") * MAX_MEMBERS)
    with pytest.raises(OipError, match="beyond 1024 members"):
        await inflated(Coding.GZIP, gzip.compress(b"") * (MAX_MEMBERS + 1))


BROKEN = {
    "empty": (Coding.GZIP, b""),
    "plain": (Coding.GZIP, JSON),
    "cut": (Coding.GZIP, gzip.compress(JSON)[:-9]),
    "without its checksum": (Coding.GZIP, gzip.compress(JSON)[:-4]),
    "wrong checksum": (Coding.GZIP, gzip.compress(JSON)[:-8] + bytes(8)),
    "garbage behind": (Coding.GZIP, gzip.compress(JSON) + b"garbage"),
    "zlib for gzip": (Coding.GZIP, zlib.compress(JSON)),
    "gzip for zlib": (Coding.DEFLATE, gzip.compress(JSON)),
    "without a wrapping": (Coding.DEFLATE, UNWRAPPED),
    "cut deflate": (Coding.DEFLATE, zlib.compress(JSON)[:-1]),
    "more deflate": (Coding.DEFLATE, zlib.compress(JSON) * 2),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_not_in_its_coding_is_malformed(name: str):
    coding, body = BROKEN[name]
    with pytest.raises(OipError) as caught:
        await inflated(coding, body)
    assert caught.value.reason is Reason.MALFORMED
    assert coding.value in caught.value.message


async def test_the_limit_holds_while_inflating():
    body = bytes(LIMIT)
    assert await inflated(Coding.GZIP, gzip.compress(body)) == body
    taken: list[bytes] = []
    with pytest.raises(OipError) as caught:
        await Inflater(Coding.GZIP, LIMIT).inflate(gzip.compress(bytes(64 * LIMIT)), Steps(), taken.append)
    assert caught.value.reason is Reason.TOO_LARGE
    assert str(LIMIT) in caught.value.message
    assert sum(map(len, taken)) <= LIMIT


async def answered(accept: str, body: bytes, steps: Steps | None = None) -> tuple[dict[str, str], bytes]:
    headers, sent = await coded_answer([("accept-encoding", accept)], [("x", "y")], body, steps or Steps())
    assert len(dict(headers)) == len(headers)
    return dict(headers), sent


async def test_an_answer_is_compressed_as_it_is_wanted():
    body = b"0.125," * 2 * STEP_BYTES
    steps = Steps()
    headers, sent = await answered("gzip", body, steps)
    assert headers == {"x": "y", "vary": "accept-encoding", "content-encoding": "gzip"}
    assert gzip.decompress(sent) == body
    assert steps.count == 12
    headers, sent = await answered("deflate", body[: 2 * LEAST_BYTES], steps)
    assert headers["content-encoding"] == "deflate"
    assert zlib.decompress(sent) == body[: 2 * LEAST_BYTES]
    assert steps.count == 12


@pytest.mark.parametrize(
    ("accept", "body"),
    [
        ("", bytes(LEAST_BYTES)),
        ("br", bytes(LEAST_BYTES)),
        ("gzip", bytes(LEAST_BYTES - 1)),
        ("gzip", random.Random(2).randbytes(LEAST_BYTES)),
        ("gzip", random.Random(3).randbytes(QUICK_BYTES) + bytes(STEP_BYTES)),
    ],
    ids=["not wanted", "not served", "too small", "does not shrink", "does not shrink at first"],
)
async def test_an_answer_goes_out_as_it_is(accept: str, body: bytes):
    assert await answered(accept, body) == ({"x": "y", "vary": "accept-encoding"}, body)


async def test_an_answer_is_compressed_against_all_gain_where_nothing_else_is_taken():
    body = random.Random(4).randbytes(100)
    headers, sent = await answered("gzip, identity;q=0", body)
    assert headers["content-encoding"] == "gzip"
    assert gzip.decompress(sent) == body
    assert await answered("gzip", b"") == ({"x": "y"}, b"")
