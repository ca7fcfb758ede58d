"""The digits trainer gets back what a turned camera with a dirty lens takes."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from edgewire.signals import CONFIDENCE, INPUT_MEAN, INPUT_STD, bin_counts, output_values
from gateway.core.training import Sample, TrainJob, TrainResult
from gateway.core.training_result import checked
from gateway.demo.digits import sample
from gateway.demo.digits.data import training_images
from gateway.demo.digits.drift import rotate_and_fade
from gateway.demo.digits.golden import run_tflite
from gateway.demo.digits.train import likeness, run
from oip.golden import check_golden
from oip.signature import TensorSpec
from tests.support.tflite_models import digits_int8_file

DEGREES, CONTRAST, SAMPLES = 35.0, 0.5, 200
CLEAN, LABELS = sample(360)
DRIFTED = rotate_and_fade(CLEAN, DEGREES, CONTRAST)


@pytest.fixture(scope="module")
def told() -> list[tuple[float, str]]:
    return []


@pytest.fixture(scope="module")
def trained(told: list[tuple[float, str]]) -> TrainResult:
    """Of 200 labelled samples; the other 160 drifted images are new to it."""
    samples = [Sample(str(n), {"pixels": DRIFTED[n : n + 1]}, LABELS[n : n + 1]) for n in range(SAMPLES)]
    job = TrainJob("digits", "2", {}, samples, progress=lambda share, words: told.append((share, words)))
    return run(job)


def right(content: bytes, pixels: np.ndarray, labels: np.ndarray) -> float:
    return float((run_tflite(content, {"pixels": pixels})["probabilities"].argmax(axis=1) == labels).mean())


def test_it_recovers_and_forgets_little(trained: TrainResult):
    new, labels = DRIFTED[SAMPLES:], LABELS[SAMPLES:]
    before, after = digits_int8_file(), trained.files["tflite"].content
    assert right(before, new, labels) < 0.45
    assert right(after, new, labels) >= 0.95
    assert right(before, CLEAN, LABELS) - right(after, CLEAN, LABELS) <= 0.02


def test_the_int8_file_is_about_as_good_as_the_onnx_file(trained: TrainResult):
    session = onnxruntime.InferenceSession(trained.files["onnx"].content, providers=["CPUExecutionProvider"])
    for pixels in (CLEAN, DRIFTED):
        (found,) = session.run(None, {"pixels": pixels})
        full = float((found.argmax(axis=1) == LABELS).mean())
        assert abs(full - right(trained.files["tflite"].content, pixels, LABELS)) <= 0.01


def test_the_result_keeps_the_contract_and_its_golden_vectors_hold(trained: TrainResult):
    found = checked(trained)
    assert found.files.keys() == {"onnx", "tflite"}
    golden = found.files["tflite"].golden
    cases = [(dict(given), dict(wanted)) for given, wanted in golden.cases]
    content = found.files["tflite"].content
    check_golden(
        cases,
        golden.tolerance,
        [TensorSpec("pixels", "FP32", (-1, 64))],
        lambda given: run_tflite(content, given),
    )
    assert found.metrics["samples"] == SAMPLES
    assert found.metrics["accuracy"] >= 0.96


def test_its_reference_is_that_of_such_images_that_it_was_not_fitted_to(trained: TrainResult):
    assert trained.reference.keys() == {INPUT_MEAN, INPUT_STD, CONFIDENCE}
    for reference in trained.reference.values():
        assert len(reference.edges) <= 15
        assert sum(reference.counts) == 2 * -(-len(training_images()[0]) // 10)
    # Bins are wider than the steps of the int8 file: it is not taken for drift.
    confidence = trained.reference[CONFIDENCE]
    seen = output_values(run_tflite(trained.files["tflite"].content, {"pixels": DRIFTED[SAMPLES:]}))
    now = np.array(bin_counts(seen[CONFIDENCE], confidence.edges)) + 0.5
    then = np.array(confidence.counts) + 0.5
    now, then = now / now.sum(), then / then.sum()
    assert float(((now - then) * np.log(now / then)).sum()) < 0.2


def test_it_tells_its_progress(trained: TrainResult, told: list[tuple[float, str]]):
    shares = [share for share, _ in told]
    assert len(told) > 10
    assert shares == sorted(shares)
    assert told[-1][0] == 1.0
    assert told[0][1] == "epoch 1 of 30"


def test_it_trains_without_samples_as_well():
    alone = run(TrainJob("digits", "2", {}, ()))
    assert alone.metrics["samples"] == 0
    assert right(alone.files["tflite"].content, CLEAN, LABELS) >= 0.95


@pytest.mark.parametrize(
    ("inputs", "labels", "says"),
    [
        ({"image": np.zeros((1, 64))}, [1], "no `pixels`"),
        ({"pixels": np.zeros((1, 63))}, [1], "no `pixels`"),
        ({"pixels": np.zeros((2, 64))}, [1], "a label for each row"),
        ({"pixels": np.zeros((1, 64))}, [10], "labels are 0 to 9"),
    ],
)
def test_samples_that_are_no_digits_are_refused(inputs: dict[str, np.ndarray], labels: list[int], says: str):
    with pytest.raises(ValueError, match=says):
        run(TrainJob("digits", "2", {}, [Sample("s", inputs, np.array(labels))]))


@pytest.mark.parametrize(("degrees", "contrast"), [(0, 1.0), (-30, 0.7), (40, 0.5)])
def test_the_samples_tell_how_they_were_changed(degrees: int, contrast: float):
    seen = rotate_and_fade(CLEAN[:150], degrees, contrast)
    found, faded = likeness(*training_images(), seen, LABELS[:150])
    assert found == degrees
    assert faded == pytest.approx(contrast, abs=0.05)


def test_a_quarter_turn_is_exact_and_counter_clockwise():
    image = CLEAN[:1]
    np.testing.assert_allclose(
        rotate_and_fade(image, 90, 0.5).reshape(8, 8), 0.5 * np.rot90(image.reshape(8, 8)), atol=1e-6
    )
    np.testing.assert_array_equal(rotate_and_fade(image, 0, 1.0), image)
    assert rotate_and_fade(image, 30, 0.0).any() == np.False_


@pytest.mark.parametrize(("shape", "contrast"), [((1, 8, 8), 0.5), ((1, 64), 1.5), ((1, 64), float("nan"))])
def test_what_is_no_image_or_contrast_is_refused(shape: tuple[int, ...], contrast: float):
    with pytest.raises(ValueError, match=r"must be|are of shape"):
        rotate_and_fade(np.zeros(shape, np.float32), 10, contrast)
