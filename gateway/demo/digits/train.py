"""The trainer of the digits model, for `train.entrypoint: "gateway.demo.digits.train:run"`.

Cameras get turned and their lenses dirty. The labelled samples tell how: the turn and the contrast under
which the training images look most like the samples of the same digits. The network is then fitted to the
training images as they are and so changed, each turned a little besides, which keeps what it knew, and to
the samples themselves. Held-out images are never trained on.
"""

from __future__ import annotations

import numpy as np

from edgewire.signals import CONFIDENCE, bin_counts, input_values, output_values
from gateway.core.release import Reference
from gateway.core.training import TrainedFile, TrainJob, TrainResult
from gateway.demo.digits.data import SEED, held_out_images, training_images
from gateway.demo.digits.drift import rotate_and_fade
from gateway.demo.digits.golden import float_golden, int8_golden
from gateway.demo.digits.model import CALIBRATION, DigitsModel
from gateway.demo.digits.network import EPOCHS, Floats, Labels, fit

TURNS = range(-60, 61, 5)
"""Degrees that are tried."""
WOBBLE = (-8, 0, 8)
"""Degrees by which images are turned besides: a camera is not turned by the same for ever."""
UPDATE_EPOCHS = 30
"""Each sees every image in six views."""
SAMPLES_SHARE = 0.15
"""How much the samples together count beside all the views."""
SMOOTHING, DECAY = 0.05, 0.03
"""Measured on held-out images as they were: 98 % are read right with them, 97 % without."""
BINS = 16
CONFIDENCE_EDGES = tuple(k / 10 for k in range(1, 10))
UNSEEN_ONE_IN = 10
"""Of the training images one in so many is left out of the fit: a network is surer of images that it was
fitted to than of those that it will be asked about, and the reference must be of the latter kind."""
FITTED = 0.8
"""Of the progress, when the network is fitted; files and golden vectors are the rest."""


def run(job: TrainJob) -> TrainResult:
    """Raises ValueError for samples that are no digits."""
    images, labels = training_images()
    samples, truth = _samples(job)
    changes, wobble, epochs, importance = [(0, 1.0)], (0,), EPOCHS, 1.0
    if len(samples):
        degrees, contrast = likeness(images, labels, samples, truth)
        print(f"samples look like digits turned by {degrees} degrees at {contrast:.0%} of the contrast")
        changes, wobble, epochs = [*changes, (degrees, contrast)], WOBBLE, UPDATE_EPOCHS
        importance = SAMPLES_SHARE * len(changes) * len(wobble) * len(images) / len(samples)
    unseen = np.arange(len(images)) % UNSEEN_ONE_IN == 0
    views = [
        rotate_and_fade(images[~unseen], degrees + more, contrast)
        for degrees, contrast in changes
        for more in wobble
    ]
    fitted = np.concatenate([*views, samples])
    weights = fit(
        fitted,
        np.concatenate([*[labels[~unseen]] * len(views), truth]),
        seed=SEED,
        epochs=epochs,
        importance=np.repeat(
            np.array([1, importance], np.float32), [len(fitted) - len(samples), len(samples)]
        ),
        smoothing=SMOOTHING,
        decay=DECAY,
        told=lambda done: job.progress(FITTED * done / epochs, f"epoch {done} of {epochs}"),
    )
    accuracy = weights.accuracy(*held_out_images())
    spread = np.random.default_rng(SEED).permutation(len(fitted))[:CALIBRATION]
    model = DigitsModel(weights, accuracy, fitted[spread])
    print(
        f"{len(fitted)} images, {len(samples)} of them samples; {accuracy:.1%} of the held-out images read right"
    )
    onnx, tflite = model.onnx(), model.tflite_int8()
    files = {
        "onnx": TrainedFile(onnx, float_golden(model)),
        "tflite": TrainedFile(tflite, int8_golden(tflite)),
    }
    job.progress(1.0, "files and golden vectors")
    alike = np.concatenate([rotate_and_fade(images[unseen], *change) for change in changes])
    return TrainResult(
        files, reference_of(model, alike), {"accuracy": accuracy, "samples": float(len(samples))}
    )


def likeness(base: Floats, base_labels: Labels, seen: Floats, seen_labels: Labels) -> tuple[int, float]:
    """The turn in degrees and the contrast, at most 1, that bring the mean images of the digits nearest to
    those of the samples, by least squares; a digit counts by its samples."""
    counts = np.bincount(seen_labels, minlength=10)[:, None]
    wanted = _means(seen, seen_labels)

    def fitting(degrees: int) -> tuple[float, float]:
        turned = _means(rotate_and_fade(base, degrees, 1.0), base_labels)
        contrast = float(np.clip((counts * wanted * turned).sum() / (counts * turned**2).sum(), 0, 1))
        return float((counts * (wanted - contrast * turned) ** 2).sum()), contrast

    best = min(TURNS, key=lambda degrees: fitting(degrees)[0])
    return best, fitting(best)[1]


def _means(pixels: Floats, labels: Labels) -> Floats:
    """The mean image of each digit, FP32 [10, 64]; zeros for one that is not there."""
    sums = np.zeros((10, pixels.shape[1]), np.float32)
    np.add.at(sums, labels, pixels)
    return sums / np.maximum(np.bincount(labels, minlength=10), 1)[:, None].astype(np.float32)


def _samples(job: TrainJob) -> tuple[Floats, Labels]:
    """The labelled samples as images, FP32 [N, 64], and what they show."""
    images, labels = [np.zeros((0, 64), np.float32)], [np.zeros(0, np.int64)]
    for sample in job.samples:
        pixels = sample.inputs.get("pixels")
        if pixels is None or pixels.ndim != 2 or pixels.shape[1] != 64 or len(pixels) != len(sample.labels):
            raise ValueError("a sample is no `pixels` of shape [N, 64] with a label for each row")
        if not np.isin(sample.labels, range(10)).all():
            raise ValueError("the label of a sample is no digit: labels are 0 to 9")
        images.append(pixels.astype(np.float32))
        labels.append(sample.labels.astype(np.int64))
    return np.concatenate(images), np.concatenate(labels)


def reference_of(model: DigitsModel, pixels: Floats) -> dict[str, Reference]:
    """How each signal is on these images: inputs in bins that hold about the same number of them, the
    confidence in bins that are wider than the steps of the int8 file, which shares them with the others."""
    values = input_values({"pixels": pixels}) | output_values({"probabilities": model.predict(pixels)})
    found: dict[str, Reference] = {}
    for name, seen in values.items():
        quantiles = np.unique(np.quantile(seen, np.arange(1, BINS) / BINS)).tolist()
        edges = CONFIDENCE_EDGES if name == CONFIDENCE else tuple(quantiles)
        found[name] = Reference(edges, tuple(bin_counts(seen, edges)))
    return found
