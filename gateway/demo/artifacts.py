"""The demo's model files with their golden vectors: digits in three forms, and one by somebody else."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

from gateway.demo.digits import DigitsModel, sample
from gateway.demo.tflite import golden_beside, write_golden

Array = np.ndarray[Any, np.dtype[Any]]

FLOAT_TOLERANCE = 1e-4
INT8_TOLERANCE = 0.03
"""The int8 model's probabilities come in steps of 1/256, and runtimes round differently inside it."""
GOLDEN_ROWS = (1, 1, 8)
"""Rows of each golden case of the digits."""


@dataclass(frozen=True, slots=True)
class DigitsFiles:
    """Paths; each has its golden vectors beside it."""

    onnx: Path
    tflite: Path
    tflite_int8: Path


def export(folder: Path, model: DigitsModel) -> DigitsFiles:
    """Write the digits model as ONNX, FP32 .tflite and int8 .tflite into `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    found = DigitsFiles(folder / "digits.onnx", folder / "digits.tflite", folder / "digits-int8.tflite")
    found.onnx.write_bytes(model.onnx())
    found.tflite.write_bytes(model.tflite())
    found.tflite_int8.write_bytes(model.tflite_int8())
    cases: list[tuple[dict[str, Array], dict[str, Array]]] = []
    pixels, _ = sample(sum(GOLDEN_ROWS))
    for rows in np.split(pixels, np.cumsum(GOLDEN_ROWS)[:-1]):
        cases.append(({"pixels": rows}, {"probabilities": model.predict(rows)}))
    for path in (found.onnx, found.tflite):
        write_golden(golden_beside(path), cases, FLOAT_TOLERANCE)
    quantized = [(given, _run(found.tflite_int8, given)) for given, _ in cases]
    write_golden(golden_beside(found.tflite_int8), quantized, INT8_TOLERANCE)
    return found


def wakeword(folder: Path, name: str = "okay_nabu") -> Path:
    """Copy a model of pymicro-wakeword (Apache-2.0) into `folder` and write its golden vectors.

    It takes `input_audio`, INT8 [1, 3, 40], three frames of a spectrogram, and gives UINT8 [1, 1]. It
    keeps state over frames, so each case holds what a fresh one answers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.tflite"
    with as_file(files("pymicro_wakeword") / "models" / f"{name}.tflite") as source:
        shutil.copyfile(source, target)
    rng = np.random.default_rng(11)
    cases: list[tuple[dict[str, Array], dict[str, Array]]] = []
    for spread in (0, 40, 80, 120):
        frames = np.clip(rng.normal(-128 + spread, spread, (1, 3, 40)), -128, 127).astype(np.int8)
        given = {"input_audio": frames}
        cases.append((given, _run(target, given)))
    write_golden(golden_beside(target), cases, 1.0)
    return target


def _run(path: Path, given: Mapping[str, Array]) -> dict[str, Array]:
    """What the maintained runtime answers, which shares no code with the devices' own."""
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(str(path), num_threads=1).get_signature_runner()
    return {name: np.array(array) for name, array in runner(**given).items()}
