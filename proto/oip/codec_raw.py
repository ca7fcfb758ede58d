"""Raw binary requests: a body that is the data of a model's one input, and nothing else."""

from __future__ import annotations

import math

from oip import tensors, wording
from oip.codec import RAW_INPUT_TAG, HttpInferContext, new_message
from oip.scan import varint_bytes
from oip.signature import Signature


def decode_raw(model: str, version: str, body: bytes, takes: Signature) -> tuple[bytes, HttpInferContext]:
    """A raw binary request as a serialized ModelInferRequest: `body` is the data of the one input that
    the model `takes`, of one row where it has a batch. Raises OipError MALFORMED, in Triton's words, where
    that leaves datatype or shape open.
    """
    if len(takes.inputs) != 1:
        raise wording.raw_inputs(model, len(takes.inputs))
    (spec,) = takes.inputs
    shape = [1, *spec.shape[1:]] if takes.max_batch else list(spec.shape)
    variable = [at for at, dim in enumerate(shape) if dim < 0]
    if len(variable) > 1 or spec.any_shape:
        raise wording.raw_shape(spec.name)
    size = tensors.SIZES.get(spec.datatype)
    raw = body
    if size is None:
        if variable or math.prod(shape) != 1:
            raise wording.raw_bytes(spec.name)
        raw = tensors.pack_bytes([body])
    elif variable:
        row = math.prod(dim for dim in shape if dim >= 0) * size
        shape[variable[0]] = len(body) // row if row else 0
    if size is not None and math.prod(shape) * size != len(body):
        raise wording.other_size(spec.name, model, math.prod(shape) * size, len(body))
    request = new_message("ModelInferRequest", model_name=model, model_version=version)
    request.inputs.add(name=spec.name, datatype=spec.datatype, shape=shape)
    parts = (request.SerializeToString(), RAW_INPUT_TAG, varint_bytes(len(raw)), raw)
    return b"".join(parts), HttpInferContext("", True, {})
