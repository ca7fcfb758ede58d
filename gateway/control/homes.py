"""The homes of sequences as control keeps them: in memory, and in a journal that outlives the process.

A home is in the journal before anybody is told of it, so a control that was killed comes back with every home
that a step may have been sent to. The journal is not synced: it is for the death of a process, not of the
machine, which ends the gateway. One process has it at a time; the next one waits until that has ended.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from gateway.core.homes import Home, HomeBook

logger = logging.getLogger(__name__)

COMPACT_BYTES = 2**20
"""A journal that is smaller is not worth writing anew."""


class KeptHomes:
    """The book and its journal at `path`, beside which a lock is. Instants are monotonic seconds. Nothing here
    waits for a disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._book = HomeBook()
        self._lock = self._file = -1
        self._size = 0
        self._compact_at = COMPACT_BYTES

    def __len__(self) -> int:
        return len(self._book)

    def open(self, now: float) -> bool:
        """Take the journal over and read it, once; False while another process has it. Raises OSError."""
        lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            content = self._path.read_bytes()
        except OSError as error:
            os.close(lock)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._lock = lock
        # A line that was cut off has been told to nobody.
        self._size = content.rfind(b"\n") + 1
        for sequence, *rest in _entries(content[: self._size]):
            if len(rest) == 2:
                self._book.begin(sequence, Home(*rest), now)
            elif rest:
                self._book.end(sequence, *rest)
            else:
                self._book.forget(sequence)
        return True

    def close(self) -> None:
        for file in (self._file, self._lock):
            if file >= 0:
                os.close(file)
        self._lock = self._file = -1

    def begin(self, sequence: str, home: Home, now: float) -> None:
        """See `HomeBook`. Raises OSError, and the sequence is where it was then."""
        self._write([sequence, *home])
        self._book.begin(sequence, home, now)

    def find(self, sequence: str, now: float) -> Home | None:
        before = len(self._book)
        home = self._book.find(sequence, now)
        if len(self._book) < before:
            # It lay idle for too long, which nobody would know of a journal.
            self._note([sequence])
        return home

    def end(self, sequence: str, beginning: str) -> None:
        if self._book.end(sequence, beginning):
            self._note([sequence, beginning])

    def _note(self, entry: list[str]) -> None:
        """Write that a sequence is over, if that can be."""
        try:
            self._write(entry)
        except OSError as error:
            # What may come back is a home where nothing goes on without a beginning.
            logger.warning("the end of a sequence is not in the journal: %s", error.strerror)

    def _write(self, entry: list[str]) -> None:
        if self._size > self._compact_at:
            self._compact()
        line = _line(entry)
        # What was written in part ends no line, and is written over by the next one.
        _whole(self._file, line, self._size)
        self._size += len(line)

    def _compact(self) -> None:
        """Write the homes that there are, each once, in place of all that happened."""
        content = b"".join(_line([sequence, *home]) for sequence, home in self._book.all())
        new = self._path.with_suffix(".new")
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _whole(file, content, 0)
            os.replace(new, self._path)
        except OSError:
            os.close(file)
            raise
        os.close(self._file)
        self._file, self._size = file, len(content)
        self._compact_at = max(COMPACT_BYTES, 4 * len(content))


def _whole(file: int, content: bytes, at: int) -> None:
    if os.pwrite(file, content, at) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _line(entry: list[str]) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _entries(content: bytes) -> Iterator[list[str]]:
    for line in content.splitlines():
        entry: Any = json.loads(line)
        yield cast("list[str]", entry)
