"""A request of Triton's generate extension: one JSON object that names inputs and parameters side by side.

`parse_generate` turns it into the `HttpInfer` that an inference in JSON gives. By the model's signature:

- A member with the name of an input is that input's data: one value, or a list. The tensor has one
  batch where the model batches. Of its dimensions that are open, the first takes what the others
  leave; a nested list is taken as it is nested.
- `id` is the request's id, the members of `parameters` are parameters, and so is every other member.
  A member that is null counts as absent, as everywhere in JSON here.

Values are read by the rules of `tensors`.
"""

from __future__ import annotations

import math
from typing import NoReturn, cast

from oip import tensors, wording
from oip.errors import OipError
from oip.http_request import HttpInfer, HttpInput, limit_tensors, parameters_of, request_parameter
from oip.names import shown
from oip.reasons import Reason
from oip.signature import Signature, TensorSpec
from oip.strict_json import loads


def parse_generate(
    body: bytes, signature: Signature, max_bytes: int | None = None, model: str = ""
) -> HttpInfer:
    """Parse one request for a model with `signature`.

    The inputs' raw data is at most `max_bytes` together, None for any size. Raises OipError: MALFORMED
    naming the member at fault, BAD_OPTION, TOO_LARGE.
    """
    document = loads(body)
    if not isinstance(document, dict):
        _refuse("is not a JSON object")
    members = {key: value for key, value in cast("dict[str, object]", document).items() if value is not None}
    inputs: list[HttpInput] = []
    total = 0
    for spec in signature.inputs:
        if spec.name not in members:
            continue
        given = _input(spec, members.pop(spec.name), signature.max_batch, total, max_bytes)
        total += len(given.raw)
        limit_tensors(total, max_bytes)
        inputs.append(given)
    request_id = members.pop("id", "")
    if not isinstance(request_id, str):
        _refuse("needs a string as its id")
    own = parameters_of(members, "The request")
    members.pop("parameters", None)
    for key in members:
        if key in own:
            _refuse(f"has the parameter {shown(key)} both inside its parameters and beside them")
    parameters = tuple(request_parameter(key, value) for key, value in {**members, **own}.items())
    return HttpInfer(request_id, False, parameters, tuple(inputs), ())


def _input(spec: TensorSpec, data: object, max_batch: int, before: int, max_bytes: int | None) -> HttpInput:
    where = tensors.input_at(spec.name)
    datatype = tensors.check_datatype(spec.datatype, where)
    dims = spec.shape[1:] if max_batch else spec.shape
    values = cast("list[object]", data) if isinstance(data, list) else [data]
    nested = _nesting(values)
    while len(nested) > max(1, len(dims)) and nested[0] == 1 and not spec.any_shape:
        # A batch, or a list of one list.
        values = cast("list[object]", values[0])
        nested = nested[1:]
    found = _shape(spec, dims, nested)
    shape = (1, *found) if max_batch else found
    limit_tensors(before + tensors.least_bytes(datatype, shape), max_bytes)
    # Nested data is nested as `found` says, whatever stands before it.
    raw = tensors.from_json(datatype, found, values if found else values[0], where)
    return HttpInput(spec.name, datatype, shape, raw, ())


def _nesting(data: object) -> list[int]:
    """Lengths of the lists that `data` begins with, from the outermost."""
    nested: list[int] = []
    while isinstance(data, list):
        items = cast("list[object]", data)
        nested.append(len(items))
        data = items[0] if items else None
    return nested


def _shape(spec: TensorSpec, dims: tuple[int, ...], nested: list[int]) -> tuple[int, ...]:
    """The tensor's dimensions without the batch's. Raises OipError where there are none that fit."""
    if spec.any_shape or (len(nested) > 1 and len(nested) == len(dims)):
        found = tuple(nested)
    elif len(nested) > 1:
        raise wording.unfit_for_schema(spec.name)
    else:
        found = _filled(spec, dims, nested[0])
    fits = spec.any_shape or all(want in (-1, dim) for dim, want in zip(found, dims, strict=True))
    if not fits or (len(nested) == 1 and math.prod(found) != nested[0]):
        raise wording.unfit_for_schema(spec.name)
    return found


def _filled(spec: TensorSpec, dims: tuple[int, ...], count: int) -> tuple[int, ...]:
    """`dims` with the open ones set so that they hold `count` elements, where that can be."""
    fixed = math.prod(dim for dim in dims if dim >= 0)
    if -1 not in dims:
        return dims
    at = dims.index(-1)
    if fixed and count % fixed:
        raise wording.unfit_for_schema(spec.name)
    rest = tuple(1 if dim < 0 else dim for dim in dims[at + 1 :])
    return (*dims[:at], count // fixed if fixed else 0, *rest)


def _refuse(fault: str) -> NoReturn:
    raise OipError(Reason.MALFORMED, f"The request {fault}.")
