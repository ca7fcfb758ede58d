"""A trainer's result that could not be released is refused with what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgewire.signals import CONFIDENCE
from gateway.core.release import Reference
from gateway.core.training import Golden, TrainedFile, TrainResult
from gateway.core.training_result import BadResult, checked
from tests.support.trainers import GOLDEN, result

ONE = {"x": np.ones(1)}
TFLITE = b"\x1c\0\0\0TFL3 and more"


def with_golden(*cases: Any, tolerance: Any = 0.1) -> TrainResult:
    return result(files={"onnx": TrainedFile(b"m", Golden(list(cases), tolerance))})


def with_reference(edges: Any, counts: Any, signal: str = CONFIDENCE) -> TrainResult:
    return result(reference={signal: Reference(edges, counts)})


def test_a_good_one_passes_in_plain_types():
    given = result(
        files={"tflite": TrainedFile(TFLITE, GOLDEN)},
        reference={CONFIDENCE: Reference(np.array([0.5, 0.75]), np.array([1, 2, 0]))},  # type: ignore[arg-type]
        metrics={"accuracy": np.float32(0.5)},
    )
    found = checked(given)
    assert found.reference == {CONFIDENCE: Reference((0.5, 0.75), (1, 2, 0))}
    assert [type(value) for value in found.reference[CONFIDENCE].counts] == [int, int, int]
    assert (found.metrics, type(found.metrics["accuracy"])) == ({"accuracy": 0.5}, float)
    assert found.files["tflite"].content == TFLITE
    assert checked(result(reference={}, metrics={})).reference == {}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "gave back a NoneType and no TrainResult"),
        ({"files": {}}, "gave back a dict and no TrainResult"),
        (result(files={}), "no files"),
        (result(files=None), "no files"),
        (result(files={"pt": TrainedFile(b"m", GOLDEN)}), "format 'pt': formats are tflite, onnx"),
        (result(files={"onnx": b"m"}), "onnx file is no TrainedFile with bytes"),
        (result(files={"onnx": TrainedFile(b"", GOLDEN)}), "holds no onnx model"),
        (result(files={"tflite": TrainedFile(b"an onnx model", GOLDEN)}), "holds no tflite model"),
        (result(files={"onnx": TrainedFile(b"m", None)}), "has no golden vectors"),  # type: ignore[arg-type]
        (with_golden(), "has no golden vectors"),
        (with_golden(*[(ONE, ONE)] * 257), "are 257 cases; there may be 256"),
        (with_golden((ONE, ONE), tolerance=float("nan")), "no tolerance of 0 or more"),
        (with_golden((ONE, ONE), tolerance=-1.0), "no tolerance of 0 or more"),
        (with_golden(ONE), "no pair of inputs and outputs"),
        (with_golden((ONE, {})), "without inputs or without outputs"),
        (with_golden((ONE, {"y": [1.0]})), "no array by the name of a tensor"),
        (with_golden((ONE, {"y": np.array([object()])})), "array of type object"),
        (with_reference((0.5, 0.5), (1, 2, 3)), "output.confidence are none: they must ascend"),
        (with_reference((float("inf"),), (1, 2)), "must be finite"),
        (with_reference((), (1,)), "there must be 1 to 256 of them"),
        (with_reference((0.5,), (1, 2, 3)), "one more of them than edges"),
        (with_reference((0.5,), (1, -2)), "counts of 0 or more"),
        (with_reference((0.5,), (1.5, 2)), "counts of 0 or more"),
        (with_reference((0.5,), (0, 0)), "not all 0"),
        (with_reference((0.5,), (1, 2), "output.entropy"), "a signal 'output.entropy'"),
        (result(reference={CONFIDENCE: (0.5,)}), "is no Reference"),
        (result(reference=None), "no mapping of signals"),
        (result(metrics={"loss": float("nan")}), "metric 'loss' is not a finite number"),
        (result(metrics={"loss": "low"}), "metric 'loss' is not a finite number"),
        (result(metrics=None), "no mapping of names to numbers"),
    ],
)
def test_what_could_not_be_released_is_refused(given: object, says: str):
    with pytest.raises(BadResult, match=says):
        checked(given)
