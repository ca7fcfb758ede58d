"""What is wrong with a configuration, and where."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Loc = tuple[str | int, ...]
"""A path from the file's root: mapping keys and list indices."""


class Problem(NamedTuple):
    """One mistake. `line` and `col` count from 1; `message` is one sentence that says what to do."""

    file: str
    line: int
    col: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col}: {self.message}"


class Finding(NamedTuple):
    """A mistake or a warning at a path, before the path is turned into a position. `at_key`: it is
    the key that is wrong, not its value."""

    loc: Loc
    message: str
    at_key: bool = False


class ConfigError(Exception):
    """A configuration that cannot be used. Holds every problem found, in the file's order."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))
