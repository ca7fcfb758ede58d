"""Stored measurements of variants: `profiles.json` in the state directory.

`tidegate bench` writes it, the gateway reads it and polls `change_token`. A write replaces the file
as a whole, so a reader sees the old one or the new one; two writers take turns.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

from gateway.store.whole import write_whole

FORMAT = 1


class ProfileError(ValueError):
    """The stored profiles cannot be read. The message names the file and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One direct measurement of a variant, with no gateway in between.

    `model` and `version` are the endpoint's own names ("" when it chooses the version).
    `measured_at` is in seconds since the epoch. The latencies are those of one request at a time,
    over `samples` requests. `capacity_rps` is the throughput at saturation. `payload_bytes` and
    `response_bytes` are the mean sizes of one serialized request and answer. `identity` is the
    endpoint's: figures of another server that once had its name are not its own.
    """

    endpoint: str
    model: str
    version: str
    measured_at: float
    latency_p50_ms: float
    latency_p95_ms: float
    capacity_rps: float
    samples: int
    payload_bytes: float
    response_bytes: float
    identity: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.endpoint, self.model, self.version


class ProfileStore:
    """The profiles of one state directory, at most one per variant."""

    def __init__(self, state_dir: Path) -> None:
        self._dir = state_dir
        self.path = state_dir / "profiles.json"

    def load(self) -> tuple[Profile, ...]:
        """All stored profiles, by endpoint, model and version; none when there is no file. Raises
        ProfileError."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ()
        except (OSError, UnicodeDecodeError) as error:
            raise ProfileError(f"{self.path}: cannot be read: {error}") from None
        try:
            return _parse(json.loads(text))
        except ValueError as error:
            raise ProfileError(
                f"{self.path}: {error}; remove the file and run `tidegate bench` again"
            ) from None

    def save(self, profiles: Iterable[Profile]) -> None:
        """Add profiles, each in place of an earlier one of the same variant.

        Raises ProfileError when what is stored cannot be read (it is left as it is), OSError when
        the directory cannot be written.
        """
        self._dir.mkdir(parents=True, exist_ok=True)
        with self._turn():
            merged = {p.key: p for p in (*self.load(), *profiles)}
            ordered = [asdict(merged[key]) for key in sorted(merged)]
            text = json.dumps({"version": FORMAT, "profiles": ordered}, indent=1, allow_nan=False)
            write_whole(self.path, f"{text}\n".encode())

    def change_token(self) -> tuple[int, int, int] | None:
        """Differs whenever the file was written since; None when there is none."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        with (self._dir / "profiles.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


_TEXTS = ("endpoint", "model", "version", "identity")
_MAY_BE_ZERO = ("payload_bytes", "response_bytes", "measured_at")


def _parse(tree: object) -> tuple[Profile, ...]:
    """Raises ValueError in words that follow "FILE: "."""
    if not isinstance(tree, dict) or set(tree) != {"version", "profiles"}:
        raise ValueError("is not an object with exactly `version` and `profiles`")
    table = cast("dict[str, Any]", tree)
    if table["version"] != FORMAT:
        raise ValueError(f"has version {table['version']!r}, this program reads {FORMAT}")
    if not isinstance(table["profiles"], list):
        raise ValueError("`profiles` is not a list")
    found = [_profile(index, entry) for index, entry in enumerate(cast("list[object]", table["profiles"]))]
    if len({p.key for p in found}) != len(found):
        raise ValueError("holds two profiles of one variant")
    return tuple(found)


def _profile(index: int, entry: object) -> Profile:
    where = f"profiles[{index}]"
    names = [field.name for field in fields(Profile)]
    if not isinstance(entry, dict):
        raise ValueError(f"{where} is not an object")
    given = cast("dict[str, Any]", entry)
    if odd := sorted(set(given) ^ set(names)):
        raise ValueError(f"{where}: missing or unknown: {', '.join(odd)}")
    for name in names:
        value: Any = given[name]
        if name in _TEXTS:
            if not isinstance(value, str):
                raise ValueError(f"{where}.{name} is not text")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{where}.{name} is not a number")
        elif value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
            raise ValueError(f"{where}.{name} is {value}, which is too small")
        elif name == "samples" and not isinstance(value, int):
            raise ValueError(f"{where}.{name} is not a whole number")
    return Profile(**given)
