"""A Triton model repository with the digits model."""

from __future__ import annotations

import string
from pathlib import Path

from gateway.demo.digits.model import DigitsModel

TEMPLATE = Path(__file__).parents[1] / "models" / "digits"


def build_repository(
    target: Path,
    *,
    model: DigitsModel,
    name: str = "digits",
    delay_ms: float = 0.0,
    instances: int = 1,
    version: int = 1,
) -> Path:
    """Add the model under a name to the Triton repository in the folder `target`; returns it.

    Each of `instances` copies runs one request at a time and waits `delay_ms` before it answers, so
    the place saturates at `instances / delay`. Raises ValueError for values that make no sense.
    """
    if delay_ms < 0 or instances < 1 or version < 1:
        raise ValueError("delay_ms must not be negative; instances and version must be at least 1")
    folder = target / name
    files = folder / str(version)
    files.mkdir(parents=True, exist_ok=True)
    config = string.Template((TEMPLATE / "config.pbtxt").read_text())
    (folder / "config.pbtxt").write_text(
        config.substitute(name=name, delay_ms=f"{delay_ms:g}", instances=instances)
    )
    (files / "model.py").write_text((TEMPLATE / "model.py").read_text())
    (files / "model.onnx").write_bytes(model.onnx())
    return target
