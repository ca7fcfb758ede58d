"""Answers of one device that are still arriving, put together within bounds. PURE."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgewire.v1 import edge_pb2


class Broken(Exception):
    """The device broke the protocol; the text says how."""


@dataclass(slots=True)
class _Arriving:
    answer: edge_pb2.Answer
    # One buffer: kept one by one, a million pieces of a byte would take fifty times their size.
    body: bytearray = field(default_factory=bytearray)
    missing: int = 0


class Answers:
    """The answers under way. `most_bytes` bounds one answer, `most_held` what all of them announce."""

    def __init__(self, most_bytes: int, most_held: int) -> None:
        self._most_bytes = most_bytes
        self._most_held = most_held
        self._arriving: dict[int, _Arriving] = {}
        self.announced = 0

    def __contains__(self, number: object) -> bool:
        return number in self._arriving

    def fits(self, size: int) -> bool:
        """Whether there is room for an answer of this size now."""
        return self.announced + size <= self._most_held

    def begin(self, answer: edge_pb2.Answer) -> None:
        """Expect `answer.size` bytes, which are more than none. Raises Broken."""
        if answer.size > self._most_bytes:
            raise Broken(f"an answer of {answer.size} bytes, where {self._most_bytes} were agreed")
        if answer.id in self._arriving:
            raise Broken("a second Answer for one inference")
        self._arriving[answer.id] = _Arriving(answer, missing=answer.size)
        self.announced += answer.size

    def add(self, number: int, piece: bytes) -> tuple[edge_pb2.Answer, bytes] | None:
        """The whole answer with its last piece, None before. Raises Broken for more than was announced."""
        arriving = self._arriving[number]
        if len(piece) > arriving.missing:
            raise Broken("more data than its Answer announced")
        arriving.body += piece
        arriving.missing -= len(piece)
        if arriving.missing:
            return None
        self.drop(number)
        return arriving.answer, bytes(arriving.body)

    def drop(self, number: int) -> None:
        arriving = self._arriving.pop(number, None)
        if arriving is not None:
            self.announced -= arriving.answer.size
