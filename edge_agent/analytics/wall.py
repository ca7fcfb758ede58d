"""What of a request may be gathered, and what of a record may be delivered. Pure.

Whatever cannot be read, or is not clearly allowed, may not.
"""

from __future__ import annotations

from typing import NamedTuple

from edgewire import allowed, wire_places
from edgewire.allowed import AllowedSet
from edgewire.places import Place
from edgewire.v1 import edge_pb2

REMEMBERED = 256
"""Sets of different requests of which the answer is remembered."""


class May(NamedTuple):
    """Whether a request's values may be counted, and, where the request may be kept whole, the set of
    places that goes with it; "" where it may not."""

    values: bool
    sample: str = ""


NOTHING = May(False)


class Wall:
    """One model's. `own`: where its data may go at the most, as text of edgewire.allowed; `there`: where the
    gateway is; `training`: where samples are to be trained on, None for no samples."""

    def __init__(self, own: str, there: Place | None, training: Place | None) -> None:
        self._own = _read(own)
        self._there = there
        self._training = training
        self._known: dict[str | None, May] = {}

    def may(self, asked: str | None) -> May:
        """Of a request whose own set is `asked`, None where its caller on the device has none."""
        found = self._known.get(asked)
        if found is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            found = self._known[asked] = self._judge(asked)
        return found

    def _judge(self, asked: str | None) -> May:
        both = self._own if asked is None else self._own.narrowed(_read(asked))
        if self._there is None or not both.allows(self._there):
            return NOTHING
        if self._training is None or not both.allows(self._training):
            return May(True)
        try:
            return May(True, both.encode())
        except ValueError:
            return May(True)


def deliverable(record: edge_pb2.Record, counted_for: bytes, there: Place | None) -> edge_pb2.Record:
    """What of a record may go to the gateway that is `there`. `counted_for` is the serialized place of the
    gateway that its values were counted for. A sample that may not go is a gap."""
    match record.WhichOneof("kind"):
        case "window" if record.window.signals and (there is None or counted_for != written_place(there)):
            told = edge_pb2.Record()
            told.CopyFrom(record)
            told.window.ClearField("signals")
            return told
        case "sample" if there is None or not _read(record.sample.allowed).allows(there):
            return edge_pb2.Record(number=record.number, gap=edge_pb2.Gap(first=record.number))
        case _:
            return record


def written_place(there: Place | None) -> bytes:
    """A gateway's place as it goes with a record; b"" for none."""
    return b"" if there is None else wire_places.to_wire(there).SerializeToString(deterministic=True)


def _read(text: str) -> AllowedSet:
    try:
        return allowed.decode(text)
    except ValueError:
        return AllowedSet(())
