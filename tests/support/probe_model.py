"""Writes edge_agent's bundled probe model: `python -m tests.support.probe_model`."""

from __future__ import annotations

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from edge_agent.delegates._probing import PROBE_MODEL
from gateway.demo.tflite import Graph


def build() -> bytes:
    """Image [1, 16, 16, 3] -> ten probabilities, and their running sum. Seven nodes."""
    rng = np.random.default_rng(3)

    def weights(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.3, shape).astype(np.float32)

    graph = Graph("probe")
    image = graph.tensor("image", (1, 16, 16, 3))
    edges = graph.tensor("edges", (1, 14, 14, 8))
    parts = graph.tensor("parts", (1, 12, 12, 8))
    pooled = graph.tensor("pooled", (1, 6, 6, 8))
    flat = graph.tensor("flat", (1, 288))
    scores = graph.tensor("scores", (1, 10))
    probabilities = graph.tensor("probabilities", (1, 10))
    total = graph.tensor("total", (1, 10))
    conv, depth = schema.Conv2DOptionsT(), schema.DepthwiseConv2DOptionsT()
    conv.padding = depth.padding = schema.Padding.VALID
    conv.strideH = conv.strideW = depth.strideH = depth.strideW = depth.depthMultiplier = 1
    conv.fusedActivationFunction = depth.fusedActivationFunction = schema.ActivationFunctionType.RELU
    pool = schema.Pool2DOptionsT()
    pool.padding, pool.strideH, pool.strideW = schema.Padding.VALID, 2, 2
    pool.filterHeight = pool.filterWidth = 2
    reshape = schema.ReshapeOptionsT()
    reshape.newShape = [1, 288]
    softmax = schema.SoftmaxOptionsT()
    softmax.beta = 1.0
    w = graph.constant
    graph.node("CONV_2D", (image, w("w1", weights(8, 3, 3, 3)), w("b1", weights(8))), (edges,), conv)
    graph.node(
        "DEPTHWISE_CONV_2D", (edges, w("w2", weights(1, 3, 3, 8)), w("b2", weights(8))), (parts,), depth
    )
    graph.node("MAX_POOL_2D", (parts,), (pooled,), pool)
    shape = w("shape", np.array([1, 288], np.int32))
    graph.node("RESHAPE", (pooled, shape), (flat,), reshape)
    dense = schema.FullyConnectedOptionsT()
    graph.node("FULLY_CONNECTED", (flat, w("w3", weights(10, 288)), w("b3", weights(10))), (scores,), dense)
    graph.node("SOFTMAX", (scores,), (probabilities,), softmax)
    axis = w("axis", np.array(1, np.int32))
    graph.node("CUMSUM", (probabilities, axis), (total,), schema.CumsumOptionsT())
    return graph.build({"image": image}, {"probabilities": probabilities, "total": total})


if __name__ == "__main__":
    PROBE_MODEL.write_bytes(build())
