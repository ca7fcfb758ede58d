"""The log of a training run: a file that keeps the last of what was printed."""

from __future__ import annotations

import logging
import os
from pathlib import Path

MOST_BYTES = 2**20
"""As much is kept at least, and at most twice that."""
TAIL_BYTES = 2**14

logger = logging.getLogger(__name__)


class RunLogs:
    """By update. What cannot be written is told to the process's own log and lost: no run ends by it."""

    def __init__(self, folder: Path, most: int = MOST_BYTES) -> None:
        self._folder = folder
        self._most = most

    def add(self, id: str, text: str) -> None:
        path = self._path(id)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(text.encode(errors="replace"))
                size = file.tell()
            if size > 2 * self._most:
                self._cut(path)
        except OSError as error:
            logger.warning("the log of update %s cannot be written: %s", id, error.strerror)

    def tail(self, id: str, most: int = TAIL_BYTES) -> str:
        """The end of it, in whole lines where it has some; "" where there is none."""
        try:
            with self._path(id).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - most))
                raw = file.read(most)
        except OSError:
            return ""
        if size > most and b"\n" in raw:
            raw = raw[raw.index(b"\n") + 1 :]
        return raw.decode(errors="replace")

    def forget(self, id: str) -> None:
        self._path(id).unlink(missing_ok=True)

    def _path(self, id: str) -> Path:
        return self._folder / f"{id}.log"

    def _cut(self, path: Path) -> None:
        """Replace the file by its end, in one step."""
        shorter = path.with_suffix(".tmp")
        with path.open("rb") as file:
            file.seek(-self._most, os.SEEK_END)
            kept = file.read()
        shorter.write_bytes(b"(earlier lines are not kept)\n" + kept[kept.find(b"\n") + 1 :])
        shorter.replace(path)
