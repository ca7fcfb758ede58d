"""Random ModelInferRequests for a signature: good ones, and good ones with a mistake or two."""

from __future__ import annotations

import math
import random
import struct
from typing import Any

from tritonclient.grpc import service_pb2

from oip.signature import Signature
from oip.tensors import SIZES

Message = Any
"""A ModelInferRequest."""

_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_LARGEST = 5
"""Of a dimension that the model leaves open."""


def good_request(rng: random.Random, model: str, signature: Signature) -> Message:
    """A request that the model answers; its data are small numbers, or decimal strings."""
    message = service_pb2.ModelInferRequest(model_name=model)
    batch = rng.randint(1, signature.max_batch or _LARGEST)
    typed = rng.random() < 0.4
    for spec in signature.inputs:
        if spec.optional and rng.random() < 0.5:
            continue
        shape = [rng.randint(1, _LARGEST) if dim < 0 else dim for dim in spec.shape]
        if signature.max_batch:
            shape[0] = batch
        tensor = message.inputs.add(name=spec.name, datatype=spec.datatype, shape=shape)
        if typed and spec.datatype in _CONTENTS:
            _fill(rng, tensor, spec.datatype, math.prod(shape))
        else:
            typed = False
    if not typed:
        _raws(rng, message)
    if rng.random() < 0.3:
        names = [spec.name for spec in signature.outputs]
        for name in rng.sample(names, rng.randint(1, len(names))):
            message.outputs.add(name=name)
    return message


def odd_request(rng: random.Random, model: str, signature: Signature) -> Message:
    """A good request that was tampered with; it may still be good."""
    message = good_request(rng, model, signature)
    for _ in range(rng.choice((1, 1, 1, 2))):
        rng.choice(_TAMPERINGS)(rng, message, signature)
    return message


def _values(rng: random.Random, datatype: str, count: int) -> list[Any]:
    if datatype == "BYTES":
        return [str(rng.randint(0, 99)).encode() for _ in range(count)]
    if datatype == "BOOL":
        return [rng.random() < 0.5 for _ in range(count)]
    return [rng.randint(0, 99) for _ in range(count)]


def _fill(rng: random.Random, tensor: Message, datatype: str, count: int) -> None:
    tensor.contents.SetInParent()
    getattr(tensor.contents, _CONTENTS[datatype]).extend(_values(rng, datatype, count))


def _raw(rng: random.Random, datatype: str, count: int) -> bytes:
    size = SIZES.get(datatype, 4)
    if size is None:
        items = _values(rng, "BYTES", count)
        return b"".join(struct.pack("<I", len(item)) + item for item in items)
    return bytes(rng.randint(0, 1) if datatype == "BOOL" else 0 for _ in range(count * size))


def _raws(rng: random.Random, message: Message) -> None:
    """Raw data that fits the inputs as they are now, in place of typed contents."""
    del message.raw_input_contents[:]
    for tensor in message.inputs:
        tensor.ClearField("contents")
        count = math.prod(max(dim, 0) for dim in tensor.shape)
        message.raw_input_contents.append(_raw(rng, tensor.datatype, min(count, 4096)))


def _drop_input(rng: random.Random, message: Message, signature: Signature) -> None:
    if message.inputs:
        at = rng.randrange(len(message.inputs))
        del message.inputs[at]
        if rng.random() < 0.8 and at < len(message.raw_input_contents):
            del message.raw_input_contents[at]


def _rename_input(rng: random.Random, message: Message, signature: Signature) -> None:
    if message.inputs:
        rng.choice(message.inputs).name = rng.choice(["", "INPUT9", signature.inputs[0].name.lower()])


def _repeat_input(rng: random.Random, message: Message, signature: Signature) -> None:
    if message.inputs:
        message.inputs.add().CopyFrom(rng.choice(message.inputs))
        _raws(rng, message)


def _add_input(rng: random.Random, message: Message, signature: Signature) -> None:
    message.inputs.add(name="INPUT9", datatype="INT32", shape=[1])
    _raws(rng, message)


def _change_datatype(rng: random.Random, message: Message, signature: Signature) -> None:
    if message.inputs:
        tensor = rng.choice(message.inputs)
        tensor.datatype = rng.choice([*SIZES, "STRING", "int32", "", "TYPE_INT32"])
        if rng.random() < 0.8:
            _raws(rng, message)


def _change_shape(rng: random.Random, message: Message, signature: Signature) -> None:
    if not message.inputs:
        return
    tensor = rng.choice(message.inputs)
    shape = list(tensor.shape)
    match rng.randrange(6):
        case 0:
            shape.insert(rng.randint(0, len(shape)), rng.choice([1, 2]))
        case 1:
            shape = shape[1:]
        case 2:
            shape.reverse()
        case 3:
            shape = []
        case _:
            if shape:
                shape[rng.randrange(len(shape))] = rng.choice([0, 1, 2, 8, 9, 15, 16, 17, -1])
    del tensor.shape[:]
    tensor.shape.extend(shape)
    if rng.random() < 0.8:
        _raws(rng, message)


def _change_batch(rng: random.Random, message: Message, signature: Signature) -> None:
    size = rng.choice([0, 1, 3, 8, 9])
    for tensor in message.inputs:
        if tensor.shape and rng.random() < 0.9:
            tensor.shape[0] = size
    _raws(rng, message)


def _change_size(rng: random.Random, message: Message, signature: Signature) -> None:
    if message.raw_input_contents:
        at = rng.randrange(len(message.raw_input_contents))
        raw = message.raw_input_contents[at]
        message.raw_input_contents[at] = rng.choice([raw[:-1], raw[:-4], raw + b"\0", raw + bytes(4), b""])


def _change_bytes(rng: random.Random, message: Message, signature: Signature) -> None:
    """Tampers with one byte, which in BYTES data may be a length."""
    if message.raw_input_contents:
        at = rng.randrange(len(message.raw_input_contents))
        raw = bytearray(message.raw_input_contents[at])
        if raw and signature.inputs[0].datatype == "BYTES":
            raw[rng.randrange(len(raw))] = rng.choice([0, 1, 2, 5, 255])
        message.raw_input_contents[at] = bytes(raw)


def _change_contents(rng: random.Random, message: Message, signature: Signature) -> None:
    if message.inputs:
        tensor = rng.choice(message.inputs)
        _fill(rng, tensor, rng.choice(list(_CONTENTS)), rng.choice([0, 1, 15, 16, 17]))
        if rng.random() < 0.5:
            del message.raw_input_contents[:]


def _change_raws(rng: random.Random, message: Message, signature: Signature) -> None:
    if message.raw_input_contents and rng.random() < 0.7:
        del message.raw_input_contents[rng.randrange(len(message.raw_input_contents)) :]
    else:
        message.raw_input_contents.append(b"")


def _change_outputs(rng: random.Random, message: Message, signature: Signature) -> None:
    message.outputs.add(name=rng.choice([signature.outputs[0].name, "", "OUTPUT9"]))


def _change_parameters(rng: random.Random, message: Message, signature: Signature) -> None:
    key = rng.choice(["timeout", "priority", "sequence_start", "triton_x", "x"])
    kind, value = rng.choice(
        [
            ("bool_param", True),
            ("int64_param", 0),
            ("uint64_param", 0),
            ("string_param", "1"),
            ("double_param", 1.0),
        ]
    )
    setattr(message.parameters[key], kind, value)


_TAMPERINGS = (
    _drop_input,
    _rename_input,
    _repeat_input,
    _add_input,
    _change_datatype,
    _change_shape,
    _change_shape,
    _change_batch,
    _change_size,
    _change_bytes,
    _change_contents,
    _change_raws,
    _change_outputs,
    _change_parameters,
)
