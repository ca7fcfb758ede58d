"""scikit-learn's 8x8 digits, split once and for all into images to train on and images held out."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gateway.demo.digits.network import Floats, Labels

SEED = 7
HELD_OUT = 360
"""Images that training never sees, of 1797."""


@cache
def _split() -> tuple[Floats, Labels, Floats, Labels]:
    """Training images and labels, then the held-out ones, in one seeded order."""
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    images, labels = found.data, found.target
    order = np.random.default_rng(SEED).permutation(len(images))
    pixels, labels = (images[order] / 16).astype(np.float32), labels[order].astype(np.int64)
    return pixels[HELD_OUT:], labels[HELD_OUT:], pixels[:HELD_OUT], labels[:HELD_OUT]


def training_images() -> tuple[Floats, Labels]:
    """FP32 [1437, 64], each 0..1, and what they show; none of them is ever held out."""
    pixels, labels, _, _ = _split()
    return pixels.copy(), labels.copy()


def held_out_images() -> tuple[Floats, Labels]:
    """FP32 [HELD_OUT, 64], each 0..1, and what they show."""
    return sample(HELD_OUT)


def sample(count: int) -> tuple[Floats, Labels]:
    """The first `count` (at most HELD_OUT) held-out images, FP32 [count, 64], each 0..1, and what
    they show. Raises ValueError for more than there are."""
    if not 0 < count <= HELD_OUT:
        raise ValueError(f"count must be from 1 to {HELD_OUT}, not {count}")
    _, _, pixels, labels = _split()
    return pixels[:count].copy(), labels[:count].copy()
