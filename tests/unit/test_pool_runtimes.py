"""Every runtime of pools, found by discovery, over small models."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.core.config import Batching
from gateway.core.plugins import discover
from gateway.demo.digits import sample, train_base
from gateway.pool.replica import batched
from gateway.pool.runtimes._interface import LoadError
from gateway.pool.settings import VariantSettings
from oip.signature import Signature, TensorSpec
from tests.support.onnx_models import counting, doubling, identity

RUNTIMES = discover("gateway.pool.runtimes")
CPU = {"CPU": 1.0}


def _adding_up(folder: Path) -> bytes:
    """FP32 x [1, 1]; y is the sum of all x that the model saw. In OpenVINO's own format."""
    import openvino
    from openvino import opset13 as ops
    from openvino.op.util import Variable, VariableInfo

    kept = VariableInfo()
    kept.data_shape, kept.data_type, kept.variable_id = (
        openvino.PartialShape([1, 1]),
        openvino.Type.f32,
        "sum",
    )
    variable = Variable(kept)
    x = ops.parameter([1, 1], np.float32, name="x")
    total = ops.add(ops.read_value(ops.subtract(x, x), variable), x, name="y")
    x.output(0).set_names({"x"})
    total.output(0).set_names({"y"})
    model = openvino.Model([ops.result(total)], [ops.assign(total, variable)], [x], "adding up")
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)
    return (folder / "model.xml").read_bytes()


def _load(kind: str, model: bytes, resources: dict[str, float] = CPU) -> Any:
    return RUNTIMES[kind]().load(model, resources)


@pytest.mark.parametrize("kind", RUNTIMES)
def test_the_signature_is_the_files(kind: str):
    assert _load(kind, train_base().onnx()).signature == Signature(
        (TensorSpec("pixels", "FP32", (-1, 64)),), (TensorSpec("probabilities", "FP32", (-1, 10)),)
    )
    assert _load(kind, identity("N", 3, "M")).signature.inputs == (TensorSpec("INPUT0", "FP32", (-1, 3, -1)),)


@pytest.mark.parametrize("kind", RUNTIMES)
def test_the_digits_answers_are_the_networks_own(kind: str):
    model = train_base()
    pixels, labels = sample(100)
    found = _load(kind, model.onnx()).run({"pixels": pixels})["probabilities"]
    np.testing.assert_allclose(found, model.predict(pixels), atol=1e-5)
    assert (found.argmax(axis=1) == labels).mean() > 0.85


@pytest.mark.parametrize("kind", RUNTIMES)
def test_an_answer_survives_the_next_run(kind: str):
    session = _load(kind, doubling())
    first = session.run({"INPUT0": np.full((2, 4), 1, np.float32)})["OUTPUT0"]
    second = session.run({"INPUT0": np.full((2, 4), 5, np.float32)})["OUTPUT0"]
    assert first.tolist() == [[2] * 4] * 2
    assert second.tolist() == [[10] * 4] * 2


def test_no_callers_state_reaches_the_next(tmp_path: Path):
    session = _load("openvino", _adding_up(tmp_path))
    given = [5, 1, 1]
    answers = [session.run({"x": np.full((1, 1), value, np.float32)}) for value in given]
    assert [float(answer["y"][0, 0]) for answer in answers] == given


@pytest.mark.parametrize("kind", RUNTIMES)
def test_no_rows_give_no_rows_and_odd_numbers_keep_their_bits(kind: str):
    session = _load(kind, identity("N", "M"))
    assert session.run({"INPUT0": np.zeros((0, 4), np.float32)})["OUTPUT0"].shape == (0, 4)
    odd = np.array([[np.nan, np.inf, -0.0, 1e-45]], np.float32)
    odd.flags.writeable = False
    assert session.run({"INPUT0": odd})["OUTPUT0"].tobytes() == odd.tobytes()


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize("model", [b"", b"nonsense", doubling()[:60]])
def test_a_broken_file_is_a_load_error_in_a_few_words(kind: str, model: bytes):
    with pytest.raises(LoadError) as caught:
        _load(kind, model)
    assert str(caught.value).startswith(f"{kind} cannot open it (")
    assert "/" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("kind", "needs"), [("onnxruntime", "CUDA"), ("openvino", "GPU")])
def test_a_gpu_that_is_not_there_is_said(kind: str, needs: str):
    with pytest.raises(LoadError, match=needs):
        _load(kind, doubling(), {"GPU": 1.0})


def test_openvino_runs_tflite_as_it_runs_onnx():
    model = train_base()
    pixels, _ = sample(1)
    session = _load("openvino", model.tflite())
    (given,), (answer,) = session.signature.inputs, session.signature.outputs
    assert (given.name, given.datatype, given.shape[1:]) == ("pixels", "FP32", (64,))
    found = session.run({"pixels": pixels})[answer.name]
    np.testing.assert_allclose(found, model.predict(pixels), atol=1e-5)


def test_batching_needs_a_free_first_dimension():
    free = _load("onnxruntime", doubling()).signature
    fixed = _load("onnxruntime", identity(2, "N")).signature
    variant = VariantSettings("m", "", "1", "unused", Batching(max_size=8))
    assert batched(free, variant) == Signature(free.inputs, free.outputs, 8)
    assert batched(fixed, VariantSettings("m", "", "1", "unused")) is fixed
    with pytest.raises(LoadError, match=r"'INPUT0' has the shape \[2, -1\]"):
        batched(fixed, variant)


def test_a_run_that_is_stopped_ends_and_the_next_goes_on():
    session = _load("onnxruntime", counting())
    session.stop()
    stopping = threading.Timer(0.2, session.stop)
    stopping.start()
    with pytest.raises(Exception, match="terminate"):
        session.run({"TIMES": np.array([30_000], np.int64)})
    stopping.join()
    assert session.run({"TIMES": np.array([1], np.int64)})["OUTPUT0"].shape == (256, 256)


@pytest.mark.parametrize("kind", RUNTIMES)
def test_to_stop_what_does_not_run_does_no_harm(kind: str):
    session = _load(kind, doubling())
    for value in (1.0, 2.0):
        session.stop()
        found = session.run({"INPUT0": np.full((1, 4), value, np.float32)})["OUTPUT0"]
        assert found.tolist() == [[2 * value] * 4]
