"""What a model takes and gives: the part of its metadata and configuration that requests are held against."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output. `shape` holds every dimension, the batch's included; -1 is any size.

    `optional`: an input that a request may leave out. `any_shape`: the shape is not known, or is not
    what its data takes; neither shape nor size of a request is held against it.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    any_shape: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """`max_batch` above 0: the first dimension of every tensor is the batch, of at most so many; 0: the
    model has no batch of the server's making. `decoupled`: a request is answered by any number of
    responses, so only a stream can carry them. `stateful`: it keeps state from one step of a sequence to the
    next."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch: int = 0
    decoupled: bool = False
    stateful: bool = False
