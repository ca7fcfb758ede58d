"""Mistakes that a caller of the digits model can make, each with the answer that every route gives.

The model takes `pixels`, FP32 [N, 64], and gives `probabilities`, FP32 [N, 10]. A mistake is written for
as many of the wires as can make it: gRPC, HTTP with JSON alone, HTTP with binary tensor data. What
is answered is the same on all of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from oip.reasons import Reason

MODEL = "digits"
_VALUES = 64
_RAW = np.full(_VALUES, 0.5, "<f4").tobytes()
_LIST: list[object] = [0.5] * _VALUES

Message = Any
"""A ModelInferRequest."""


@dataclass(frozen=True)
class HttpRequest:
    """Headers with lower-case names and a body, for POST /v2/models/MODEL/infer."""

    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Mistake:
    """`grpc` is a serialized ModelInferRequest, `json` and `binary` are HTTP; None on a wire that cannot
    make the mistake."""

    name: str
    message: str
    reason: Reason = Reason.MALFORMED
    grpc: bytes | None = None
    json: HttpRequest | None = None
    binary: HttpRequest | None = None


@dataclass
class _Input:
    """`raw` and `data` are the same values; None: the wire that would send it leaves them out."""

    name: str = "pixels"
    datatype: str = "FP32"
    shape: Sequence[int] = (1, _VALUES)
    raw: bytes = _RAW
    data: Sequence[object] = field(default_factory=lambda: list(_LIST))
    parameters: Mapping[str, object] = field(default_factory=dict)


_KIND = {bool: "bool_param", int: "int64_param", str: "string_param"}


def grpc_request(
    *inputs: _Input, outputs: Sequence[str] = (), parameters: Mapping[str, object] | None = None
) -> bytes:
    """A ModelInferRequest with raw_input_contents; without inputs given, a good one."""
    return _message(inputs or (_Input(),), outputs, parameters or {}).SerializeToString()


def json_request(
    *inputs: _Input, outputs: Sequence[str] = (), parameters: Mapping[str, object] | None = None
) -> HttpRequest:
    """The same over HTTP with JSON alone."""
    entries = [_entry(given) | {"data": list(given.data)} for given in inputs or (_Input(),)]
    return _http({"inputs": entries, **_rest(outputs, parameters)})


def binary_request(
    *inputs: _Input, outputs: Sequence[str] = (), parameters: Mapping[str, object] | None = None
) -> HttpRequest:
    """The same over HTTP with binary tensor data."""
    entries: list[dict[str, Any]] = []
    for given in inputs or (_Input(),):
        entry = _entry(given)
        entry.setdefault("parameters", {})["binary_data_size"] = len(given.raw)
        entries.append(entry)
    raw = b"".join(given.raw for given in inputs or (_Input(),))
    return _http({"inputs": entries, **_rest(outputs, parameters)}, raw)


def _message(inputs: Sequence[_Input], outputs: Sequence[str], parameters: Mapping[str, object]) -> Message:
    message = service_pb2.ModelInferRequest(model_name=MODEL)
    for given in inputs:
        tensor = message.inputs.add(name=given.name, datatype=given.datatype, shape=given.shape)
        for key, value in given.parameters.items():
            setattr(tensor.parameters[key], _KIND[type(value)], value)
        message.raw_input_contents.append(given.raw)
    for name in outputs:
        message.outputs.add(name=name)
    for key, value in parameters.items():
        setattr(message.parameters[key], _KIND[type(value)], value)
    return message


def _entry(given: _Input) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": given.name, "datatype": given.datatype, "shape": list(given.shape)}
    if given.parameters:
        entry["parameters"] = dict(given.parameters)
    return entry


def _rest(outputs: Sequence[str], parameters: Mapping[str, object] | None) -> dict[str, object]:
    rest: dict[str, object] = {}
    if outputs:
        rest["outputs"] = [{"name": name} for name in outputs]
    if parameters:
        rest["parameters"] = dict(parameters)
    return rest


def _http(document: object, raw: bytes | None = None) -> HttpRequest:
    text = json.dumps(document).encode()
    if raw is None:
        return HttpRequest({"content-type": "application/json"}, text)
    headers = {
        "content-type": "application/octet-stream",
        "inference-header-content-length": str(len(text)),
    }
    return HttpRequest(headers, text + raw)


def _everywhere(
    name: str,
    message: str,
    *inputs: _Input,
    reason: Reason = Reason.MALFORMED,
    outputs: Sequence[str] = (),
    parameters: Mapping[str, object] | None = None,
) -> Mistake:
    return Mistake(
        name,
        message,
        reason,
        grpc_request(*inputs, outputs=outputs, parameters=parameters),
        json_request(*inputs, outputs=outputs, parameters=parameters),
        binary_request(*inputs, outputs=outputs, parameters=parameters),
    )


def _shape(name: str, *shape: int) -> Mistake:
    text = ",".join(map(str, shape))
    return _everywhere(
        name,
        f"unexpected shape for input 'pixels' for model 'digits'. Expected [-1,64], got [{text}].",
        _sized(shape),
    )


def _sized(shape: Sequence[int], datatype: str = "FP32", width: int = 4) -> _Input:
    """An input whose data fits its shape, all zeros."""
    count = int(np.prod(shape))
    return _Input(datatype=datatype, shape=shape, raw=bytes(count * width), data=[0] * count)


def _unknown_datatype(name: str, datatype: str) -> Mistake:
    return _everywhere(
        name,
        f"Input 'pixels' has the unknown datatype '{datatype}'; the datatypes are BOOL, UINT8, UINT16, "
        "UINT32, UINT64, INT8, INT16, INT32, INT64, FP32, FP64, FP16, BF16, BYTES.",
        _Input(datatype=datatype),
    )


def _no_inputs() -> Mistake:
    return Mistake(
        "no inputs",
        "expected 1 inputs but got 0 inputs for model 'digits'. Got input(s) [], but missing required "
        "input(s) ['pixels']. Please provide all required input(s).",
        grpc=_message((), (), {}).SerializeToString(),
        json=_http({"inputs": []}),
        binary=_http({"inputs": []}, b""),
    )


def _classification() -> Mistake:
    message = _message((_Input(),), ["probabilities"], {})
    message.outputs[0].parameters["classification"].int64_param = 3
    outputs = [{"name": "probabilities", "parameters": {"classification": 3}}]
    return Mistake(
        "classification",
        "Output 'probabilities' asks for classification, which is not served: ask for the tensor.",
        Reason.NOT_SERVED,
        grpc=message.SerializeToString(),
        json=_http({"inputs": [_entry(_Input()) | {"data": _LIST}], "outputs": outputs}),
    )


def _typed(member: str, values: Sequence[object], *raws: bytes) -> bytes:
    """A ModelInferRequest with typed contents."""
    message = service_pb2.ModelInferRequest(model_name=MODEL)
    tensor = message.inputs.add(name="pixels", datatype="FP32", shape=[1, _VALUES])
    getattr(tensor.contents, member).extend(values)
    message.raw_input_contents.extend(raws)
    return message.SerializeToString()


def _grpc_only() -> list[Mistake]:
    no_raw = _message((_Input(),), (), {})
    del no_raw.raw_input_contents[:]
    surplus = _message((_Input(),), (), {})
    surplus.raw_input_contents.append(b"")
    unsigned = _message((_Input(),), (), {})
    unsigned.parameters["timeout"].uint64_param = 5
    return [
        Mistake(
            "data left out of the message",
            "unable to find data for input tensor 'pixels' for model 'digits' in request.",
            grpc=no_raw.SerializeToString(),
        ),
        Mistake(
            "more data than inputs",
            "The ModelInferRequest has 2 raw_input_contents, but 1 inputs.",
            grpc=surplus.SerializeToString(),
        ),
        Mistake(
            "raw and typed contents",
            "contents field must not be specified when using raw_input_contents for 'pixels' "
            "for model 'digits'",
            grpc=_typed("fp32_contents", [0.5] * _VALUES, _RAW),
        ),
        Mistake(
            "typed contents of another type",
            "unexpected explicit tensor data for input tensor 'pixels' for model 'digits' of type 'FP64', "
            "expected datatype 'FP32'",
            grpc=_typed("fp64_contents", [0.5] * _VALUES),
        ),
        Mistake(
            "too few typed contents",
            "input byte size mismatch for input 'pixels' for model 'digits'. Expected 256, got 252",
            grpc=_typed("fp32_contents", [0.5] * (_VALUES - 1)),
        ),
        Mistake(
            "a timeout that is unsigned",
            "invalid value type for 'timeout' parameter, expected int64_param.",
            grpc=unsigned.SerializeToString(),
        ),
        Mistake(
            "a cut message",
            "The ModelInferRequest is not well-formed protobuf: it ends inside a field.",
            grpc=grpc_request()[:-1],
        ),
    ]


def _http_only() -> list[Mistake]:
    binary = binary_request()
    return [
        Mistake(
            "63 numbers",
            "Input 'pixels' has 63 values of data, but its shape [1, 64] takes 64.",
            json=json_request(_Input(data=_LIST[1:])),
        ),
        Mistake(
            "65 numbers",
            "Input 'pixels' has 65 values of data, but its shape [1, 64] takes 64.",
            json=json_request(_Input(data=[*_LIST, 0.5])),
        ),
        Mistake(
            "ragged rows",
            "Input 'pixels' has data that is neither flat nor nested as its shape [2, 64] says.",
            json=json_request(_Input(shape=(2, 64), data=[_LIST, _LIST[1:]])),
        ),
        Mistake(
            "a word among the numbers",
            "Input 'pixels' needs a number as value 1 of its data.",
            json=json_request(_Input(data=[0.5, "0.5", *_LIST[2:]])),
        ),
        Mistake(
            "a number beyond the datatype",
            "Input 'pixels' has value 63 of its data beyond the range of FP32.",
            json=json_request(_Input(data=[*_LIST[1:], 1e39])),
        ),
        Mistake(
            "no data",
            "Input 'pixels' has neither data nor the parameter binary_data_size.",
            json=_http({"inputs": [_entry(_Input())]}),
            binary=_http({"inputs": [_entry(_Input())]}, b""),
        ),
        Mistake(
            "data that is not announced",
            "The request has 4 bytes of binary data beyond its inputs' 256.",
            binary=HttpRequest(binary.headers, binary.body + bytes(4)),
        ),
        Mistake(
            "data that is not there",
            "Input 'pixels' has binary_data_size 256, but 252 bytes of data are left.",
            binary=HttpRequest(binary.headers, binary.body[:-4]),
        ),
        Mistake(
            "a member twice",
            "The JSON has the member 'inputs' twice in one object.",
            json=HttpRequest({}, b'{"inputs":[],"inputs":[]}'),
        ),
    ]


def _size(name: str, size: int) -> Mistake:
    given = _Input(raw=bytes(size))
    return Mistake(
        name,
        f"input byte size mismatch for input 'pixels' for model 'digits'. Expected 256, got {size}",
        grpc=grpc_request(given),
        binary=binary_request(given),
    )


MISTAKES: tuple[Mistake, ...] = (
    _no_inputs(),
    _everywhere(
        "another name", "unexpected inference input 'pixel' for model 'digits'", _Input(name="pixel")
    ),
    _everywhere(
        "one input too many",
        "unexpected inference input 'labels' for model 'digits'",
        _Input(),
        _Input(name="labels"),
    ),
    _everywhere("an input twice", "input 'pixels' already exists in request", _Input(), _Input()),
    _everywhere(
        "an unknown output",
        "unexpected inference output 'scores' for model 'digits'",
        outputs=["probabilities", "scores"],
    ),
    _everywhere(
        "an output twice",
        "The request names output 'probabilities' twice.",
        outputs=["probabilities", "probabilities"],
    ),
    _everywhere(
        "a wider datatype",
        "inference input 'pixels' data-type is 'FP64', but model 'digits' expects 'FP32'",
        _sized((1, 64), "FP64", 8),
    ),
    _everywhere(
        "a datatype of the same width",
        "inference input 'pixels' data-type is 'INT32', but model 'digits' expects 'FP32'",
        _sized((1, 64), "INT32"),
    ),
    _unknown_datatype("an unknown datatype", "STRING"),
    _unknown_datatype("a datatype in small letters", "fp32"),
    _unknown_datatype("no datatype", ""),
    _shape("a dimension missing", 64),
    _shape("a dimension too many", 1, 8, 8),
    _shape("another dimension", 1, 63),
    _shape("dimensions swapped", 64, 1),
    _shape("no dimensions"),
    _everywhere(
        "a negative dimension",
        "Input 'pixels' needs an integer of 0 or more as dimension 0 of its shape.",
        _Input(shape=(-1, 64)),
    ),
    _everywhere(
        "65 dimensions",
        "Input 'pixels' has a shape of 65 dimensions; at most 64 are served.",
        _Input(shape=(1,) * 65),
    ),
    _everywhere(
        "dimensions beyond counting",
        "Input 'pixels' has a shape of more elements than 63 bits can count.",
        _Input(shape=(2**62, 64)),
    ),
    _size("data too short", 252),
    _size("data too long", 260),
    _size("empty data", 0),
    _classification(),
    _everywhere(
        "shared memory",
        "Parameter 'shared_memory_region' asks for shared memory, which a remote gateway cannot honour: "
        "send the tensor's data in the request.",
        _Input(parameters={"shared_memory_region": "r"}),
        reason=Reason.NOT_SERVED,
    ),
    _everywhere(
        "an option as parameter",
        "Parameter 'tidegate_privacy' is a request option: send it as the header (gRPC: metadata) "
        "tidegate-privacy.",
        reason=Reason.BAD_OPTION,
        parameters={"tidegate_privacy": "public"},
    ),
    *_grpc_only(),
    *_http_only(),
)
