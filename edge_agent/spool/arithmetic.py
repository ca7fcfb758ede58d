"""What a record takes of the file, and which records make room for others. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

PAGE_BYTES = 4096
_ROW_BYTES = 32
"""Of a row, besides its place and body: number, session and instant, with what SQLite adds."""
_QUARTER_BYTES = PAGE_BYTES // 4
GAP_BYTES = 16
"""The longest body of a gap."""
WAL_BYTES = 2 * 2**20
"""What the journal beside the file may take: a write, and what the writes before it left there."""
WRITE_BYTES = 2**20
"""The most that one write brings."""


class Entry(NamedTuple):
    """A record, or with `first` below `number` a gap that covers both and what is between. `size` is that
    of its place and body, in bytes."""

    number: int
    first: int
    size: int


class Cut(NamedTuple):
    """The numbers that a gap is to cover, and what that frees, in `cost`."""

    first: int
    last: int
    entries: int
    freed: int


def cost(size: int) -> int:
    """The most that a record of this size takes of the file, in bytes. Rows are packed into pages: of
    small ones a page holds many, and the end of it that none fits is less than the smallest row of that
    size; larger ones may have a page to themselves, and the largest spread over pages of their own."""
    row = size + _ROW_BYTES
    if row <= _QUARTER_BYTES:
        return row + row // 3
    return (row // PAGE_BYTES + 1) * PAGE_BYTES + (PAGE_BYTES if row > PAGE_BYTES else 0)


def room(limit_bytes: int) -> tuple[int, int]:
    """Of a bound on all the spool's files: the most pages that the database may have, and the most that
    its records may cost. The rest is the journal's, and of pages that hold no records."""
    pages = (limit_bytes - WAL_BYTES) // PAGE_BYTES
    return pages, pages * PAGE_BYTES - pages * PAGE_BYTES // 50 - 16 * PAGE_BYTES


def cut(front: Iterable[Entry], excess: int) -> Cut | None:
    """The fewest of the oldest entries whose place, less what a gap takes of it, is `excess` or more; all
    of them where that is not enough, and None where nothing is in excess or there are none."""
    if excess <= 0:
        return None
    found: Cut | None = None
    freed = -cost(GAP_BYTES)
    for entries, entry in enumerate(front, 1):
        freed += cost(entry.size)
        found = Cut(entry.first if found is None else found.first, entry.number, entries, freed)
        if freed >= excess:
            break
    return found
