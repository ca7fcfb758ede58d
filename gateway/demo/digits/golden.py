"""What the files of the digits model must answer wherever they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gateway.core.training import Golden
from gateway.demo.digits.data import sample
from gateway.demo.digits.model import DigitsModel

Array = np.ndarray[Any, np.dtype[Any]]

FLOAT_TOLERANCE = 1e-4
INT8_TOLERANCE = 0.02
"""The int8 model's probabilities come in steps of 1/256, and runtimes round differently inside it."""
ROWS = (1, 1, 8)
"""Of each case."""


def float_golden(model: DigitsModel) -> Golden:
    """For the files that compute in FP32: what the weights themselves give."""
    cases = [({"pixels": rows}, {"probabilities": model.predict(rows)}) for rows in _rows()]
    return Golden(cases, FLOAT_TOLERANCE)


def int8_golden(content: bytes) -> Golden:
    """For an int8 file: what it gives in the maintained runtime, which shares no code with the devices' own."""
    cases = [({"pixels": rows}, run_tflite(content, {"pixels": rows})) for rows in _rows()]
    return Golden(cases, INT8_TOLERANCE)


def run_tflite(content: bytes, given: Mapping[str, Array]) -> dict[str, Array]:
    """One run of a .tflite file in the maintained runtime."""
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_content=content, num_threads=1).get_signature_runner()
    return {name: np.array(array) for name, array in runner(**given).items()}


def _rows() -> list[Array]:
    pixels, _ = sample(sum(ROWS))
    return np.split(pixels, np.cumsum(ROWS)[:-1])
