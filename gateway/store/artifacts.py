"""Model files that pools and devices are to run: what they hold is known by its digest.

Golden vectors lie beside an artifact as `ARTIFACT.golden.npz`: arrays `N/input/NAME` and
`N/output/NAME`, N the number of the case from 0, and a scalar `tolerance`.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

GOLDEN_SUFFIX = ".golden.npz"


class ArtifactError(ValueError):
    """A file that cannot be read. The message is one sentence that names it by its last part alone."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model file as it was when it was looked at.

    `digest` is "sha256:" and 64 hex digits, `size` in bytes. Without golden vectors `golden` is None,
    its digest "" and its size 0.
    """

    path: Path
    digest: str
    size: int
    golden: Path | None = None
    golden_digest: str = ""
    golden_size: int = 0


def load_artifact(path: Path | str) -> Artifact:
    """Look at a model file and its golden vectors, if they are there; reads each once, whole, in
    pieces. Raises ArtifactError."""
    path = Path(path)
    digest, size = _digest(path)
    golden = path.with_name(path.name + GOLDEN_SUFFIX)
    if not os.path.lexists(golden):
        return Artifact(path, digest, size)
    return Artifact(path, digest, size, golden, *_digest(golden))


def _digest(path: Path) -> tuple[str, int]:
    try:
        if not path.is_file():
            what = "not a regular file" if path.exists() else "no such file"
            raise ArtifactError(f"The artifact {path.name} cannot be read: {what}.")
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return f"sha256:{digest}", stream.tell()
    except (OSError, ValueError) as error:
        if isinstance(error, ArtifactError):
            raise
        why = (error.strerror if isinstance(error, OSError) else None) or "the name is not usable"
        raise ArtifactError(f"The artifact {path.name} cannot be read: {why.lower()}.") from None
