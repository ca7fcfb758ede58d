"""HTTP's content codings, both ways: gzip and deflate undone in requests, and done to answers where it pays.

The async functions take `beside`, which runs a function beside the loop (`asyncio.to_thread`): zlib lets
other threads run while it works. What is small is done at once, what is large in steps of `STEP_BYTES`, so
that a caller who leaves ends the work soon.

`deflate` is what RFC 9110 says, deflated data in zlib's wrapping. Data without it is refused: it has no
checksum and no mark to know it by, and Triton does not take it either.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from oip.errors import OipError
from oip.reasons import Reason

SERVED = "gzip, deflate"
"""As a header says it."""
STEP_BYTES = 2**20
"""What one step beside the loop inflates to, or compresses: some milliseconds."""
QUICK_BYTES = 2**16
"""The like for a step on the loop itself."""
LEAST_BYTES = 1024
"""Smaller answers go out as they are: the headers would eat the gain."""
WORTH = 0.9
"""Answers whose beginning does not shrink to this part of itself go out as they are."""
LEVEL = 1
"""zlib's: most of the gain for a third of the time that its default takes."""
MAX_MEMBERS = 1024
"""Of one gzip body; each takes time, however little is in it."""

Beside = Callable[[Callable[[], bytes]], Awaitable[bytes]]
Headers = Iterable[tuple[str, str | bytes]]


class Coding(StrEnum):
    GZIP = "gzip"
    DEFLATE = "deflate"


_NAMES: Mapping[str, Coding] = {"gzip": Coding.GZIP, "x-gzip": Coding.GZIP, "deflate": Coding.DEFLATE}
_WBITS = {Coding.GZIP: 31, Coding.DEFLATE: 15}


def body_coding(headers: Headers) -> Coding | None:
    """The coding of a request's body, None for none. `headers` have lower-case names. Raises OipError
    UNSUPPORTED_CODING for any other coding, and for more than one."""
    given = [name for name in _items(headers, "content-encoding") if name not in ("", "identity")]
    if not given:
        return None
    if len(given) == 1 and given[0] in _NAMES:
        return _NAMES[given[0]]
    what = "more than one content coding" if len(given) > 1 else "a content coding that is not served"
    raise OipError(Reason.UNSUPPORTED_CODING, f"the body has {what}: send it plain, or with one of {SERVED}")


class Inflater:
    """Undoes the coding of one body, which has at most `max_bytes` without it."""

    def __init__(self, coding: Coding, max_bytes: int) -> None:
        self._coding = coding
        self._max_bytes = max_bytes
        self._size = 0
        self._members = 1
        self._stream = zlib.decompressobj(_WBITS[coding])
        self._waiting = b""

    async def inflate(self, data: bytes, beside: Beside, take: Callable[[bytes], None]) -> None:
        """Give `take` what the next `data` of the body inflates to, piece by piece. Raises OipError:
        MALFORMED for what is not in the coding, TOO_LARGE before more than the limit was given."""
        self._waiting += data
        most = QUICK_BYTES
        piece = self._step(most)
        while piece:
            take(piece)
            if len(piece) < most:
                return
            most = STEP_BYTES
            piece = await beside(lambda: self._step(STEP_BYTES))

    def finish(self) -> None:
        """There is no more of the body. Raises OipError MALFORMED where its end is missing."""
        if not self._stream.eof:
            raise OipError(
                Reason.MALFORMED, f"the body ends before its {self._coding} data does: send all of it"
            )

    def _step(self, most: int) -> bytes:
        """The next bytes, fewer than `most` only when more data is needed."""
        pieces: list[bytes] = []
        room = min(most, self._max_bytes + 1 - self._size)
        while room:
            if self._stream.eof:
                if not self._waiting:
                    break
                self._next_member()
            try:
                piece = self._stream.decompress(self._waiting, room)
            except zlib.error:
                raise OipError(
                    Reason.MALFORMED, f"the body is not {self._coding} data, as its Content-Encoding says"
                ) from None
            self._waiting = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            self._size += len(piece)
            if self._size > self._max_bytes:
                raise OipError(
                    Reason.TOO_LARGE, f"the body inflates to more than the limit of {self._max_bytes} bytes"
                )
            pieces.append(piece)
            room -= len(piece)
            if not piece and not self._stream.eof:
                break
        return b"".join(pieces)

    def _next_member(self) -> None:
        """A gzip body may be several, one after the other."""
        self._members += 1
        if self._coding is not Coding.GZIP or self._members > MAX_MEMBERS:
            most = f" beyond {MAX_MEMBERS} members" if self._coding is Coding.GZIP else ""
            raise OipError(
                Reason.MALFORMED, f"the body goes on behind the end of its {self._coding} data{most}"
            )
        self._stream = zlib.decompressobj(_WBITS[self._coding])


class Wish(NamedTuple):
    """What an answer may be sent in; None: as it is. `needed`: not as it is, however little it gains."""

    coding: Coding | None
    needed: bool = False


def answer_coding(headers: Headers) -> Wish:
    """What a request's Accept-Encoding asks for: the served coding with the highest weight, gzip where they
    are alike, none where plain is weighed higher. A caller that takes nothing of what there is gets plain."""
    weights: dict[str, float] = {}
    for item in _items(headers, "accept-encoding"):
        name, _, parameter = item.partition(";")
        weight = _weight(parameter.strip(" \t"))
        if weight is not None:
            weights[name.strip(" \t")] = weight
    others = weights.get("*", 0.0)
    found = {
        Coding.GZIP: max(weights.get("gzip", others), weights.get("x-gzip", 0.0)),
        Coding.DEFLATE: weights.get("deflate", others),
    }
    best = max(found, key=lambda coding: found[coding])
    plain = weights.get("identity", 0.0 if weights.get("*") == 0.0 else None)
    if found[best] == 0.0 or (plain is not None and plain > found[best]):
        return Wish(None)
    return Wish(best, needed=plain == 0.0)


async def coded_answer(
    asked: Headers, headers: Sequence[tuple[str, str]], body: bytes, beside: Beside
) -> tuple[list[tuple[str, str]], bytes]:
    """Headers and body of a good answer as they go out. `asked` are the request's headers."""
    wish = answer_coding(asked)
    if not body:
        return list(headers), body
    told = [*headers, ("vary", "accept-encoding")]
    if wish.coding is None or (len(body) < LEAST_BYTES and not wish.needed):
        return told, body
    small = await _compressed(body, wish, beside)
    return (told, body) if small is None else ([*told, ("content-encoding", wish.coding.value)], small)


async def _compressed(body: bytes, wish: Wish, beside: Beside) -> bytes | None:
    """None where it does not pay."""
    assert wish.coding is not None
    stream = zlib.compressobj(LEVEL, wbits=_WBITS[wish.coding])
    view = memoryview(body)
    begun = stream.compress(view[:QUICK_BYTES]) + stream.flush(zlib.Z_SYNC_FLUSH)
    if len(begun) > WORTH * min(len(body), QUICK_BYTES) and not wish.needed:
        return None
    parts = [begun]
    for at in range(QUICK_BYTES, len(view), STEP_BYTES):
        parts.append(await beside(lambda at=at: stream.compress(view[at : at + STEP_BYTES])))
    parts.append(stream.flush())
    return b"".join(parts)


def _items(headers: Headers, name: str) -> list[str]:
    """The members of a list header, in lower case; headers of one name count as one."""
    values = [
        value if isinstance(value, str) else value.decode("latin-1") for key, value in headers if key == name
    ]
    return [item.strip(" \t").lower() for value in values for item in value.split(",")]


def _weight(parameter: str) -> float | None:
    """Of one coding; None for what is no weight."""
    if not parameter:
        return 1.0
    key, _, value = parameter.partition("=")
    try:
        weight = float(value) if key.strip() == "q" and value.strip().isascii() else -1.0
    except ValueError:
        return None
    return weight if 0.0 <= weight <= 1.0 else None
