"""How signals were on the data that a model file was made for, as `ARTIFACT.reference.json` beside it:

    {"output.confidence": {"edges": [0.5, 0.9], "counts": [3, 10, 500]}}

One bin more than there are edges: what is below the first, between each two, and not below the last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgewire.signals import SIGNALS, edges_fault
from gateway.core.release import Reference
from gateway.store.artifacts import ArtifactError

SUFFIX = ".reference.json"
MOST_BYTES = 2**20


def read_reference(artifact: Path) -> dict[str, Reference]:
    """Of an artifact; {} where there is none beside it. Raises ArtifactError."""
    path = artifact.with_name(artifact.name + SUFFIX)
    try:
        with path.open("rb") as file:
            document: Any = json.loads(file.read(MOST_BYTES))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ArtifactError(f"{path.name} cannot be read: {(error.strerror or '').lower()}.") from None
    except ValueError:
        raise ArtifactError(f"{path.name} is no JSON of at most {MOST_BYTES} bytes.") from None
    if not isinstance(document, dict):
        raise ArtifactError(f"{path.name} must be an object with a member for each signal.")
    return {str(name): _one(path.name, str(name), told) for name, told in document.items()}


def write_reference(artifact: Path, reference: Mapping[str, Reference]) -> None:
    document = {
        name: {"edges": list(one.edges), "counts": list(one.counts)} for name, one in reference.items()
    }
    artifact.with_name(artifact.name + SUFFIX).write_text(json.dumps(document))


def _one(file: str, signal: str, told: Any) -> Reference:
    if signal not in SIGNALS:
        raise ArtifactError(f"{file}: there is no signal {signal[:64]!r}: they are {', '.join(SIGNALS)}.")
    try:
        edges, counts = tuple(map(float, told["edges"])), tuple(told["counts"])
    except (TypeError, KeyError, ValueError):
        raise ArtifactError(f"{file}: {signal} needs edges and counts, both lists of numbers.") from None
    fault = edges_fault(edges)
    if fault is not None:
        raise ArtifactError(f"{file}: the edges of {signal} are none: {fault}.")
    if len(counts) != len(edges) + 1 or not all(type(c) is int and c >= 0 for c in counts) or not any(counts):
        raise ArtifactError(f"{file}: {signal} needs {len(edges) + 1} counts, whole and not all 0.")
    return Reference(edges, counts)
