"""The demo's model: a small network that reads scikit-learn's 8x8 digits.

It takes `pixels`, FP32 [N, 64], each 0..1, and gives `probabilities`, FP32 [N, 10].

    data        images to train on, and images that no training ever sees
    drift       the same, turned and faded
    network     the network and how it is fitted
    model       its files
    golden      what they must answer
    train       the trainer of its updates, for `train.entrypoint`
    repository  a Triton repository with it
"""

from __future__ import annotations

from gateway.demo.digits.data import HELD_OUT, sample
from gateway.demo.digits.model import DigitsModel, train_base
from gateway.demo.digits.repository import build_repository

__all__ = ["HELD_OUT", "DigitsModel", "build_repository", "sample", "train_base"]
