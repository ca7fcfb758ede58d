"""Whether a file that is to be released is what it is said to be. PURE."""

from __future__ import annotations

import io
import zipfile

import numpy as np

from edgewire.modelfile import BadModel, read_model

MAX_UNPACKED_BYTES = 256 * 2**20
"""As much as a device unpacks of golden vectors."""


def fault_of(format: str, content: bytes, golden: bytes | None) -> str:
    """What is wrong with a file, or with its golden vectors, in one clause; "" for nothing that can be seen
    without running it."""
    if not content:
        return "it is empty"
    looks_tflite = content[4:8] == b"TFL3"
    if format == "tflite":
        try:
            read_model(content, any_operator=True)
        except BadModel as fault:
            return str(fault)
    elif looks_tflite:
        return "it is a TFLite file and was given as ONNX"
    return "" if golden is None else _fault_of_golden(golden)


def _fault_of_golden(golden: bytes) -> str:
    bad = "its golden vectors are no .npz that can be read without pickle"
    try:
        with zipfile.ZipFile(io.BytesIO(golden)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > MAX_UNPACKED_BYTES:
            return f"its golden vectors unpack to {unpacked} bytes, more than a device reads"
        with np.load(io.BytesIO(golden), allow_pickle=False) as found:
            names = set(found.files)
            arrays = {name: found[name] for name in names}
    except Exception:  # zip, its packers and numpy raise what they like of a bent file
        return bad
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        return bad
    tolerance = arrays.get("tolerance")
    if (
        tolerance is None
        or tolerance.ndim
        or tolerance.dtype.kind not in "fiu"
        or not 0 <= tolerance < np.inf
    ):
        return "its golden vectors have no scalar `tolerance` of 0 or more"
    for kind in ("input", "output"):
        if not any(name.startswith(f"0/{kind}/") for name in names):
            return f"its golden vectors have no case with an {kind}: name the arrays 0/input/NAME and 0/output/NAME"
    return ""
