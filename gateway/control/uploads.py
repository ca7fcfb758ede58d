"""Whether a file that is to be released is what it is said to be. PURE."""

from __future__ import annotations

import io

from edgewire.modelfile import BadModel, read_model
from oip.golden import GoldenFailed, read_golden


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
    if golden is not None:
        try:
            read_golden(io.BytesIO(golden))
        except GoldenFailed as fault:
            return str(fault)
    return ""
