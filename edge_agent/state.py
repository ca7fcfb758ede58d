"""The device's folder: its credential, and who it is once it has enrolled.

    agent.lock        held while an agent runs, so that two never share a folder
    credential        256 bits as hex, made before enrolment and never written again
    enrolment.json    name, site, labels and the root of trust for updates, as the hub gave them

    spool.db          what was counted and not yet delivered; the spool's own

Every other write goes to a temporary file that is synced and renamed, so a full disk or a power cut leaves
the old content. Files of other rooms (models) lie in folders of their own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from edgewire.places import is_name

MODELS = "models"
"""The folder of the models and of what is signed of them."""
_LOCK = "agent.lock"
_CREDENTIAL = "credential"
_ENROLMENT = "enrolment.json"
_HEX = re.compile(r"[0-9a-f]{64}")
MAX_ROOT_BYTES = 512_000
"""As The Update Framework's clients take it."""


class StateError(Exception):
    """The folder cannot be used; one sentence that says why and what to do."""


@dataclass(frozen=True, slots=True)
class Enrolment:
    """Who the device is, and `root`, by which it knows signed updates: a file of The Update Framework, b""
    while there is none. Raises ValueError for a name or a site that privacy rules could not name."""

    device: str
    site: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    root: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if not is_name(self.device):
            raise ValueError("the device's name is not one")
        if not is_name(self.site):
            raise ValueError("the site's name is not one")
        if len(self.root) > MAX_ROOT_BYTES:
            raise ValueError(f"the root of trust has more than {MAX_ROOT_BYTES} bytes")


class DeviceState:
    """The folder, locked and read; a context manager that lets go of the lock.

    `credential` is as it travels behind `Bearer`. Raises StateError when another agent runs on the
    folder, when it cannot be used, and for a file that is not what the agent wrote.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateError(f"the state folder cannot be used: {error.strerror}; see --state") from None
        try:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StateError(
                    "another agent runs on this state folder: stop it, or give this one a --state of its own"
                ) from None
            _remove_leftovers(folder)
            self.credential = _credential(folder)
            self.enrolment = read_enrolment(folder)
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def credential_sha256(self) -> bytes:
        """What the hub keeps of the credential: 32 bytes."""
        return hashlib.sha256(self.credential.encode("ascii")).digest()

    def enrol(self, enrolment: Enrolment) -> None:
        """Keep who the device is. Raises StateError, and then nothing has changed."""
        document = {
            "device": enrolment.device,
            "site": enrolment.site,
            "labels": dict(enrolment.labels),
            "root": b64encode(enrolment.root).decode("ascii"),
        }
        write_atomically(self.folder / _ENROLMENT, json.dumps(document, indent=1).encode())
        self.enrolment = enrolment

    def pin(self, root: bytes) -> None:
        """Keep a root of trust where the device has none yet. Raises OSError when it cannot be kept."""
        if self.enrolment is None or self.enrolment.root:
            return
        try:
            self.enrol(replace(self.enrolment, root=root))
        except (StateError, ValueError) as error:
            raise OSError(str(error)) from None

    def close(self) -> None:
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file, readable by its owner alone, or leave it as it was. Raises StateError."""
    temporary = ""
    try:
        number, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
        with os.fdopen(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if temporary:
            with suppress(OSError):
                os.unlink(temporary)
        raise StateError(f"{path.name} cannot be written to the state folder: {error.strerror}") from None


def read_enrolment(folder: Path) -> Enrolment | None:
    """Who a folder's device is, None before it has enrolled. Takes no lock. Raises StateError."""
    text = _read(folder / _ENROLMENT)
    if text is None:
        return None
    try:
        document: Any = json.loads(text)
        labels = cast("dict[str, str]", document["labels"])
        if not all(isinstance(value, str) for value in labels.values()):
            raise ValueError
        root = b64decode(document.get("root", ""), validate=True)
        return Enrolment(document["device"], document["site"], labels, root)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StateError(
            f"{_ENROLMENT} in the state folder is damaged: restore it, or remove it and enrol again with --token"
        ) from None


def read_credential(folder: Path) -> str | None:
    """A folder's credential, None where none was made yet. Raises StateError."""
    text = _read(folder / _CREDENTIAL)
    if text is None:
        return None
    if not _HEX.fullmatch(text.strip()):
        raise StateError(
            f"{_CREDENTIAL} in the state folder is damaged: restore it, or empty the folder and enrol again"
            " with --token"
        )
    return text.strip()


def _credential(folder: Path) -> str:
    known = read_credential(folder)
    if known is not None:
        return known
    if (folder / _ENROLMENT).exists():
        raise StateError(
            f"{_CREDENTIAL} is missing from the state folder: restore it, or empty the folder and enrol again"
            " with --token"
        )
    made = secrets.token_hex(32)
    write_atomically(folder / _CREDENTIAL, f"{made}\n".encode())
    return made


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        return "\0"
    except OSError as error:
        raise StateError(f"{path.name} in the state folder cannot be read: {error.strerror}") from None


def _remove_leftovers(folder: Path) -> None:
    """What a write left behind that the power cut ended."""
    for path in folder.glob(".*.part"):
        with suppress(OSError):
            path.unlink()
