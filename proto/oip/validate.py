"""An inference request held against what its model takes: one validation for every route.

`check_request` reads a serialized ModelInferRequest, whatever the caller spoke: HTTP's codec writes one
too. It looks at names, types, shapes and sizes and steps over the data, so that its cost goes with
the number of inputs; only the framing of BYTES and integers of 8 and 16 bits in typed contents are read.

What it refuses, Triton refuses as well, with these exceptions, which Triton would misread, answer
with other data than was meant, or not survive:

- a required input left out while an optional one makes up the number;
- integers in typed contents that do not fit their datatype, which Triton cuts to size;
- an output requested twice, and more raw_input_contents than inputs;
- a negative dimension, and shapes with more elements than 63 bits can count;
- classification and shared memory, which are not served over this gateway;
- whatever `scan` refuses since parsers could read it differently.

A signature that names no inputs says nothing about them, and a datatype that the protocol does not
know says nothing about a tensor's type; `TensorSpec.any_shape` says so of a shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from oip import contents, tensors, wording
from oip.errors import OipError
from oip.names import shown
from oip.parts import InputPart, OutputPart, Parameter, RequestParts, read_request
from oip.reasons import Reason
from oip.scan import MAX_FIELDS, Broken, Span, refuse_broken
from oip.signature import Signature, TensorSpec

FAST_BYTES = 2**18
"""Requests up to this size are checked in milliseconds whatever they hold."""

_KINDS = {
    "sequence_id": (("int64_param", "string_param"), "int64_param or string_param"),
    "sequence_start": (("bool_param",), "bool_param"),
    "sequence_end": (("bool_param",), "bool_param"),
    "timeout": (("int64_param",), "int64_param"),
    "priority": (("int64_param", "uint64_param"), "int64_param or uint64_param"),
    "triton_enable_empty_final_response": (("bool_param",), "bool_param"),
}
"""What the parameters that the protocol's extensions know may hold."""


class Data(NamedTuple):
    """Where an input's elements lie: `typed` has one span for each run of them, see
    `contents.find_elements`; otherwise there is one span of raw data."""

    typed: bool
    spans: Sequence[Span]


def check_request(body: bytes, signature: Signature, model: str) -> int:
    """Hold a serialized ModelInferRequest against the signature of the model, which messages call `model`;
    the rows of its batch, 1 where the model has none.

    Raises OipError: MALFORMED for what does not fit, BAD_OPTION and NOT_SERVED as `scan_request`
    does, NOT_SERVED for classification.
    """
    parts = read_request(body)
    check_parts(body, parts, signature, model)
    return parts.inputs[0].shape[0] if signature.max_batch and parts.inputs and parts.inputs[0].shape else 1


def checks_fast(body: bytes, signature: Signature) -> bool:
    """Whether `check_request` takes milliseconds only: no megabytes of BYTES or of typed contents."""
    if len(body) <= FAST_BYTES:
        return True
    if any(spec.datatype == "BYTES" for spec in signature.inputs):
        return False
    try:
        parts = read_request(body)
    except OipError:
        return True
    return not any(part.datatype == "BYTES" or _is_long(part.contents) for part in parts.inputs)


def check_parts(body: bytes, parts: RequestParts, signature: Signature, model: str) -> list[Data]:
    """`check_request` for a message that was taken apart; where the data of each of its inputs lies."""
    check_parameters(parts.parameters)
    specs = {spec.name: spec for spec in signature.inputs}
    _check_names(parts, specs, model)
    try:
        budget = [MAX_FIELDS]
        data = [_find_data(body, parts, at, model, budget) for at in range(len(parts.inputs))]
        if specs:
            _check_against(parts.inputs, specs, signature.max_batch, model)
        for part, found in zip(parts.inputs, data, strict=True):
            spec = specs.get(part.name)
            if spec is None or not spec.any_shape:
                _check_size(body, part, found, model)
    except Broken as fault:
        refuse_broken(Reason.MALFORMED, "The ModelInferRequest", fault)
    _check_outputs(parts.outputs, signature.outputs, model)
    return data


def check_parameters(parameters: Sequence[Parameter]) -> None:
    """Refuse a parameter that is not of the kind that the protocol's extensions give it. Raises OipError
    MALFORMED."""
    for key, kind, value in parameters:
        if (known := _KINDS.get(key)) is not None:
            kinds, expected = known
            if kind not in kinds:
                raise wording.parameter_kind(key, expected)
            if key in ("priority", "timeout") and isinstance(value, int) and value < 0:
                raise wording.negative_parameter(key)
        elif key.startswith("triton_"):
            raise wording.reserved_parameter()
        elif kind in ("", "uint64_param"):
            raise wording.parameter_kind(key, "int64_param, bool_param, or string_param")


def check_framing(name: str, model: str, raw: bytes | memoryview, count: int) -> None:
    """Refuse raw BYTES data that is not exactly `count` elements, each behind its length."""
    fault = tensors.framing_fault(raw, count)
    if fault is None:
        return
    if fault.kind == "length":
        raise wording.cut_length(name, model, fault.left)
    if fault.kind == "element":
        raise wording.cut_element(name, fault.size, fault.left)
    short = fault.kind == "elements"
    raise (wording.too_few_elements if short else wording.too_many_elements)(name, model, count, fault.found)


def _is_long(contents: Span | None) -> bool:
    return contents is not None and contents[1] - contents[0] > FAST_BYTES


def _check_names(parts: RequestParts, specs: dict[str, TensorSpec], model: str) -> None:
    given: set[str] = set()
    for part in parts.inputs:
        if part.name in given:
            raise wording.duplicate_input(part.name)
        given.add(part.name)
    if not specs:
        return
    missing = [name for name, spec in specs.items() if not spec.optional and name not in given]
    least = sum(1 for spec in specs.values() if not spec.optional)
    if len(given) >= least:
        for part in parts.inputs:
            if part.name not in specs:
                raise wording.unexpected_input(part.name, model)
    if missing:
        names = [part.name for part in parts.inputs]
        raise wording.missing_inputs(model, least, len(specs), names, missing)


def _find_data(body: bytes, parts: RequestParts, at: int, model: str, budget: list[int]) -> Data:
    part = parts.inputs[at]
    where = tensors.input_at(part.name)
    tensors.check_datatype(part.datatype, where)
    tensors.check_shape(list(part.shape), where)
    if parts.raws:
        if part.contents is not None:
            raise wording.contents_beside_raw(part.name, model)
        if at < len(parts.raws):
            return Data(False, (parts.raws[at],))
    elif part.contents is not None:
        return Data(True, contents.find_elements(body, part, model, budget))
    raise wording.no_data(part.name, model)


def _check_against(
    inputs: Sequence[InputPart], specs: dict[str, TensorSpec], max_batch: int, model: str
) -> None:
    """Datatypes, then dimensions."""
    for part in inputs:
        expected = specs[part.name].datatype
        if part.datatype != expected and expected in tensors.SIZES:
            raise wording.other_datatype(part.name, model, part.datatype, expected)
    batched = [part for part in inputs if max_batch and not specs[part.name].any_shape]
    for part in batched:
        if not part.shape:
            raise wording.no_batch_dimension(part.name, model)
    for part in inputs:
        spec = specs[part.name]
        if not spec.any_shape and not _fits(part.shape, spec.shape):
            raise wording.other_shape(part.name, model, spec.shape, part.shape)
    for part in batched:
        if part.shape[0] != batched[0].shape[0]:
            raise wording.batches_differ(part.name, model)
        if not part.shape[0]:
            raise wording.empty_batch(part.name, model)
        if part.shape[0] > max_batch:
            raise wording.batch_too_large(max_batch, model)


def _fits(shape: Sequence[int], expected: Sequence[int]) -> bool:
    return len(shape) == len(expected) and all(
        wanted in (-1, dim) for dim, wanted in zip(shape, expected, strict=True)
    )


def _check_size(body: bytes, part: InputPart, data: Data, model: str) -> None:
    elements = math.prod(part.shape)
    size = tensors.SIZES[part.datatype]
    if data.typed:
        found = contents.count(body, part.datatype, data.spans)
        if found != elements:
            if size is not None:
                raise wording.other_size(part.name, model, elements * size, found * size)
            short = found < elements
            raise (wording.too_few_elements if short else wording.too_many_elements)(
                part.name, model, elements, found
            )
        contents.check_range(body, part, data.spans)
        return
    ((low, high),) = data.spans
    if size is None:
        check_framing(part.name, model, memoryview(body)[low:high], elements)
    elif high - low != elements * size:
        raise wording.other_size(part.name, model, elements * size, high - low)


def _check_outputs(outputs: Sequence[OutputPart], specs: Sequence[TensorSpec], model: str) -> None:
    known = {spec.name for spec in specs}
    seen: set[str] = set()
    for output in outputs:
        if known and output.name not in known:
            raise wording.unexpected_output(output.name, model)
        if output.name in seen:
            raise wording.duplicate_output(output.name)
        seen.add(output.name)
        if any(parameter.key == "classification" for parameter in output.parameters):
            raise wording.classification(f"Output {shown(output.name)}")
