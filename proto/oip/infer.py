"""An inference as a runtime sees it: arrays in, arrays out.

`parse_request` holds a serialized ModelInferRequest against the model's signature and gives its inputs
as numpy arrays; `build_response` writes the outputs as a ModelInferResponse, always in
raw_output_contents, and `parse_response` reads them again, however they are written. Element types are those of `tensors.dtype`: BYTES are arrays of `bytes` objects, and
BF16, which numpy does not know, are its bits as uint16. No number is converted on the way, so that
every NaN keeps its bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oip import contents, tensors
from oip.errors import OipError
from oip.names import shown
from oip.parts import InputPart, ParameterValue, read_request, tensor_part
from oip.reasons import Reason
from oip.scan import LEN, MAX_FIELDS, Broken, Span, fields, string_field, varint_bytes
from oip.signature import Signature, TensorSpec
from oip.validate import Data, check_parts

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class InferWork:
    """One request, checked.

    `inputs` are read-only views of the request's bytes where it has raw data. `outputs` are the names of
    the outputs to answer with, in the signature's order, as Triton answers whatever the order asked for; all of
    them where the request names none. `rows` is the size of the batch, None for a model without one.
    """

    model: str
    version: str
    id: str
    inputs: Mapping[str, Array]
    outputs: tuple[str, ...]
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict[str, ParameterValue])
    rows: int | None = None


def parse_request(body: bytes, signature: Signature) -> InferWork:
    """Take a serialized ModelInferRequest apart for a model of this signature.

    Raises OipError as `validate.check_request` does, with the model called as the request calls it.
    """
    parts = read_request(body)
    data = check_parts(body, parts, signature, parts.model_name)
    inputs = {part.name: _array(body, part, found) for part, found in zip(parts.inputs, data, strict=True)}
    asked = {output.name for output in parts.outputs}
    outputs = tuple(spec.name for spec in signature.outputs if not asked or spec.name in asked)
    return InferWork(
        model=parts.model_name,
        version=parts.model_version,
        id=parts.id,
        inputs=inputs,
        outputs=outputs,
        parameters={parameter.key: parameter.value for parameter in parts.parameters},
        rows=_rows(inputs, signature),
    )


def is_batchable(signature: Signature) -> bool:
    """Whether requests for the model can be put together along their first dimension."""
    tensors_ = (*signature.inputs, *signature.outputs)
    return bool(tensors_) and (
        signature.max_batch > 0 or all(not spec.any_shape and spec.shape[:1] == (-1,) for spec in tensors_)
    )


def build_response(
    model: str, version: str, id: str, outputs: Mapping[str, Array], signature: Signature
) -> bytes:
    """A serialized ModelInferResponse with the outputs in the order of the mapping.

    Strings that are "" are left out. Raises OipError ENDPOINT_FAILED for an output that is not what
    the signature says: its name, its element type, its number of dimensions or one of them.
    """
    specs = {spec.name: spec for spec in signature.outputs}
    head = [string_field(1, model), string_field(2, version), string_field(3, id)]
    raws: list[bytes | memoryview] = []
    for name, array in outputs.items():
        spec = specs.get(name)
        if spec is None:
            raise _failed(f"it gave output {shown(name)}, which its signature does not name")
        _check_output(spec, array)
        raw = _raw(spec, array)
        entry = b"".join([string_field(1, name), string_field(2, spec.datatype), _shape_field(array.shape)])
        head += (b"\x2a", varint_bytes(len(entry)), entry)
        raws += (b"\x32", varint_bytes(len(raw)), raw)
    return b"".join([*head, *raws])


def parse_response(body: bytes) -> dict[str, Array]:
    """The outputs of a serialized ModelInferResponse by name, read-only where it has raw data.

    Raises OipError ENDPOINT_FAILED for an answer that contradicts itself.
    """
    outputs: list[InputPart] = []
    raws: list[Span] = []
    budget = [MAX_FIELDS]
    try:
        for number, wire, _, low, high in fields(body, 0, len(body), budget):
            if number in (5, 6) and wire != LEN:
                raise Broken(f"field {number} has wire type {wire}")
            if number == 5:
                outputs.append(tensor_part(body, low, high, budget))
            elif number == 6:
                raws.append((low, high))
        if raws and len(raws) != len(outputs):
            raise Broken("it has not as many raw_output_contents as outputs")
        found: dict[str, Array] = {}
        for at, part in enumerate(outputs):
            tensors.check_datatype(part.datatype, "An output")
            tensors.check_shape(list(part.shape), "An output")
            if raws:
                data = Data(False, (raws[at],))
            elif part.contents is not None:
                data = Data(True, contents.find_elements(body, part, "", budget))
            else:
                raise Broken("an output has no data")
            if part.name in found:
                raise Broken("an output occurs twice")
            found[part.name] = _array(body, part, data)
        return found
    except (Broken, OipError):
        raise _failed("its outputs cannot be read") from None


def select(work: InferWork, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Those of a model's outputs that the request wants, in its order.

    Raises OipError ENDPOINT_FAILED when the model gave no such output.
    """
    missing = [name for name in work.outputs if name not in outputs]
    if missing:
        raise _failed(f"it gave no output {shown(missing[0])}")
    return {name: outputs[name] for name in work.outputs}


def _failed(fault: str) -> OipError:
    return OipError(Reason.ENDPOINT_FAILED, f"The model's answer is broken: {fault}.")


def _array(body: bytes, part: InputPart, data: Data) -> Array:
    try:
        if data.typed:
            return contents.decode(body, part.datatype, data.spans).reshape(part.shape)
        ((low, high),) = data.spans
        return _from_raw(part, memoryview(body)[low:high]).reshape(part.shape)
    except ValueError:
        raise OipError(
            Reason.MALFORMED, f"Input {shown(part.name)} has a shape that this runtime cannot hold."
        ) from None


def _from_raw(part: InputPart, raw: memoryview) -> Array:
    if part.datatype != "BYTES":
        return np.frombuffer(raw, dtype=tensors.dtype(part.datatype))
    items = tensors.unpack_bytes(bytes(raw), math.prod(part.shape), tensors.input_at(part.name))
    flat = np.empty(len(items), dtype=object)
    flat[:] = items
    return flat


def _rows(inputs: Mapping[str, Array], signature: Signature) -> int | None:
    if not inputs or not is_batchable(signature):
        return None
    sizes = {array.shape[:1] for array in inputs.values()}
    first = sizes.pop()
    return first[0] if first and not sizes else None


def _check_output(spec: TensorSpec, array: Array) -> None:
    name = shown(spec.name)
    expected = tensors.dtype(spec.datatype)
    if array.dtype.newbyteorder("<") != expected:
        raise _failed(f"output {name} is of numpy type {array.dtype}, but {spec.datatype} needs {expected}")
    fits = len(array.shape) == len(spec.shape) and all(
        wanted in (-1, dim) for dim, wanted in zip(array.shape, spec.shape, strict=True)
    )
    if not fits and not spec.any_shape:
        raise _failed(f"output {name} has shape {list(array.shape)}, but its signature {list(spec.shape)}")


def _raw(spec: TensorSpec, array: Array) -> bytes | memoryview:
    if spec.datatype == "BYTES":
        return tensors.pack_bytes([_element(spec, item) for item in array.ravel().tolist()])
    array = np.ascontiguousarray(array, dtype=tensors.dtype(spec.datatype))
    return array.data.cast("B") if array.size and array.ndim else array.tobytes()


def _element(spec: TensorSpec, item: object) -> bytes:
    if isinstance(item, str):
        return item.encode("utf-8", "surrogatepass")
    if isinstance(item, bytes):
        return item
    raise _failed(f"output {shown(spec.name)} holds a {type(item).__name__} where bytes are due")


def _shape_field(shape: Sequence[int]) -> bytes:
    packed = b"".join(map(varint_bytes, shape))
    return b"\x1a" + varint_bytes(len(packed)) + packed if packed else b""
