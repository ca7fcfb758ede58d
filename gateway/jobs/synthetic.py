"""A made-up request for a model that nothing is known of but its metadata."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from edgewire.allowed import AllowedRule, AllowedSet
from gateway.core.place import Place, Tier
from gateway.core.ports import Permit

_pb: Any = service_pb2  # its classes are made at run time

_INTEGERS = {f"{sign}INT{bits}": f"{sign.lower()}int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}
_FLOATS = {"FP16": "float16", "FP32": "float32", "FP64": "float64"}


def synthetic_request(metadata: bytes, rng: np.random.Generator, *, version: str = "") -> bytes:
    """A serialized ModelInferRequest for the model of a serialized ModelMetadataResponse.

    Every free dimension is 1. Floats are in [0, 1), integers 0 to 9, BYTES short decimal texts: they
    suit most models and say nothing about anyone. `version` "" lets the endpoint choose. Raises
    ValueError for bytes that are no metadata and for a datatype that is none of OIP's.
    """
    try:
        model = _pb.ModelMetadataResponse.FromString(metadata)
    except DecodeError:
        raise ValueError("the endpoint's model metadata is not a ModelMetadataResponse") from None
    request = _pb.ModelInferRequest(model_name=model.name, model_version=version)
    for tensor in model.inputs:
        shape = [dimension if dimension >= 0 else 1 for dimension in tensor.shape]
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape)
        request.raw_input_contents.append(_raw(tensor.name, tensor.datatype, int(np.prod(shape)), rng))
    return request.SerializeToString()


def _raw(name: str, datatype: str, count: int, rng: np.random.Generator) -> bytes:
    if datatype in _INTEGERS:
        return rng.integers(0, 10, count).astype(_INTEGERS[datatype]).tobytes()
    if datatype in _FLOATS:
        return rng.random(count).astype(_FLOATS[datatype]).tobytes()
    if datatype == "BF16":
        # The upper half of an FP32, little-endian.
        return (rng.random(count).astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    if datatype == "BOOL":
        return rng.integers(0, 2, count).astype("uint8").tobytes()
    if datatype == "BYTES":
        texts = [str(digit).encode() for digit in rng.integers(0, 10, count)]
        return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    raise ValueError(f"input {name!r} has datatype {datatype!r}, which no request can be made up for")


def synthetic_permit(place: Place | None, gateway: str) -> Permit:
    """Leave for made-up data, which may go anywhere. `place` None: to any device of a group."""
    anywhere = AllowedSet((AllowedRule(tiers=frozenset(Tier)),))
    return Permit(anywhere, place or Place(Tier.DEVICE), (gateway,))
