"""The operator's file of labels: CSV with the header `sample,label`.

A sample is named by its id (oip.sample), a label is a whole number; a sample of several rows has one for
each, separated by spaces. Empty lines and lines that begin with # are passed over.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 2**26
_ID = re.compile(r"[0-9a-f]{64}")
_LABEL = re.compile(r"-?[0-9]{1,18}")
_TOLD = 20
"""Bad lines that are named; the others are counted."""


class LabelError(ValueError):
    """A file that says nothing, or two things. The message is one sentence that names file and line."""


class Labels(NamedTuple):
    """`faults`: what is wrong with lines that are left out, as "FILE:LINE: ..."."""

    by_sample: Mapping[str, tuple[int, ...]]
    faults: tuple[str, ...]


def read_labels(path: Path) -> Labels:
    """Raises LabelError for a file that cannot be read, that has no header, and for a sample that two lines
    give other labels. Other bad lines are left out and told."""
    text = _text(path)
    found: dict[str, tuple[int, ...]] = {}
    lines: dict[str, int] = {}
    faults: list[str] = []
    reader = csv.reader(text.splitlines())
    began = False
    for row in reader:
        line = reader.line_num
        cells = [cell.strip() for cell in row]
        if not any(cells) or cells[0].startswith("#"):
            continue
        if not began:
            if [cell.lower() for cell in cells] != ["sample", "label"]:
                raise LabelError(f"{path}:{line}: the first line must be the header sample,label")
            began = True
            continue
        fault, labels = _labels(cells)
        if fault:
            faults.append(f"{path}:{line}: {fault}")
            continue
        sample = cells[0].lower()
        if found.setdefault(sample, labels) != labels:
            raise LabelError(
                f"{path}:{line}: the sample has other labels in line {lines[sample]}: keep the right one"
            )
        lines.setdefault(sample, line)
    if not began:
        raise LabelError(f"{path}:1: the file is empty: its first line must be sample,label")
    more = len(faults) - _TOLD
    return Labels(found, (*faults[:_TOLD], *((f"{path}: {more} more lines are wrong",) if more > 0 else ())))


def _labels(cells: list[str]) -> tuple[str, tuple[int, ...]]:
    """What is wrong with a line, "" for nothing, and its labels."""
    if len(cells) != 2:
        return f"a line is a sample and its label, not {len(cells)} cells", ()
    if not _ID.fullmatch(cells[0].lower()):
        return "the sample is not named by 64 hex digits", ()
    words = cells[1].split()
    if not words or not all(_LABEL.fullmatch(word) for word in words):
        return "the label is not a whole number, or several separated by spaces", ()
    return "", tuple(int(word) for word in words)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            raw = stream.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise LabelError(f"{path}: the file is larger than {MOST_BYTES // 2**20} MiB")
        return raw.decode("utf-8-sig")
    except OSError as error:
        why = (error.strerror or "it cannot be read").lower()
        raise LabelError(f"{path}: the labels cannot be read: {why}") from None
    except UnicodeDecodeError:
        raise LabelError(f"{path}: the file is not UTF-8") from None
