"""Whether two endpoints, or two releases, have the same model: what one takes and gives, held against the
other's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from oip.names import shown
from oip.signature import Signature, TensorSpec


def contradiction(reference: Signature, other: Signature) -> str | None:
    """Where `other` differs from the reference, in a few words; None where both can be the same model.

    Names, datatypes and ranks must be equal, and dimensions where neither is -1. An input that is
    optional may be missing from the other. Who names no inputs, no outputs or no shape says nothing of them.
    """
    if reference is other:
        return None
    return _differing("input", reference.inputs, other.inputs) or _differing(
        "output", reference.outputs, other.outputs
    )


def changed(standing: Signature, new: Signature) -> str | None:
    """Where a release takes or gives something else than the one that stands, in a few words; None where
    every request and answer of the one is one of the other. Dimensions must be equal, free ones too."""
    for kind, old, given in (
        ("input", standing.inputs, new.inputs),
        ("output", standing.outputs, new.outputs),
    ):
        theirs = {spec.name: spec for spec in given}
        for spec in old:
            found = theirs.pop(spec.name, None)
            if found is None:
                return f"it has no {kind} {shown(spec.name)}"
            if (found.datatype, found.shape, found.optional) != (spec.datatype, spec.shape, spec.optional):
                return f"its {kind} {shown(spec.name)} is {_text(found)}, not {_text(spec)}"
        for name in theirs:
            return f"its {kind} {shown(name)} is one too many"
    return None


def _differing(kind: str, reference: Sequence[TensorSpec], other: Sequence[TensorSpec]) -> str | None:
    if not reference or not other:
        return None
    theirs = {spec.name: spec for spec in other}
    for spec in reference:
        found = theirs.pop(spec.name, None)
        if found is None:
            if not spec.optional:
                return f"it has no {kind} {shown(spec.name)}"
        elif found.datatype != spec.datatype or not _fit(found, spec):
            return f"its {kind} {shown(spec.name)} is {_text(found)}, not {_text(spec)}"
    for spec in theirs.values():
        if not spec.optional:
            return f"its {kind} {shown(spec.name)} is one too many"
    return None


def _fit(one: TensorSpec, other: TensorSpec) -> bool:
    if one.any_shape or other.any_shape:
        return True
    return len(one.shape) == len(other.shape) and all(
        a == b or -1 in (a, b) for a, b in zip(one.shape, other.shape, strict=True)
    )


def _text(spec: TensorSpec) -> str:
    return f"{shown(spec.datatype)[1:-1]} [{_dims(spec.shape)}]"


def _dims(shape: Iterable[int]) -> str:
    dims = [str(dim) for dim in shape]
    return ",".join(dims if len(dims) <= 8 else [*dims[:8], "..."])
