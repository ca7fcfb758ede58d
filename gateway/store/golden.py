"""Golden vectors as a file, in the form that gateway.store.artifacts describes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from gateway.core.training import Golden


def golden_npz(golden: Golden) -> bytes:
    """The same vectors always give the same bytes."""
    arrays: dict[str, Any] = {"tolerance": np.float64(golden.tolerance)}
    for number, (inputs, outputs) in enumerate(golden.cases):
        for side, tensors in (("input", inputs), ("output", outputs)):
            arrays |= {f"{number}/{side}/{name}": array for name, array in tensors.items()}
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()
