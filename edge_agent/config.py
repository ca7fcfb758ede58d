"""agent.yaml: what the device's owner decides. Small on purpose: site and labels come with the token.

    device: cam-7a                    # name to ask for when enrolling, where the token names none
    threads: 2                        # for each interpreter
    delegates:                        # tried in this order
      - {library: /usr/lib/libvx_delegate.so, options: {cache: "1"}}
      - xnnpack
      - builtin
    limits: {max_body_mb: 64, memory_mb: 2048}

Strict: what is not known is an error with its line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from edgewire.places import is_name

MAX_THREADS = 64
MAX_BODY_MB = 1024
MIN_MEMORY_MB = 512
MAX_MEMORY_MB = 1024 * 1024
MIN_SPOOL_MB = 4
"""Of which the spool's journal takes two at times."""
MAX_SPOOL_MB = 1024
_LIMITS = {
    "max_body_mb": (1, MAX_BODY_MB),
    "memory_mb": (MIN_MEMORY_MB, MAX_MEMORY_MB),
    "spool_mb": (MIN_SPOOL_MB, MAX_SPOOL_MB),
}
"""Least and most of each."""
BUILT_IN_DELEGATES = ("xnnpack", "builtin")


@dataclass(frozen=True, slots=True)
class Library:
    """An external delegate: a shared library and the options that it is created with."""

    library: Path
    options: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Limits:
    """In MiB. `max_body_mb`: the largest request. `memory_mb`: the address space of one worker process, of
    which the runtime takes some 400 before it has a model. `spool_mb`: what waits to be delivered to the
    hub, on disk."""

    max_body_mb: int = 64
    memory_mb: int = 2048
    spool_mb: int = 16

    @property
    def max_body_bytes(self) -> int:
        return self.max_body_mb * 2**20

    @property
    def spool_bytes(self) -> int:
        return self.spool_mb * 2**20


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """`device` is the name to ask for, None for none. `delegates` are tried in order; "xnnpack" and
    "builtin" stand for TFLite's own."""

    device: str | None = None
    delegates: tuple[Library | str, ...] = BUILT_IN_DELEGATES
    threads: int = 1
    limits: Limits = field(default_factory=Limits)


class ConfigError(Exception):
    """`FILE:line: message`, a line for each mistake."""


def read_config(path: Path) -> AgentConfig:
    """Raises ConfigError with every mistake."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}:1: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}:1: is not UTF-8 text") from None
    return parse_config(text, str(path))


def parse_config(text: str, name: str) -> AgentConfig:
    """The like from a text; `name` stands for the file."""
    try:
        tree: Any = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        problem = (error.problem or "is not YAML").split("\n")[0]
        raise ConfigError(f"{name}:{line}: {problem}") from None
    except (YAMLError, ValueError, RecursionError) as error:
        first = str(error).split("\n")[0]
        raise ConfigError(f"{name}:1: is not YAML that can be read: {first}") from None
    if tree is None:
        return AgentConfig()
    reader = _Reader()
    config = reader.config(tree)
    if reader.problems:
        lines = (f"{name}:{line}: {message}" for line, message in sorted(reader.problems))
        raise ConfigError("\n".join(lines))
    return config


class _Reader:
    """Gathers every mistake, so that a file is put right in one go."""

    def __init__(self) -> None:
        self.problems: list[tuple[int, str]] = []

    def config(self, tree: Any) -> AgentConfig:
        known = AgentConfig()
        device: str | None = None
        delegates, threads, limits = known.delegates, known.threads, known.limits
        for key, value, line in self._entries(
            tree, 1, "the file", ("device", "threads", "delegates", "limits")
        ):
            if key == "device":
                if isinstance(value, str) and is_name(value):
                    device = str(value)
                else:
                    self._problem(
                        line,
                        "device must be a name of letters, digits, '.', '_' and '-', in quotes if it looks"
                        " like a number",
                    )
            elif key == "threads":
                threads = self._integer(key, value, line, 1, MAX_THREADS) or threads
            elif key == "limits":
                limits = self._limits(value, line)
            elif key == "delegates":
                delegates = self._delegates(value, line)
        return AgentConfig(device, delegates, threads, limits)

    def _limits(self, value: Any, line: int) -> Limits:
        limits = Limits()
        for key, number, at in self._entries(value, line, "limits", tuple(_LIMITS)):
            given = self._integer(key, number, at, *_LIMITS[key])
            if given is not None:
                limits = replace(limits, **{key: given})
        return limits

    def _delegates(self, value: Any, line: int) -> tuple[Library | str, ...]:
        if not isinstance(value, list) or not value:
            self._problem(line, "delegates must be a list of at least one: a library, xnnpack or builtin")
            return ()
        found: list[Library | str] = []
        for index, item in enumerate(cast("list[Any]", value)):
            at = _line(value, index, line)
            if isinstance(item, str) and item in BUILT_IN_DELEGATES:
                delegate: Library | str = str(item)
            elif isinstance(item, dict):
                delegate = self._library(item, at)
            else:
                self._problem(at, "a delegate must be {library: /path/to/library.so}, xnnpack or builtin")
                continue
            if delegate in found:
                self._problem(at, "this delegate is listed twice: remove one")
            found.append(delegate)
        return tuple(found)

    def _library(self, item: Any, line: int) -> Library:
        path: Path | None = None
        options: dict[str, str] = {}
        wrong = len(self.problems)
        for key, value, at in self._entries(item, line, "a delegate", ("library", "options")):
            if key == "library":
                if isinstance(value, str) and value.startswith("/"):
                    path = Path(value)
                else:
                    self._problem(at, "library must be the absolute path of a shared library")
            else:
                options = self._options(value, at)
        if path is None and len(self.problems) == wrong:
            self._problem(line, "a delegate needs its library: the absolute path of a shared library")
        return Library(path or Path("/"), options)

    def _options(self, value: Any, line: int) -> dict[str, str]:
        if not isinstance(value, dict):
            self._problem(line, "options must be a mapping of keys to texts")
            return {}
        options: dict[str, str] = {}
        for key, option in cast("dict[Any, Any]", value).items():
            if isinstance(key, str) and isinstance(option, str):
                options[str(key)] = str(option)
            else:
                self._problem(_line(value, key, line), f"option {key} must be a text: write it in quotes")
        return options

    def _entries(
        self, value: Any, line: int, where: str, known: tuple[str, ...]
    ) -> Iterator[tuple[str, Any, int]]:
        if not isinstance(value, dict):
            self._problem(line, f"{where} must be a mapping of keys to values")
            return
        for key, item in cast("dict[Any, Any]", value).items():
            at = _line(value, key, line)
            if key in known:
                yield str(key), item, at
            else:
                self._problem(at, f"unknown key {key!r}: {where} has {', '.join(known)}")

    def _integer(self, key: str, value: Any, line: int, least: int, most: int) -> int | None:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return int(value)
        self._problem(line, f"{key} must be a whole number from {least} to {most}, not {_shown(value)}")
        return None

    def _problem(self, line: int, message: str) -> None:
        self.problems.append((line, message))


def _line(holder: Any, key: Any, otherwise: int) -> int:
    """Where a key or an item stands, from 1."""
    places: Any = holder.lc.data
    if places and key in places:
        return places[key][0] + 1
    return otherwise


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(str(value)) if isinstance(value, str) else str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
