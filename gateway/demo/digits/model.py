"""The digits model as files: ONNX, and TFLite in FP32 and in static int8, all of the same weights."""

from __future__ import annotations

import contextlib
import io
import warnings
from dataclasses import dataclass

from gateway.demo.digits.data import SEED, held_out_images, training_images
from gateway.demo.digits.network import HIDDEN, Floats, Weights, fit
from gateway.demo.tflite import Graph

CALIBRATION = 200
"""Images that set the ranges of the int8 file."""
OPSET = 17
IR_VERSION = 8


@dataclass(frozen=True, slots=True)
class DigitsModel:
    """A network, its accuracy on held-out images, and images that set the ranges of its int8 file."""

    weights: Weights
    accuracy: float
    calibration: Floats

    def predict(self, pixels: Floats) -> Floats:
        """FP32 [N, 64] -> FP32 [N, 10]; rows sum to 1."""
        return self.weights.predict(pixels)

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
            [numpy_helper.from_array(array, name) for name, array in self.weights._asdict().items()],
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
        w1, b1 = graph.constant("w1", self.weights.w1.T), graph.constant("b1", self.weights.b1)
        w2, b2 = graph.constant("w2", self.weights.w2.T), graph.constant("b2", self.weights.b2)
        first, second = schema.FullyConnectedOptionsT(), schema.FullyConnectedOptionsT()
        first.fusedActivationFunction = schema.ActivationFunctionType.RELU
        softmax = schema.SoftmaxOptionsT()
        softmax.beta = 1.0
        graph.node("FULLY_CONNECTED", (pixels, w1, b1), (hidden,), first)
        graph.node("FULLY_CONNECTED", (hidden, w2, b2), (scores,), second)
        graph.node("SOFTMAX", (scores,), (probabilities,), softmax)
        return graph.build({"pixels": pixels}, {"probabilities": probabilities})

    def tflite_int8(self) -> bytes:
        """The like with static int8 inside, calibrated on `calibration`; inputs and outputs stay FP32.

        Not dynamic-range int8: per-channel files of that kind load in tflite-runtime and answer wrong.
        """
        from litert_quantizer import quantizer, recipe
        from litert_quantizer.algorithm_manager import AlgorithmName
        from litert_quantizer.qtyping import TFLOperationName

        process = quantizer.Quantizer(self.tflite(), recipe.static_wi8_ai8())
        for end in (TFLOperationName.INPUT, TFLOperationName.OUTPUT):
            process.update_quantization_recipe(".*", end, algorithm_key=AlgorithmName.NO_QUANTIZE)
        # In one: from image to image the quantizer takes a moving average of the ranges, and clips.
        samples = [{"pixels": self.calibration}]
        quiet = io.StringIO()
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(quiet),
            contextlib.redirect_stderr(quiet),
        ):
            warnings.simplefilter("ignore", UserWarning)
            found = process.calibrate({"serving_default": samples}, num_threads=1)
            return bytes(process.quantize(found).quantized_model or b"")


def train_base() -> DigitsModel:
    """The first version: of the training images alone."""
    pixels, labels = training_images()
    weights = fit(pixels, labels, seed=SEED)
    return DigitsModel(weights, weights.accuracy(*held_out_images()), pixels[:CALIBRATION])
