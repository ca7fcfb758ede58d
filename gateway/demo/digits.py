"""The demo's model: a small network that reads scikit-learn's 8x8 digits, and a Triton repository for it.

`train` takes a second; its seed is fixed, so two runs on one machine give the same weights. The
network takes `pixels`, FP32 [N, 64], each 0..1, and gives `probabilities`, FP32 [N, 10].
"""

from __future__ import annotations

import contextlib
import io
import string
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gateway.demo.tflite import Graph

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Labels = NDArray[np.int64]

TEMPLATE = Path(__file__).parent / "models" / "digits"
SEED = 7
HELD_OUT = 360
"""Images that training never sees, of 1797."""
HIDDEN = 64
EPOCHS = 60
BATCH = 64
CALIBRATION = 200
"""Training images that set the ranges of the int8 model."""
OPSET = 17
IR_VERSION = 8


@dataclass(frozen=True, slots=True)
class DigitsModel:
    """Weights of 64 -> HIDDEN (ReLU) -> 10 (softmax), FP32, and the accuracy on held-out images."""

    w1: Floats
    b1: Floats
    w2: Floats
    b2: Floats
    accuracy: float

    def predict(self, pixels: Floats) -> Floats:
        """FP32 [N, 64] -> FP32 [N, 10]; rows sum to 1."""
        return _softmax(np.maximum(pixels @ self.w1 + self.b1, 0) @ self.w2 + self.b2)

    def onnx(self) -> bytes:
        """The same function as a serialized ONNX model with a free batch dimension."""
        from onnx import TensorProto, checker, helper, numpy_helper

        graph = helper.make_graph(
            [
                helper.make_node("Gemm", ["pixels", "w1", "b1"], ["hidden"]),
                helper.make_node("Relu", ["hidden"], ["active"]),
                helper.make_node("Gemm", ["active", "w2", "b2"], ["scores"]),
                helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
            ],
            "digits",
            [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["N", 64])],
            [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 10])],
            [numpy_helper.from_array(getattr(self, name), name) for name in ("w1", "b1", "w2", "b2")],
        )
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION)
        checker.check_model(model, full_check=True)
        return model.SerializeToString()

    def tflite(self) -> bytes:
        """The same function as a FP32 .tflite with a free first dimension and named inputs and outputs."""
        from ai_edge_litert import schema_py_generated as schema

        graph = Graph("digits")
        pixels = graph.tensor("pixels", (-1, 64))
        hidden = graph.tensor("hidden", (-1, HIDDEN))
        scores = graph.tensor("scores", (-1, 10))
        probabilities = graph.tensor("probabilities", (-1, 10))
        w1, b1 = graph.constant("w1", self.w1.T), graph.constant("b1", self.b1)
        w2, b2 = graph.constant("w2", self.w2.T), graph.constant("b2", self.b2)
        first, second = schema.FullyConnectedOptionsT(), schema.FullyConnectedOptionsT()
        first.fusedActivationFunction = schema.ActivationFunctionType.RELU
        softmax = schema.SoftmaxOptionsT()
        softmax.beta = 1.0
        graph.node("FULLY_CONNECTED", (pixels, w1, b1), (hidden,), first)
        graph.node("FULLY_CONNECTED", (hidden, w2, b2), (scores,), second)
        graph.node("SOFTMAX", (scores,), (probabilities,), softmax)
        return graph.build({"pixels": pixels}, {"probabilities": probabilities})

    def tflite_int8(self) -> bytes:
        """The like with static int8 inside, calibrated on training images; inputs and outputs stay FP32.

        Not dynamic-range int8: per-channel files of that kind load in tflite-runtime and answer wrong.
        """
        from litert_quantizer import quantizer, recipe
        from litert_quantizer.algorithm_manager import AlgorithmName
        from litert_quantizer.qtyping import TFLOperationName

        process = quantizer.Quantizer(self.tflite(), recipe.static_wi8_ai8())
        for end in (TFLOperationName.INPUT, TFLOperationName.OUTPUT):
            process.update_quantization_recipe(".*", end, algorithm_key=AlgorithmName.NO_QUANTIZE)
        images, *_ = _split()
        samples = [{"pixels": image[None]} for image in images[:CALIBRATION]]
        quiet = io.StringIO()
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(quiet),
            contextlib.redirect_stderr(quiet),
        ):
            warnings.simplefilter("ignore", UserWarning)
            found = process.calibrate({"serving_default": samples}, num_threads=1)
            return bytes(process.quantize(found).quantized_model or b"")


@cache
def _split() -> tuple[Floats, Labels, Floats, Labels]:
    """Training images and labels, then the held-out ones, in one seeded order."""
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    images, labels = found.data, found.target
    order = np.random.default_rng(SEED).permutation(len(images))
    pixels, labels = (images[order] / 16).astype(np.float32), labels[order].astype(np.int64)
    return pixels[HELD_OUT:], labels[HELD_OUT:], pixels[:HELD_OUT], labels[:HELD_OUT]


def sample(count: int) -> tuple[Floats, Labels]:
    """The first `count` (at most HELD_OUT) held-out images, FP32 [count, 64], each 0..1, and what
    they show. Raises ValueError for more than there are."""
    if not 0 < count <= HELD_OUT:
        raise ValueError(f"count must be from 1 to {HELD_OUT}, not {count}")
    _, _, pixels, labels = _split()
    return pixels[:count].copy(), labels[:count].copy()


def train() -> DigitsModel:
    """Fit the network with Adam on cross-entropy."""
    pixels, labels, held_pixels, held_labels = _split()
    rng = np.random.default_rng(SEED)
    weights = [
        rng.normal(0, np.sqrt(2 / 64), (64, HIDDEN)).astype(np.float32),
        np.zeros(HIDDEN, np.float32),
        rng.normal(0, np.sqrt(2 / HIDDEN), (HIDDEN, 10)).astype(np.float32),
        np.zeros(10, np.float32),
    ]
    first = [np.zeros_like(w) for w in weights]
    second = [np.zeros_like(w) for w in weights]
    step = 0
    for _ in range(EPOCHS):
        order = rng.permutation(len(pixels))
        for begin in range(0, len(order), BATCH):
            chosen = order[begin : begin + BATCH]
            step += 1
            rate = 3e-3 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            for w, g, m, v in zip(
                weights, _gradients(weights, pixels[chosen], labels[chosen]), first, second, strict=True
            ):
                m += 0.1 * (g - m)
                v += 0.001 * (g * g - v)
                w -= (rate * m / (np.sqrt(v) + 1e-8)).astype(np.float32)
    model = DigitsModel(*weights, accuracy=0.0)
    found = model.predict(held_pixels).argmax(axis=1)
    return DigitsModel(*weights, accuracy=float((found == held_labels).mean()))


def build_repository(
    target: Path, *, model: DigitsModel, delay_ms: float = 0.0, instances: int = 1, version: int = 1
) -> Path:
    """Lay out a Triton repository with the one model `digits` in the folder `target`; returns it.

    Each of `instances` copies runs one request at a time and waits `delay_ms` before it answers, so
    the place saturates at `instances / delay`. Raises ValueError for values that make no sense.
    """
    if delay_ms < 0 or instances < 1 or version < 1:
        raise ValueError("delay_ms must not be negative; instances and version must be at least 1")
    folder = target / "digits"
    files = folder / str(version)
    files.mkdir(parents=True, exist_ok=True)
    config = string.Template((TEMPLATE / "config.pbtxt").read_text())
    (folder / "config.pbtxt").write_text(config.substitute(delay_ms=f"{delay_ms:g}", instances=instances))
    (files / "model.py").write_text((TEMPLATE / "model.py").read_text())
    (files / "model.onnx").write_bytes(model.onnx())
    return target


def _gradients(weights: list[Floats], pixels: Floats, labels: Labels) -> list[Floats]:
    """Of the mean cross-entropy, in the order of the weights."""
    w1, b1, w2, b2 = weights
    active = np.maximum(pixels @ w1 + b1, 0)
    error = _softmax(active @ w2 + b2)
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    back = (error @ w2.T) * (active > 0)
    return [pixels.T @ back, back.sum(axis=0), active.T @ error, error.sum(axis=0)]


def _softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
