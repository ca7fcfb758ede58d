"""YAML text to a plain tree that remembers where every key and value stands.

Read as YAML 1.2's core schema, from the parser's events: only lists, mappings with text keys and
scalars. What can make a file mean something else than it says (duplicate keys, anchors, aliases,
merge keys, tags, several documents) is a problem, and reading goes on where it can.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NoReturn, cast

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from gateway.core.config.problems import Finding, Loc, Problem
from gateway.core.config.references import BadReference, Hidden, Resolver, show

MAX_DEPTH = 24
_MAX_NUMBER = 64
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INF = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN = frozenset({".nan", ".NaN", ".NAN"})
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")

Position = tuple[int, int]
"""Line and column, from 1."""


def scalar(text: str) -> object:
    """A plain scalar by YAML 1.2's core schema: None, bool, int, float or str."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if len(text) > _MAX_NUMBER:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEX.fullmatch(text):
        return int(text[2:], 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INF.fullmatch(text):
        return float(text.replace(".", ""))
    return float("nan") if text in _NAN else text


def position_at(text: str, index: int) -> Position:
    """Where the character at an index stands."""
    return text.count("\n", 0, index) + 1, index - (text.rfind("\n", 0, index) + 1) + 1


class Source:
    """One file, read.

    `tree` is the plain tree (None when there is none), `problems` what is wrong with the text
    itself. A value that could not be read is None in it, and its path is in `broken`.
    """

    def __init__(self, name: str, text: str, resolver: Resolver) -> None:
        self.name = name
        self.problems: list[Problem] = []
        self.broken: set[Loc] = set()
        self.hidden: list[Hidden] = []
        self._keys: dict[Loc, Position] = {}
        self._values: dict[Loc, Position] = {}
        self._resolver = resolver
        self.tree: dict[str, object] | None = None
        control = _CONTROL.search(text)
        if control:
            line, col = position_at(text, control.start())
            self._add((line, col), f"the character U+{ord(control[0]):04X} is not allowed in YAML: remove it")
            return
        self._events = _events(text)
        try:
            self._document()
        except _Stop as stop:
            self.tree = None
            self._add(stop.position, stop.message)

    def at(self, finding: Finding) -> Problem:
        """A finding as a problem, at its key or value."""
        position = self._keys.get(finding.loc) if finding.at_key else None
        return Problem(self.name, *(position or self._value_at(finding.loc)), finding.message)

    def get(self, loc: Loc) -> object:
        """The value at a path; None where there is none."""
        value: object = self.tree
        for part in loc:
            if isinstance(value, dict):
                value = cast("dict[str | int, object]", value).get(part)
            elif isinstance(value, list) and isinstance(part, int):
                items = cast("list[object]", value)
                value = items[part] if part < len(items) else None
            else:
                return None
        return value

    def is_broken(self, loc: Loc) -> bool:
        """Whether a problem of the text itself already stands at a path or around it."""
        return any(loc[:end] in self.broken for end in range(len(loc) + 1))

    def masked(self, sentence: str) -> str:
        """A sentence with every value that came by a reference shown as it was written."""
        for hidden in self.hidden:
            for value in sorted({str(hidden), *hidden.parts} - {""}, key=len, reverse=True):
                sentence = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", lambda _, h=hidden: h.shown, sentence)
        return sentence

    def _value_at(self, loc: Loc) -> Position:
        """Where the value at a path begins, or the nearest enclosing one's that exists."""
        while loc and loc not in self._values:
            loc = loc[:-1]
        return self._values.get(loc, (1, 1))

    def _add(self, position: Position, message: str) -> None:
        self.problems.append(Problem(self.name, *position, message))

    def _next(self) -> Any:
        return next(self._events)

    def _document(self) -> None:
        self._next()
        start: Any = self._next()
        if isinstance(start, StreamEndEvent):
            raise _Stop((1, 1), "the file is empty: begin with version: 1")
        if start.version not in (None, (1, 2)):
            self._add(_start(start), "only YAML 1.2 is read: remove the %YAML directive")
        root = self._next()
        data = self._node(root, (), 0)
        self._next()
        after = self._next()
        if isinstance(after, DocumentStartEvent):
            raise _Stop(_start(after), "a second document begins here: keep one document in the file")
        if isinstance(data, dict):
            self.tree = cast("dict[str, object]", data)
        elif not self.problems:
            raise _Stop(_start(root), "the file must be a mapping of sections: begin with version: 1")

    def _node(self, event: Any, loc: Loc, depth: int) -> object:
        self._values[loc] = _start(event)
        if isinstance(event, AliasEvent):
            self._add(_start(event), "aliases are not read: write the value out")
            self.broken.add(loc)
            return None
        if event.anchor is not None:
            self._add(_start(event), "anchors are not read: remove it and write the value where it is needed")
        if event.tag is not None:
            self._add(_start(event), f"tags are not read: remove {show(str(event.tag))}")
            self.broken.add(loc)
        if isinstance(event, ScalarEvent):
            return self._scalar(cast("Any", event), loc)
        if depth >= MAX_DEPTH:
            raise _Stop(_start(event), f"nested deeper than {MAX_DEPTH} levels: nothing here is that deep")
        if isinstance(event, SequenceStartEvent):
            return self._sequence(loc, depth)
        return self._mapping(loc, depth)

    def _scalar(self, event: Any, loc: Loc) -> object:
        value = scalar(event.value) if event.implicit[0] else str(event.value)
        if not isinstance(value, str):
            return value
        try:
            resolved = self._resolver.resolve(value)
        except BadReference as bad:
            self._add(_start(event), str(bad))
            self.broken.add(loc)
            return None
        if isinstance(resolved, Hidden):
            self.hidden.append(resolved)
        return resolved

    def _sequence(self, loc: Loc, depth: int) -> list[object]:
        items: list[object] = []
        while not isinstance(event := self._next(), SequenceEndEvent):
            items.append(self._node(event, (*loc, len(items)), depth + 1))
        return items

    def _mapping(self, loc: Loc, depth: int) -> dict[str, object]:
        mapping: dict[str, object] = {}
        while not isinstance(event := self._next(), MappingEndEvent):
            if not isinstance(event, ScalarEvent):
                self._add(_start(event), "a key must be a plain name")
                self._skip(event)
                self._skip(self._next())
                continue
            key = str(cast("Any", event).value)
            here = (*loc, key)
            if key == "<<":
                self._add(_start(event), "merge keys are not read: write the keys out")
                self._skip(self._next())
            elif key in mapping:
                first = self._keys[here][0]
                self._add(_start(event), f"duplicate key {show(key)}: it is already set on line {first}")
                self._skip(self._next())
            else:
                self._keys[here] = _start(event)
                mapping[key] = self._node(self._next(), here, depth + 1)
                if mapping[key] is None and self._values[here][0] > self._keys[here][0]:
                    # Nothing written: the parser puts it where the next thing begins.
                    self._values[here] = self._keys[here]
        return mapping

    def _skip(self, event: Any) -> None:
        depth = 0
        while True:
            if isinstance(event, SequenceStartEvent | MappingStartEvent):
                depth += 1
            elif not isinstance(event, NodeEvent):
                depth -= 1
            if depth == 0:
                return
            event = self._next()


class _Stop(Exception):
    """The text cannot be read further."""

    def __init__(self, position: Position, message: str) -> None:
        super().__init__(message)
        self.position = position
        self.message = message


def _start(event: Any) -> Position:
    mark = event.start_mark
    return mark.line + 1, mark.column + 1


def _events(text: str) -> Iterator[object]:
    events = cast("Iterator[Any]", YAML(typ="safe", pure=True).parse(text))  # pyright: ignore
    last: Position = (1, 1)
    while True:
        try:
            event = next(events)
        except StopIteration:
            return
        except MarkedYAMLError as error:
            _not_yaml(error, last, text)
        # The parser lets bare errors through, e.g. OverflowError for an escape beyond Unicode.
        except Exception:
            raise _Stop(last, "not valid YAML: look at the value that begins here or just after") from None
        last = _start(event)
        yield event


def _not_yaml(error: Any, last: Position, text: str) -> NoReturn:
    mark = error.problem_mark or error.context_mark
    position = (mark.line + 1, mark.column + 1) if mark else last
    problem = str(error.problem or error.context or "unreadable").splitlines()[0]
    if "'\\t'" in problem:
        raise _Stop(position, "a tab cannot indent YAML: use spaces") from None
    if mark and text[mark.index - 1 : mark.index + 1] == "${":
        raise _Stop((position[0], position[1] - 1), "inside {} and [] put ${...} in quotes") from None
    raise _Stop(position, f"not valid YAML: {problem}") from None
