"""`${env:NAME}` and `${file:PATH}` in the texts of a configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

MAX_FILE_BYTES = 64 * 1024
_PIECE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class BadReference(Exception):
    """A reference that cannot be resolved; its text is a sentence that names it, never a value."""


class Hidden(str):
    """A text that came from outside the file. Messages show how it was written, not what it holds.

    `whole` says that it is one reference and nothing else; `parts` are the values put in.
    """

    __slots__ = ("parts", "shown", "whole")
    shown: str
    whole: bool
    parts: tuple[str, ...]


def show(value: object) -> str:
    """A value as a message may quote it: as written, in quotes when it is a text, and not too long."""
    if isinstance(value, Hidden):
        text = repr(value.shown)
    elif isinstance(value, str):
        text = repr(value)
    elif value is None:
        return "null"
    elif isinstance(value, bool):
        return str(value).lower()
    elif isinstance(value, list):
        return "a list"
    elif isinstance(value, dict):
        return "a mapping"
    else:
        text = str(value)
    return text if len(text) <= 60 else f"{text[:56]}...{text[-1]}"


class Resolver:
    """Puts the values in. Relative paths are relative to `base_dir`."""

    def __init__(self, environ: Mapping[str, str], base_dir: Path) -> None:
        self._environ = environ
        self._base_dir = base_dir

    def resolve(self, text: str) -> str:
        """The text with its references replaced, once; `$${` stands for `${`. Raises BadReference."""
        if "${" not in text:
            return text
        parts: list[str] = []

        def value(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            found = self._value(match)
            parts.append(found)
            return found

        resolved = _PIECE.sub(value, text)
        if not parts:
            return resolved
        hidden = Hidden(resolved)
        hidden.shown = text
        match = _PIECE.fullmatch(text)
        hidden.whole = match is not None
        hidden.parts = tuple(parts)
        return hidden

    def _value(self, match: re.Match[str]) -> str:
        written, body, closed = match[0], match[1], match[2]
        if not closed:
            raise BadReference("'${' is not closed: write ${env:NAME} or ${file:PATH}")
        scheme, _, rest = body.partition(":")
        if scheme == "env" and _ENV_NAME.fullmatch(rest):
            if rest not in self._environ:
                raise BadReference(f"{written}: the environment variable {rest} is not set")
            return self._environ[rest]
        if scheme == "file" and rest:
            return self._read(written, rest)
        raise BadReference(
            f"{show(written)} is no reference: write ${{env:NAME}} or ${{file:PATH}}, or $${{ for a literal ${{"
        )

    def _read(self, written: str, path: str) -> str:
        try:
            file = self._base_dir / path
            if not file.exists():
                raise BadReference(f"{written}: there is no such file")
            if not file.is_file():
                raise BadReference(f"{written}: not a regular file")
            with file.open("rb") as stream:
                content = stream.read(MAX_FILE_BYTES + 1)
            if len(content) > MAX_FILE_BYTES:
                raise BadReference(f"{written}: larger than {MAX_FILE_BYTES // 1024} KiB")
            return content.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            problem = "not UTF-8 text"
        except (OSError, ValueError):
            problem = "cannot be read"
        raise BadReference(f"{written}: {problem}")
