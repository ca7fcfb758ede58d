"""The demo's model files with their golden vectors: digits in three forms, and one by somebody else."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from gateway.demo.digits import DigitsModel
from gateway.demo.digits.data import held_out_images
from gateway.demo.digits.golden import float_golden, int8_golden, run_tflite
from gateway.demo.digits.train import reference_of
from gateway.demo.tflite import golden_beside, write_golden
from gateway.store.references import write_reference

WAKEWORD_TOLERANCE = 1.0
"""One step of its UINT8."""


@dataclass(frozen=True, slots=True)
class DigitsFiles:
    """Paths; each has its golden vectors beside it."""

    onnx: Path
    tflite: Path
    tflite_int8: Path


def export(folder: Path, model: DigitsModel) -> DigitsFiles:
    """Write the digits model as ONNX, FP32 .tflite and int8 .tflite into `folder`, which is made; and, for
    the last, how sure it is of digits that it never saw."""
    folder.mkdir(parents=True, exist_ok=True)
    found = DigitsFiles(folder / "digits.onnx", folder / "digits.tflite", folder / "digits-int8.tflite")
    found.onnx.write_bytes(model.onnx())
    found.tflite.write_bytes(model.tflite())
    found.tflite_int8.write_bytes(model.tflite_int8())
    golden = float_golden(model)
    for path in (found.onnx, found.tflite):
        write_golden(golden_beside(path), golden.cases, golden.tolerance)
    golden = int8_golden(found.tflite_int8.read_bytes())
    write_golden(golden_beside(found.tflite_int8), golden.cases, golden.tolerance)
    write_reference(found.tflite_int8, reference_of(model, held_out_images()[0]))
    return found


def wakeword(folder: Path) -> Path:
    """Copy "hey mycroft" of pymicro-wakeword (Apache-2.0) into `folder`, write its golden vectors.

    It takes `input_audio`, INT8 [1, 3, 40], three frames of a spectrogram, and gives `dense_1`, UINT8
    [1, 1]. It keeps state from window to window; each golden case is the first window of a fresh one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "hey_mycroft.tflite"
    with as_file(files("pymicro_wakeword") / "models" / target.name) as source:
        shutil.copyfile(source, target)
    content = target.read_bytes()
    silence = np.full((1, 3, 40), -128, np.int8)
    noise = np.random.default_rng(11).integers(-128, 128, silence.shape, np.int8)
    cases = [
        (given, run_tflite(content, given)) for given in ({"input_audio": silence}, {"input_audio": noise})
    ]
    write_golden(golden_beside(target), cases, WAKEWORD_TOLERANCE)
    return target
