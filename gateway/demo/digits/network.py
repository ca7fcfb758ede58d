"""The network that reads digits: 64 -> HIDDEN (ReLU) -> 10 (softmax), fitted with numpy alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]

HIDDEN = 64
EPOCHS = 60
BATCH = 64
RATE = 3e-3


class Weights(NamedTuple):
    """FP32 [64, HIDDEN], [HIDDEN], [HIDDEN, 10], [10]."""

    w1: Floats
    b1: Floats
    w2: Floats
    b2: Floats

    def predict(self, pixels: Floats) -> Floats:
        """FP32 [N, 64] -> FP32 [N, 10]; rows sum to 1."""
        return _softmax(np.maximum(pixels @ self.w1 + self.b1, 0) @ self.w2 + self.b2)

    def accuracy(self, pixels: Floats, labels: Labels) -> float:
        """The share of images that are read right."""
        return float((self.predict(pixels).argmax(axis=1) == labels).mean())


def fit(
    pixels: Floats,
    labels: Labels,
    *,
    seed: int,
    epochs: int = EPOCHS,
    importance: Floats | None = None,
    smoothing: float = 0.0,
    decay: float = 0.0,
    told: Callable[[int], None] = lambda done: None,
) -> Weights:
    """Fit a new network with Adam on cross-entropy; the same seed gives the same weights on one machine.

    `importance`, FP32 [N], says how much each image counts beside the others; None: all the same.
    `smoothing`: the share of the truth that is spread over all digits. `decay`: by how much of the rate
    weights shrink at each step. `told` hears how many epochs are over.
    """
    rng = np.random.default_rng(seed)
    weights = Weights(
        rng.normal(0, np.sqrt(2 / 64), (64, HIDDEN)).astype(np.float32),
        np.zeros(HIDDEN, np.float32),
        rng.normal(0, np.sqrt(2 / HIDDEN), (HIDDEN, 10)).astype(np.float32),
        np.zeros(10, np.float32),
    )
    counts = np.ones(len(pixels), np.float32) if importance is None else importance
    truth = np.full((len(labels), 10), smoothing / 10, np.float32)
    truth[np.arange(len(labels)), labels] += 1 - smoothing
    first = [np.zeros_like(w) for w in weights]
    second = [np.zeros_like(w) for w in weights]
    step = 0
    for epoch in range(1, epochs + 1):
        order = rng.permutation(len(pixels))
        for begin in range(0, len(order), BATCH):
            chosen = order[begin : begin + BATCH]
            step += 1
            rate = RATE * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            gradients = _gradients(weights, pixels[chosen], truth[chosen], counts[chosen])
            for w, g, m, v in zip(weights, gradients, first, second, strict=True):
                m += 0.1 * (g - m)
                v += 0.001 * (g * g - v)
                w -= (rate * m / (np.sqrt(v) + 1e-8) + decay * RATE * w).astype(np.float32)
        told(epoch)
    return weights


def _gradients(weights: Weights, pixels: Floats, truth: Floats, counts: Floats) -> list[Floats]:
    """Of the weighted mean cross-entropy, in the order of the weights."""
    w1, b1, w2, b2 = weights
    active = np.maximum(pixels @ w1 + b1, 0)
    error = _softmax(active @ w2 + b2) - truth
    error *= (counts / counts.sum())[:, None]
    back = (error @ w2.T) * (active > 0)
    return [pixels.T @ back, back.sum(axis=0), active.T @ error, error.sum(axis=0)]


def _softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
