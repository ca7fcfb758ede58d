"""The demo's model, without a Triton."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from gateway.demo import digits
from gateway.demo.digits.data import training_images


@pytest.fixture(scope="module")
def model() -> digits.DigitsModel:
    return digits.train_base()


def test_it_reads_images_it_never_saw(model: digits.DigitsModel):
    pixels, labels = digits.sample(digits.HELD_OUT)
    right = (model.predict(pixels).argmax(axis=1) == labels).mean()
    assert right >= 0.95
    assert model.accuracy == right


def test_held_out_images_are_not_trained_on():
    (trained, _), (held, _) = training_images(), digits.sample(digits.HELD_OUT)
    assert len(trained) + len(held) == 1797
    assert not {p.tobytes() for p in trained} & {p.tobytes() for p in held}


def test_training_again_gives_the_same_weights(model: digits.DigitsModel):
    again = digits.train_base()
    assert all(np.array_equal(*pair) for pair in zip(model.weights, again.weights, strict=True))


def test_onnx_computes_the_same(model: digits.DigitsModel):
    session = onnxruntime.InferenceSession(model.onnx(), providers=["CPUExecutionProvider"])
    for count in (1, 17):
        pixels, _ = digits.sample(count)
        (probabilities,) = session.run(None, {"pixels": pixels})
        assert probabilities.shape == (count, 10)
        assert probabilities.dtype == np.float32
        np.testing.assert_allclose(probabilities, model.predict(pixels), atol=1e-6)


def test_samples_are_scaled_and_a_callers_own():
    pixels, labels = digits.sample(5)
    assert (pixels.shape, pixels.dtype, labels.shape) == ((5, 64), np.float32, (5,))
    assert pixels.min() >= 0
    assert 0.5 < pixels.max() <= 1
    pixels[:] = -1
    assert digits.sample(5)[0].min() >= 0


@pytest.mark.parametrize("count", [0, digits.HELD_OUT + 1])
def test_no_more_samples_than_there_are(count: int):
    with pytest.raises(ValueError, match="360"):
        digits.sample(count)


def test_a_repository_holds_what_was_asked_for(model: digits.DigitsModel, tmp_path: Path):
    assert digits.build_repository(tmp_path / "r", model=model, delay_ms=12.5, instances=3, version=2) == (
        tmp_path / "r"
    )
    folder = tmp_path / "r" / "digits"
    config = (folder / "config.pbtxt").read_text()
    assert "count: 3" in config
    assert 'string_value: "12.5"' in config
    assert "$" not in config
    assert sorted(p.name for p in (folder / "2").iterdir()) == ["model.onnx", "model.py"]
    assert (folder / "2" / "model.onnx").read_bytes() == model.onnx()


@pytest.mark.parametrize("odd", [{"delay_ms": -1}, {"instances": 0}, {"version": 0}])
def test_a_repository_that_makes_no_sense_is_refused(
    model: digits.DigitsModel, tmp_path: Path, odd: dict[str, int]
):
    with pytest.raises(ValueError, match="must"):
        digits.build_repository(tmp_path, model=model, **odd)
    assert not list(tmp_path.iterdir())
