"""Whatever is sent as a coded body: it inflates exactly, or is refused, and never beyond its limit."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oip.content_coding import Coding, Inflater, answer_coding, coded_answer
from oip.errors import OipError
from oip.reasons import Reason

LIMIT = 200_000
SQUEEZE: dict[Coding, Callable[[bytes], bytes]] = {Coding.GZIP: gzip.compress, Coding.DEFLATE: zlib.compress}
BODIES = st.builds(lambda part, times: part * times, st.binary(max_size=300), st.integers(0, 2000))


async def _at_once(step: Callable[[], bytes]) -> bytes:
    return step()


def inflate(coding: Coding, data: bytes, cuts: list[int]) -> bytes:
    """Raises OipError."""
    pieces: list[bytes] = []

    async def run() -> None:
        inflater = Inflater(coding, LIMIT)
        edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
        try:
            for begin, end in itertools.pairwise(edges):
                await inflater.inflate(data[begin:end], _at_once, pieces.append)
            inflater.finish()
        finally:
            assert sum(map(len, pieces)) <= LIMIT

    asyncio.run(run())
    return b"".join(pieces)


@given(st.sampled_from(Coding), BODIES, st.lists(st.integers(0, 2**30), max_size=5))
def test_a_body_comes_out_as_it_went_in(coding: Coding, body: bytes, cuts: list[int]):
    squeezed = SQUEEZE[coding](body)
    if len(body) <= LIMIT:
        assert inflate(coding, squeezed, cuts) == body
        return
    with pytest.raises(OipError) as caught:
        inflate(coding, squeezed, cuts)
    assert caught.value.reason is Reason.TOO_LARGE


@given(
    st.sampled_from(Coding), BODIES, st.integers(0, 2**30), st.integers(1, 255), st.lists(st.integers(0, 99))
)
def test_a_changed_byte_never_gives_another_body(
    coding: Coding, body: bytes, at: int, flip: int, cuts: list[int]
):
    squeezed = bytearray(SQUEEZE[coding](body[:LIMIT]))
    squeezed[at % len(squeezed)] ^= flip
    try:
        # gzip's header holds a time and a name that mean nothing here.
        unharmed = inflate(coding, bytes(squeezed), cuts) == body[:LIMIT]
    except OipError as error:
        unharmed = error.reason in (Reason.MALFORMED, Reason.TOO_LARGE)
    assert unharmed


@given(st.text(st.sampled_from("gzipdeflat;q=01.,* x-identity"), max_size=40), BODIES)
def test_an_answer_can_be_read_whatever_was_accepted(accept: str, body: bytes):
    asked = [("accept-encoding", accept)]
    headers, sent = asyncio.run(coded_answer(asked, [], body, _at_once))
    match dict(headers).get("content-encoding"):
        case "gzip":
            assert gzip.decompress(sent) == body
        case "deflate":
            assert zlib.decompress(sent) == body
        case _:
            assert sent == body
    wish = answer_coding(asked)
    assert wish.coding is not None or "content-encoding" not in dict(headers)
