"""Digits as a camera gives them that was turned and whose lens is dirty."""

from __future__ import annotations

import numpy as np

from gateway.demo.digits.network import Floats

SIDE = 8


def rotate_and_fade(pixels: Floats, degrees: float, contrast: float) -> Floats:
    """Turn each image counter-clockwise about its middle, then bring every value to `contrast` of itself.

    FP32 [N, 64] -> FP32 [N, 64], a copy; bilinear, and what comes from outside the image is 0. Raises
    ValueError for images of another form and for a contrast that is not from 0 to 1.
    """
    if pixels.ndim != 2 or pixels.shape[1] != SIDE * SIDE:
        raise ValueError(f"images are of shape [N, {SIDE * SIDE}], not {list(pixels.shape)}")
    if not 0 <= contrast <= 1:
        raise ValueError(f"contrast must be from 0 to 1, not {contrast}")
    angle, middle = np.deg2rad(degrees), (SIDE - 1) / 2
    down, across = np.mgrid[:SIDE, :SIDE] - middle
    # Where each pixel of the turned image comes from; rows count downwards.
    rows = np.cos(angle) * down + np.sin(angle) * across + middle
    columns = -np.sin(angle) * down + np.cos(angle) * across + middle
    top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    below, beside = rows - top, columns - left
    framed = np.pad(pixels.reshape(-1, SIDE, SIDE), ((0, 0), (1, 1), (1, 1)))
    turned = np.zeros((len(pixels), SIDE, SIDE))
    for row, column, share in (
        (top, left, (1 - below) * (1 - beside)),
        (top, left + 1, (1 - below) * beside),
        (top + 1, left, below * (1 - beside)),
        (top + 1, left + 1, below * beside),
    ):
        turned += share * framed[:, np.clip(row + 1, 0, SIDE + 1), np.clip(column + 1, 0, SIDE + 1)]
    return (turned * contrast).reshape(len(pixels), -1).astype(np.float32)
