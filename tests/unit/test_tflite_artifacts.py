"""The demo's .tflite files on the devices' runtime, their golden vectors, and what the agent reads of them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflite_runtime.interpreter import Interpreter

from edgewire.modelfile import BadModel, read_model
from edgewire.operators import VERSIONS
from gateway.demo import artifacts, digits
from gateway.demo.tflite import golden_beside
from oip.golden import GoldenFailed, check_golden, read_golden
from oip.signature import TensorSpec
from tests.support import tflite_models as models


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> artifacts.DigitsFiles:
    return artifacts.export(tmp_path_factory.mktemp("artifacts"), models.digits_model())


def predict(path: Path, pixels: np.ndarray) -> np.ndarray:
    runner = Interpreter(str(path), num_threads=1).get_signature_runner()
    return runner(pixels=pixels)["probabilities"]


@pytest.mark.parametrize(("name", "off"), [("tflite", 1e-5), ("tflite_int8", 0.2)])
def test_they_read_digits_as_well_as_the_weights_they_come_from(
    files: artifacts.DigitsFiles, name: str, off: float
):
    pixels, labels = digits.sample(digits.HELD_OUT)
    found = predict(getattr(files, name), pixels)
    assert (found.argmax(axis=1) == labels).mean() >= 0.95
    np.testing.assert_allclose(found, models.digits_model().predict(pixels), atol=off)


def test_the_int8_model_is_one(files: artifacts.DigitsFiles):
    facts = read_model(files.tflite_int8.read_bytes())
    assert facts.operators == ("DEQUANTIZE", "FULLY_CONNECTED", "QUANTIZE", "SOFTMAX")
    assert files.tflite_int8.stat().st_size < files.tflite.stat().st_size / 2
    spread = np.abs(
        predict(files.tflite_int8, digits.sample(50)[0]) - predict(files.tflite, digits.sample(50)[0])
    )
    assert spread.max() > 0


@pytest.mark.parametrize("name", ["onnx", "tflite", "tflite_int8"])
def test_golden_vectors_hold_for_their_own_model_alone(files: artifacts.DigitsFiles, name: str):
    path: Path = getattr(files, name)
    cases, tolerance = read_golden(golden_beside(path))
    assert [given["pixels"].shape[0] for given, _ in cases] == [1, 1, 8]

    def run(given: Any) -> dict[str, np.ndarray]:
        if name == "onnx":
            return {"probabilities": models.digits_model().predict(given["pixels"])}
        return {"probabilities": predict(path, given["pixels"])}

    specs = [TensorSpec("pixels", "FP32", (-1, 64))]
    check_golden(cases, tolerance, specs, run)
    with pytest.raises(GoldenFailed, match="off by"):
        check_golden(
            cases, tolerance, specs, lambda given: {"probabilities": run(given)["probabilities"] + 0.05}
        )


def test_the_wake_words_golden_vectors_tell_two_sounds_apart(tmp_path: Path):
    path = artifacts.wakeword(tmp_path)
    cases, tolerance = read_golden(golden_beside(path))
    answers = [int(outputs["dense_1"].item()) for _, outputs in cases]
    assert tolerance == 1.0
    assert abs(answers[0] - answers[1]) > 2 * tolerance
    assert read_model(path.read_bytes()).stateful


def test_the_reader_knows_the_state_of_the_digits():
    facts = read_model(models.digits_file())
    assert (facts.nodes, facts.operators, facts.stateful) == (3, ("FULLY_CONNECTED", "SOFTMAX"), False)


@pytest.mark.parametrize(("operator", "version", "has"), [("FULLY_CONNECTED", 10, True), ("FULLY_CONNECTED", 11, False), ("BROADCAST_TO", 1, False), ("BROADCAST_TO", 2, True), ("CUMSUM", 1, True)])  # fmt: skip
def test_the_table_of_operators_is_the_runtimes(operator: str, version: int, has: bool):
    """The runtime itself is asked."""
    graph = models.Graph("one")
    x = graph.tensor("x", (1,))
    graph.node(operator, (x,), (graph.tensor("y", (1,)),), version=version)
    data = graph.build({"x": x}, {}, signature=False)
    assert (version in VERSIONS[operator]) is has
    if has:
        assert read_model(data).operators == (operator,)
        return
    with pytest.raises(BadModel, match=f"version {version} of {operator}"):
        read_model(data)
    with pytest.raises(ValueError, match="Didn't find op for builtin opcode"):
        Interpreter(model_content=data)


def _zip(entries: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return made.getvalue()


def _array(value: object) -> bytes:
    made = io.BytesIO()
    np.save(made, np.asarray(value))
    return made.getvalue()


def _bent() -> bytes:
    """The right end, and packed data that cannot be unpacked."""
    whole = bytearray(_zip({"tolerance.npy": _array(0.1), "0/input/x.npy": _array(np.zeros(4096))}))
    at = whole.index(b"0/input/x.npy") + len("0/input/x.npy")
    whole[at : at + 20] = b"\xff" * 20
    return bytes(whole)


def _locked() -> bytes:
    """Said to be encrypted."""
    whole = bytearray(_zip({"tolerance.npy": _array(0.1)}))
    whole[whole.index(b"PK\x03\x04") + 6] |= 1
    whole[whole.index(b"PK\x01\x02") + 8] |= 1
    return bytes(whole)


@pytest.mark.parametrize(
    "content",
    [
        _bent(),
        _locked(),
        _zip({"tolerance": b"0.1"}),
        _zip({"tolerance.npy": _array(0.1), f"{'1' * 5000}/input/x.npy": _array(0)}),
        _zip({"tolerance.npy": b"\x93NUMPY\x01\x00\x10\x27" + b"[" * 10000}),
    ],
    ids=["bent", "locked", "no array", "a long number", "a deep header"],
)
def test_hostile_golden_vectors_are_refused_in_a_clause(content: bytes, tmp_path: Path):
    path = tmp_path / "v.npz"
    path.write_bytes(content)
    with pytest.raises(GoldenFailed, match=r"^the golden vectors "):
        read_golden(path)
