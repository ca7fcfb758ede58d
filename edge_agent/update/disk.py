"""The state file and the artifacts of a device. Whatever is written is whole or absent after a crash."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edge_agent.update.plan import Plan, Slot, State, Target

_log = logging.getLogger("tidegate.agent")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_FORMAT = 2
_KEPT = {"desired", "active", "previous", "proven", "restores", "attempts", "quarantine"}


class Disk:
    """A folder of its own: `state.json`, and `blobs/` with an artifact under each digest's hex digits;
    `.part` is one that is being fetched."""

    def __init__(self, folder: Path) -> None:
        self._state = folder / "state.json"
        self._blobs = folder / "blobs"

    def load(self) -> State:
        """What was saved last; nothing when it cannot be read, which is logged and set aside."""
        self._blobs.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            document = json.loads(self._state.read_bytes())
            plans = [_READERS[document["format"]](model) for model in document["models"]]
            root = document.get("root", "")
            if not isinstance(root, str):
                raise ValueError("no digest")
            return State({plan.desired.model: plan for plan in plans}, root)
        except FileNotFoundError:
            return State()
        except (ValueError, KeyError, TypeError, AttributeError):
            _log.warning("what served last cannot be read; the device waits for its hub")
            with contextlib.suppress(OSError):
                self._state.replace(self._state.with_suffix(".unreadable"))
            return State()

    def save(self, state: State) -> None:
        """Raises OSError; what was saved before is then still there."""
        models = [
            {key: value for key, value in asdict(plan).items() if key in _KEPT}
            for plan in state.plans.values()
        ]
        write_whole(
            self._state, json.dumps({"format": _FORMAT, "root": state.root, "models": models}).encode()
        )

    def blob(self, digest: str) -> Path:
        """Where the artifact of a digest lies or will lie. Raises ValueError for what is no digest."""
        found = _DIGEST.fullmatch(digest)
        if found is None:
            raise ValueError("not a SHA-256 digest")
        return self._blobs / found[1]

    def part(self, digest: str) -> Path:
        return self.blob(digest).with_suffix(".part")

    def holds(self, digest: str, size: int) -> bool:
        """Whether the artifact is there, of that size and digest; one that is not is removed. Reads it."""
        path = self.blob(digest)
        try:
            if path.stat().st_size == size and sha256_of(path) == digest:
                return True
        except FileNotFoundError:
            return False
        path.unlink(missing_ok=True)
        return False

    def sweep(self, keep: frozenset[str]) -> None:
        """Remove every artifact, whole or part, but those of these digests."""
        names = {found[1] for digest in keep if (found := _DIGEST.fullmatch(digest))}
        try:
            found = list(self._blobs.iterdir())
        except OSError:
            return
        for path in found:
            if path.stem not in names:
                with contextlib.suppress(OSError):
                    path.unlink()


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file by one that is whole. Raises OSError, leaving the old one."""
    beside = path.with_suffix(".tmp")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        settle(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def settle(beside: Path, path: Path) -> None:
    """Give a file that is written and synced its name, for good."""
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def is_full(fault: OSError) -> bool:
    return fault.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _read_plan(found: Any) -> Plan:
    if set(found) != _KEPT:
        raise ValueError("other entries")
    slots = {key: found[key] and _read_slot(found[key]) for key in ("active", "previous")}
    return Plan(**{**found, **slots, "desired": Target(**found["desired"])})


def _read_slot(found: Any) -> Slot:
    return Slot(Target(**found["target"]), found["order"])


def _read_unsigned(found: Any) -> Plan:
    """As it was before artifacts were signed: any order is a step forward from what serves."""
    return Plan(Target(**found["desired"]), found["active"] and Slot(Target(**found["active"])))


_READERS = {1: _read_unsigned, _FORMAT: _read_plan}
