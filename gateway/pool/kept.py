"""What a pool remembers of the releases that it follows, in the state directory: their files by digest, and
which of them it serves. So a data plane that starts needs to ask nobody."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from gateway.pool.settings import PoolSettings, VariantSettings
from gateway.store.whole import write_whole

FOLDER = "pools"
SERVED = "served.json"
DEPLOYED = "deployed"
HASH = "sha256:"


class Kept:
    """Of the pool called `name`. Everything here blocks, and raises OSError where the disk does."""

    def __init__(self, state_dir: Path, name: str) -> None:
        self._folder = state_dir.absolute() / FOLDER / name

    def file(self, content: bytes) -> tuple[Path, str]:
        """A file with this content, and its digest. What was cut off is written anew."""
        name = hashlib.sha256(content).hexdigest()
        path = self._folder / name
        if not path.is_file() or path.read_bytes() != content:
            self._write(path, content)
        return path, HASH + name

    def served(self, settings: PoolSettings) -> PoolSettings:
        """The settings with the releases that were served last. Every file is looked at for its digest; one
        that is not what it was leaves what the configuration names, which control will put right."""
        found, served = settings, self._told()
        for variant in settings.variants:
            told = None if variant.pinned else served.get(variant.model)
            if told is not None:
                path = self._folder / told["digest"].removeprefix(HASH)
                if _digest(path) == told["digest"]:
                    variant = replace(variant, version=told["version"], artifact=str(path))
            found = found.with_variant(replace(variant, digest=_digest(Path(variant.artifact))))
        return found

    @property
    def change_token(self) -> object:
        """Something else once other releases are served."""
        try:
            found = (self._folder / SERVED).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def serve(self, variant: VariantSettings) -> None:
        """Remember what is served of a model from now on."""
        told = {**self._told(), variant.model: {"version": variant.version, "digest": variant.digest}}
        self._write(self._folder / SERVED, json.dumps(told).encode())

    def deployed(self, fingerprint: str, attempt: int) -> None:
        """Remember what Serve is about to be given."""
        self._write(self._folder / DEPLOYED, f"{fingerprint}.{attempt}".encode())

    def attempt(self, fingerprint: str) -> int:
        """The attempt in which settings were given to Serve last; 0 for others than those."""
        try:
            told, _, attempt = (self._folder / DEPLOYED).read_text().partition(".")
            return int(attempt) if told == fingerprint else 0
        except (OSError, ValueError):
            return 0

    def sweep(self, used: Iterable[VariantSettings]) -> None:
        """Remove the files that neither these settings nor what is remembered name."""
        names = {Path(variant.artifact).name for variant in used}
        names |= {entry["digest"].removeprefix(HASH) for entry in self._told().values()}
        with contextlib.suppress(FileNotFoundError):
            for path in self._folder.iterdir():
                if path.name not in (*names, SERVED, DEPLOYED):
                    path.unlink(missing_ok=True)

    def _told(self) -> Mapping[str, Mapping[str, str]]:
        try:
            told: Any = json.loads((self._folder / SERVED).read_bytes())
        except (OSError, ValueError):
            return {}
        entries = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
        return {
            model: entry
            for model, entry in entries.items()
            if isinstance(entry, dict)
            and all(isinstance(entry.get(key), str) for key in ("version", "digest"))
        }

    def _write(self, path: Path, content: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, content)


def _digest(path: Path) -> str:
    """ "" for a file that cannot be read: opening it will say so."""
    try:
        with path.open("rb") as file:
            return HASH + hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
