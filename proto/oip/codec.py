"""Between HTTP's JSON and protobuf: the one module that knows tritonclient's stubs.

`decode_infer` (`codec_raw.decode_raw` for a body without JSON) and `encode_infer` are one HTTP inference there and
back. The rest answers what is not
an inference: metadata, configuration and statistics as JSON in the form of Triton's own HTTP
server (snake_case, every number a number, enums by name, zeros and empty lists shown), and the
serialized gRPC messages that frontends answer with, so that they need no stubs. `signature_of` reads a
model's signature out of its metadata and configuration; `metadata_of` and `config_of` write it there.

Whatever is wrong with an endpoint's bytes is ENDPOINT_FAILED, never the caller's fault.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from tritonclient.grpc import service_pb2

from oip import tensors
from oip.counters import NEVER, Counters, Duration
from oip.errors import OipError
from oip.generate import parse_generate
from oip.http_request import HEADER_LENGTH, HttpInfer, Parameter, json_length, parse_infer
from oip.names import shown
from oip.reasons import Reason
from oip.scan import varint_bytes
from oip.signature import Signature, TensorSpec

# The generated module makes its classes at run time, so a type checker cannot see them.
_pb: Any = service_pb2

Headers = tuple[tuple[str, str], ...]
"""Lower-case names and values."""

FAST_JSON_BYTES = 2**16
"""JSON up to this size, and tensors up to it written as JSON, take milliseconds."""
FAST_BYTES_BYTES = 2**20
"""The like for BYTES as binary data."""

RAW_INPUT_TAG = bytes((7 << 3 | 2,))
"""Of the field raw_input_contents."""
_INT_CONTENTS = {
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "BOOL": "bool_contents",
}


@dataclass(frozen=True, slots=True)
class HttpInferContext:
    """What of an HTTP request its answer depends on.

    `binary_outputs` holds the outputs that are asked for by name, and whether as binary data;
    `binary_default` holds for all others.
    """

    id: str
    binary_default: bool
    binary_outputs: Mapping[str, bool]


def decodes_fast(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether `decode_infer` takes milliseconds only: little JSON, and no megabytes of BYTES, whose
    elements are checked one by one. Other binary data is copied once."""
    text = json_length(headers, len(body))
    if text > FAST_JSON_BYTES:
        return False
    return len(body) <= FAST_BYTES_BYTES or not _may_name_bytes(body[:text])


def encodes_fast(context: HttpInferContext, response: bytes) -> bool:
    """The like for `encode_infer`."""
    if len(response) <= FAST_JSON_BYTES:
        return True
    binary = context.binary_outputs
    if not (all(binary.values()) if binary else context.binary_default):
        return False
    return len(response) <= FAST_BYTES_BYTES or b"BYTES" not in response


def _may_name_bytes(text: bytes) -> bool:
    """Whether JSON names the datatype BYTES, perhaps in escapes."""
    return b"BYTES" in text or b"\\u" in text


def decode_infer(
    model: str, version: str, headers: Mapping[str, str], body: bytes, max_bytes: int | None = None
) -> tuple[bytes, HttpInferContext]:
    """An HTTP inference as a serialized ModelInferRequest, every input in raw_input_contents.

    `model` and `version` ("" for none) come from the URL, decoded. `headers`, `body` and `max_bytes`
    are those of `http_request.parse_infer`, which also says what is refused. Raises OipError.
    """
    asked = parse_infer(headers, body, max_bytes, model)
    default = asked.binary_output
    outputs = {w.name: default if w.binary is None else w.binary for w in asked.outputs}
    return _message(model, version, asked), HttpInferContext(asked.id, default, outputs)


def decode_generate(
    model: str, version: str, body: bytes, signature: Signature, max_bytes: int | None = None
) -> tuple[bytes, str]:
    """The body of a generate request as a serialized ModelInferRequest, and its id; see `oip.generate`.
    Arguments are as for `decode_infer`. Raises OipError."""
    asked = parse_generate(body, signature, max_bytes, model)
    return _message(model, version, asked), asked.id


def encode_generate(request_id: str, response: bytes) -> bytes:
    """A serialized ModelInferResponse as the JSON object of a generate answer: each output under its name,
    a single element as itself. The id is the request's own. Raises OipError as `encode_infer` does."""
    answer = _parse("ModelInferResponse", response)
    document: dict[str, object] = {}
    for tensor, raw in _raw_outputs(answer):
        where = f"Output {shown(tensor.name)}"
        data = tensors.to_json(tensor.datatype, list(tensor.shape), raw, where)
        document[tensor.name] = data[0] if len(data) == 1 else data
    known = {"id": request_id, "model_name": answer.model_name, "model_version": answer.model_version}
    return _dump({**document, **{key: value for key, value in known.items() if value}})


def _message(model: str, version: str, asked: HttpInfer) -> bytes:
    try:
        request = _pb.ModelInferRequest(model_name=model, model_version=version, id=asked.id)
    except UnicodeEncodeError:
        raise OipError(Reason.MALFORMED, "The model's name or version is not valid Unicode.") from None
    _set_parameters(request.parameters, asked.parameters)
    for given in asked.inputs:
        tensor = request.inputs.add(name=given.name, datatype=given.datatype, shape=given.shape)
        _set_parameters(tensor.parameters, given.parameters)
    for wanted in asked.outputs:
        _set_parameters(request.outputs.add(name=wanted.name).parameters, wanted.parameters)
    # Written by hand, the tensors are copied once and not three times.
    parts: list[bytes | memoryview] = [request.SerializeToString()]
    for given in asked.inputs:
        parts += (RAW_INPUT_TAG, varint_bytes(len(given.raw)), given.raw)
    return b"".join(parts)


def encode_infer(context: HttpInferContext, response: bytes) -> tuple[bytes, Headers]:
    """A serialized ModelInferResponse as the HTTP body and headers that the request asked for.

    The id is the request's own. Absent members are left out. Raises OipError: ENDPOINT_FAILED for an
    answer that contradicts itself, MALFORMED for a tensor that JSON cannot carry but that was not
    asked for as binary data.
    """
    answer = _parse("ModelInferResponse", response)
    document: dict[str, object] = {"id": context.id} if context.id else {}
    document["model_name"] = answer.model_name
    if answer.model_version:
        document["model_version"] = answer.model_version
    if answer.parameters:
        document["parameters"] = _plain_parameters(answer.parameters)
    binary: list[bytes] = []
    any_binary = False
    outputs: list[dict[str, object]] = []
    for tensor, raw in _raw_outputs(answer):
        shape = list(tensor.shape)
        entry: dict[str, object] = {"name": tensor.name, "datatype": tensor.datatype, "shape": shape}
        parameters = _plain_parameters(tensor.parameters)
        # KServe's server says of raw data over gRPC what means binary data behind the JSON here.
        parameters.pop("binary_data_size", None)
        if context.binary_outputs.get(tensor.name, context.binary_default):
            any_binary = True
            binary.append(raw)
            parameters["binary_data_size"] = len(raw)
        else:
            where = f"Output {shown(tensor.name)}"
            entry["data"] = tensors.to_json(tensor.datatype, shape, raw, where)
        if parameters:
            entry["parameters"] = parameters
        outputs.append(entry)
    document["outputs"] = outputs
    text = _dump(document)
    if not any_binary:
        return text, (("content-type", "application/json"),)
    return b"".join([text, *binary]), (
        ("content-type", "application/octet-stream"),
        (HEADER_LENGTH.lower(), str(len(text))),
    )


def metadata_to_json(response: bytes) -> bytes:
    """A serialized ModelMetadataResponse as the body of GET /v2/models/M. Raises OipError."""
    return _dump(_plain(_parse("ModelMetadataResponse", response)))


def config_to_json(response: bytes) -> bytes:
    """A serialized ModelConfigResponse as the body of GET /v2/models/M/config. Raises OipError."""
    return _dump(_plain(_parse("ModelConfigResponse", response).config))


def statistics_to_json(response: bytes) -> bytes:
    """A serialized ModelStatisticsResponse as the body of GET /v2/models/M/stats. Raises OipError."""
    return _dump(_plain(_parse("ModelStatisticsResponse", response)))


def server_metadata_to_json(response: bytes) -> bytes:
    """A serialized ServerMetadataResponse as the body of GET /v2. Raises OipError."""
    return _dump(_plain(_parse("ServerMetadataResponse", response)))


def rename_metadata(response: bytes, name: str) -> bytes:
    """A serialized ModelMetadataResponse under another model name. Raises OipError."""
    message = _parse("ModelMetadataResponse", response)
    message.name = name
    return message.SerializeToString()


def rename_config(response: bytes, name: str) -> bytes:
    """A serialized ModelConfigResponse under another model name. Raises OipError."""
    message = _parse("ModelConfigResponse", response)
    message.config.name = name
    return message.SerializeToString()


def signature_of(metadata: bytes, config: bytes | None) -> Signature:
    """What requests can be held against, from a serialized ModelMetadataResponse and, where the endpoint has
    one, ModelConfigResponse. Raises OipError.

    What they do not settle stays unknown: without a configuration any input may be optional, and a shape
    without dimensions says nothing; nor does one of an input that is a shape tensor, may be ragged, or has
    a format of its own.
    """
    described = _parse("ModelMetadataResponse", metadata)
    inputs: dict[str, Any] = {}
    max_batch = 0
    decoupled = stateful = False
    if config is not None:
        configured = _parse("ModelConfigResponse", config).config
        decoupled = configured.model_transaction_policy.decoupled
        stateful = configured.HasField("sequence_batching")
        inputs = {entry.name: entry for entry in configured.input}
        max_batch = max(0, configured.max_batch_size)
    return Signature(
        tuple(_spec(entry, inputs.get(entry.name), config is None) for entry in described.inputs),
        # An output is always there; only an input may be left out.
        tuple(replace(_spec(entry, None, config is None), optional=False) for entry in described.outputs),
        max_batch,
        decoupled,
        stateful,
    )


def versions_of(metadata: bytes) -> tuple[str, ...]:
    """The versions that a serialized ModelMetadataResponse names. Raises OipError."""
    return tuple(_parse("ModelMetadataResponse", metadata).versions)


def metadata_of(name: str, version: str, platform: str, signature: Signature) -> bytes:
    """A serialized ModelMetadataResponse; shapes are the signature's, the batch's dimension included."""
    message = _pb.ModelMetadataResponse(name=name, versions=[version] if version else [], platform=platform)
    for specs, entries in ((signature.inputs, message.inputs), (signature.outputs, message.outputs)):
        for spec in specs:
            entries.add(name=spec.name, datatype=spec.datatype, shape=spec.shape)
    return message.SerializeToString()


def config_of(name: str, platform: str, signature: Signature, batch_delay_us: int | None = None) -> bytes:
    """A serialized ModelConfigResponse; `dims` are without the batch's dimension where there is one. A
    datatype that the protocol does not know is left out.

    `batch_delay_us`: how long a request may wait for others to share its run, None where none are put
    together.
    """
    message = _pb.ModelConfigResponse()
    config = message.config
    config.name, config.backend, config.max_batch_size = name, platform, signature.max_batch
    for specs, entries in ((signature.inputs, config.input), (signature.outputs, config.output)):
        for spec in specs:
            entry = entries.add(name=spec.name, dims=spec.shape[1 if signature.max_batch else 0 :])
            kind = "STRING" if spec.datatype == "BYTES" else spec.datatype
            known = entry.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_name.get(f"TYPE_{kind}")
            if known is not None:
                entry.data_type = known.number
            if spec.optional:
                entry.optional = True
    if batch_delay_us is not None:
        config.dynamic_batching.max_queue_delay_microseconds = batch_delay_us
    return message.SerializeToString()


def config_from(metadata: bytes) -> bytes:
    """As much of a ModelConfigResponse as a serialized ModelMetadataResponse says, for a server that has no
    configurations: no batch, and no input that may be left out. Raises OipError."""
    message = _parse("ModelMetadataResponse", metadata)
    signature = signature_of(metadata, None)
    inputs = tuple(replace(spec, optional=False) for spec in signature.inputs)
    return config_of(message.name, message.platform, Signature(inputs, signature.outputs))


def statistics_of(name: str, version: str, counters: Counters) -> bytes:
    """A serialized ModelStatisticsResponse of one model version; several of them, joined, are one of all."""
    message = _pb.ModelStatisticsResponse()
    model = message.model_stats.add(
        name=name,
        version=version,
        last_inference=counters.last_inference_ms,
        inference_count=counters.inferences,
        execution_count=counters.executions,
    )
    stats = model.inference_stats
    for target, duration in (
        (stats.success, counters.success),
        (stats.fail, counters.fail),
        (stats.queue, counters.queue),
        (stats.compute_infer, counters.compute),
        (stats.compute_input, Duration(counters.compute.times)),
        (stats.compute_output, Duration(counters.compute.times)),
        (stats.cache_hit, NEVER),
        (stats.cache_miss, NEVER),
    ):
        target.count, target.ns = duration.times, duration.ns
    for size, duration in counters.batches:
        batch = model.batch_stats.add(batch_size=size)
        batch.compute_infer.count, batch.compute_infer.ns = duration.times, duration.ns
        batch.compute_input.count = batch.compute_output.count = duration.times
    return message.SerializeToString()


def server_metadata(name: str, version: str, extensions: Sequence[str]) -> bytes:
    """A serialized ServerMetadataResponse."""
    return _pb.ServerMetadataResponse(name=name, version=version, extensions=extensions).SerializeToString()


def server_live(live: bool) -> bytes:
    """A serialized ServerLiveResponse."""
    return _pb.ServerLiveResponse(live=live).SerializeToString()


def server_ready(ready: bool) -> bytes:
    """A serialized ServerReadyResponse."""
    return _pb.ServerReadyResponse(ready=ready).SerializeToString()


def model_ready(ready: bool) -> bytes:
    """A serialized ModelReadyResponse."""
    return _pb.ModelReadyResponse(ready=ready).SerializeToString()


def named_model(request: bytes) -> tuple[str, str]:
    """Name and version ("" for none) in a serialized request about one model.

    Takes ModelReadyRequest, ModelMetadataRequest, ModelConfigRequest and ModelStatisticsRequest,
    which share their fields. Raises OipError MALFORMED.
    """
    message = callers_message("ModelReadyRequest", request)
    return message.name, message.version


def new_message(kind: str, **fields: object) -> Any:
    """A message of the service's, by its name."""
    return getattr(_pb, kind)(**fields)


def callers_message(kind: str, data: bytes) -> Any:
    """What a caller sent. Raises OipError MALFORMED."""
    message = new_message(kind)
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise OipError(Reason.MALFORMED, "The request is not well-formed protobuf.") from None
    return message


def _spec(entry: Any, configured: Any, unsettled: bool) -> TensorSpec:
    """A tensor of a ModelMetadataResponse with its input in the configuration, None where it has none."""
    optional = unsettled
    any_shape = unsettled and not entry.shape
    if configured is not None:
        optional = configured.optional
        any_shape = (
            configured.is_shape_tensor or configured.allow_ragged_batch or configured.is_non_linear_format_io
        )
    shape = tuple(dim if dim >= 0 else -1 for dim in entry.shape)
    return TensorSpec(entry.name, entry.datatype, shape, optional, any_shape)


def _failed(fault: str) -> OipError:
    return OipError(Reason.ENDPOINT_FAILED, f"The endpoint's answer is broken: {fault}.")


def _parse(kind: str, data: bytes) -> Any:
    message = getattr(_pb, kind)()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise _failed(f"it is no {kind}") from None
    return message


def _dump(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _set_parameters(target: Any, parameters: Iterable[Parameter]) -> None:
    for key, kind, value in parameters:
        setattr(target[key], kind, value)


def _plain_parameters(parameters: Any) -> dict[str, object]:
    plain: dict[str, object] = {}
    for key, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is not None:
            plain[key] = getattr(parameter, kind)
    return plain


def _raw_outputs(answer: Any) -> Iterator[tuple[Any, bytes]]:
    """Each output of an answer with its raw data."""
    raws = list(answer.raw_output_contents)
    if raws and len(raws) != len(answer.outputs):
        raise _failed(f"{len(answer.outputs)} outputs but {len(raws)} raw_output_contents")
    for at, tensor in enumerate(answer.outputs):
        yield tensor, _output_raw(tensor, raws[at] if raws else None)


def _output_raw(tensor: Any, raw: bytes | None) -> bytes:
    """An output's raw data, from raw_output_contents or its typed contents, checked against its shape."""
    where = f"output {shown(tensor.name)}"
    shape = list(tensor.shape)
    try:
        tensors.check_shape(shape, where)
        tensors.check_datatype(tensor.datatype, where)
        if raw is None:
            raw = _typed_raw(tensor.datatype, tensor.contents, where)
        tensors.check_raw(tensor.datatype, shape, raw, where)
    except OipError as error:
        raise _failed(error.message.removesuffix(".")) from None
    return raw


def _typed_raw(datatype: str, contents: Any, where: str) -> bytes:
    if datatype in _INT_CONTENTS:
        return tensors.pack(datatype, list(getattr(contents, _INT_CONTENTS[datatype])), where)
    if datatype == "FP32":
        return np.array(contents.fp32_contents, dtype="<f4").tobytes()
    if datatype == "FP64":
        return np.array(contents.fp64_contents, dtype="<f8").tobytes()
    if datatype == "BYTES":
        return tensors.pack_bytes(contents.bytes_contents)
    return b""


def _plain(message: Message) -> dict[str, object]:
    """A message as Triton's HTTP server shows it; members that are messages only where they are set."""
    plain: dict[str, object] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                inner = field.message_type.fields_by_name["value"]
                plain[field.name] = {str(key): _plain_value(inner, item) for key, item in value.items()}
            else:
                plain[field.name] = [_plain_value(field, item) for item in value]
        elif not field.has_presence or message.HasField(field.name):
            plain[field.name] = _plain_value(field, value)
    return plain


def _plain_value(field: Any, value: Any) -> object:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return _plain(value)
    if field.type == FieldDescriptor.TYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if field.type == FieldDescriptor.TYPE_BYTES:
        return base64.b64encode(value).decode("ascii")
    if field.type == FieldDescriptor.TYPE_FLOAT:
        return float(str(np.float32(value)))
    return value
