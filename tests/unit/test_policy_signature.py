from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.policy.signature import contradiction
from oip.signature import Signature, TensorSpec

X = TensorSpec("x", "FP32", (-1, 64))
MASK = TensorSpec("mask", "BOOL", (-1,), optional=True)
Y = TensorSpec("y", "INT64", (-1, 1))
REFERENCE = Signature((X,), (Y,))


def of(*inputs: TensorSpec, outputs: tuple[TensorSpec, ...] = (Y,)) -> Signature:
    return Signature(inputs, outputs)


@pytest.mark.parametrize(
    ("reference", "other", "said"),
    [
        (REFERENCE, REFERENCE, None),
        (REFERENCE, replace(REFERENCE, max_batch=8), None),
        (REFERENCE, of(replace(X, shape=(8, 64))), None),
        (REFERENCE, of(replace(X, shape=(-1, -1))), None),
        (of(replace(X, shape=(8, 64))), of(X), None),
        (REFERENCE, of(X, MASK), None),
        (of(X, MASK), REFERENCE, None),
        (of(X, Y), of(Y, X), None),
        (REFERENCE, of(replace(X, name="z")), "it has no input 'x'"),
        (REFERENCE, of(X, replace(MASK, optional=False)), "its input 'mask' is one too many"),
        (REFERENCE, of(replace(X, datatype="FP16")), "its input 'x' is FP16 [-1,64], not FP32 [-1,64]"),
        (REFERENCE, of(replace(X, shape=(64,))), "its input 'x' is FP32 [64], not FP32 [-1,64]"),
        (REFERENCE, of(replace(X, shape=(-1, 65))), "its input 'x' is FP32 [-1,65], not FP32 [-1,64]"),
        (of(X, MASK), of(X, replace(MASK, datatype="UINT8")), "its input 'mask' is UINT8 [-1], not BOOL [-1]"),
        (of(X, outputs=(X, Y)), of(X, outputs=(X,)), "it has no output 'y'"),
        (REFERENCE, of(X, outputs=()), None),
        (REFERENCE, of(), None),
        (of(), REFERENCE, None),
        (REFERENCE, of(replace(X, shape=(), any_shape=True)), None),
        (REFERENCE, of(X, outputs=(Y, X)), "its output 'x' is one too many"),
        (REFERENCE, of(X, outputs=(replace(Y, shape=(-1, 2)),)), "its output 'y' is INT64 [-1,2], not INT64 [-1,1]"),
        (
            of(replace(X, shape=(1,) * 20)),
            of(replace(X, shape=())),
            "its input 'x' is FP32 [], not FP32 [1,1,1,1,1,1,1,1,...]",
        ),
    ],
)  # fmt: skip
def test_what_contradicts(reference: Signature, other: Signature, said: str | None) -> None:
    assert contradiction(reference, other) == said


def test_a_name_from_an_endpoint_is_cut_and_escaped() -> None:
    said = contradiction(of(TensorSpec("\n" * 500, "FP32", ())), of(X))
    assert said is not None
    assert len(said) < 200
    assert "\n" not in said
