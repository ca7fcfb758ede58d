"""Whether what a trainer gave back can be released."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from edgewire.signals import SIGNALS, edges_fault
from gateway.core.release import FORMATS, Reference
from gateway.core.training import Array, Golden, Tensors, TrainedFile, TrainResult

MAX_GOLDEN_CASES = 256
"""As many as a device reads."""
_MARKS = {"tflite": (slice(4, 8), b"TFL3")}
"""Where a file of a format says that it is one."""


class BadResult(Exception):
    """The text is one sentence that says what is wrong with it."""


def checked(result: object) -> TrainResult:
    """The result in plain types of its own. Raises BadResult for what no device could run, no drift could
    be found by, or no one could read."""
    if not isinstance(result, TrainResult):
        raise BadResult(f"The trainer gave back a {type(result).__name__} and no TrainResult.")
    if not _mapping(result.files):
        raise BadResult("The trainer gave back no files.")
    if not isinstance(cast(object, result.reference), Mapping):
        raise BadResult("The reference is no mapping of signals.")
    if not isinstance(cast(object, result.metrics), Mapping):
        raise BadResult("The metrics are no mapping of names to numbers.")
    return TrainResult(
        {format: _file(format, file) for format, file in result.files.items()},
        {signal: _reference(signal, found) for signal, found in result.reference.items()},
        {str(name): _metric(str(name), value) for name, value in result.metrics.items()},
    )


def _mapping(value: object) -> bool:
    return isinstance(value, Mapping) and len(cast("Mapping[Any, Any]", value)) > 0


def _file(format: object, file: object) -> TrainedFile:
    if format not in FORMATS:
        raise BadResult(
            f"The trainer gave back a file of format {format!r}: formats are {', '.join(FORMATS)}."
        )
    if not isinstance(file, TrainedFile) or not isinstance(cast(object, file.content), bytes):
        raise BadResult(f"The {format} file is no TrainedFile with bytes.")
    where, mark = _MARKS.get(str(format), (slice(0, 0), b""))
    if not file.content or file.content[where] != mark:
        raise BadResult(f"The {format} file holds no {format} model.")
    return TrainedFile(file.content, _golden(str(format), file.golden))


def _golden(format: str, golden: object) -> Golden:
    where = f"The golden vectors of the {format} file"
    if not isinstance(golden, Golden) or not golden.cases:
        raise BadResult(f"The {format} file has no golden vectors, and no device would run it.")
    if len(golden.cases) > MAX_GOLDEN_CASES:
        raise BadResult(f"{where} are {len(golden.cases)} cases; there may be {MAX_GOLDEN_CASES}.")
    tolerance = _number(golden.tolerance)
    if tolerance is None or tolerance < 0:
        raise BadResult(f"{where} have no tolerance of 0 or more.")
    cases: list[tuple[Tensors, Tensors]] = []
    for case in cast("list[Any]", golden.cases):
        if not isinstance(case, tuple | list) or len(cast("list[Any]", case)) != 2:
            raise BadResult(f"{where} hold a case that is no pair of inputs and outputs.")
        given, wanted = cast("tuple[object, object]", case)
        cases.append((_tensors(where, given), _tensors(where, wanted)))
    return Golden(cases, tolerance)


def _tensors(where: str, found: object) -> Tensors:
    if not _mapping(found):
        raise BadResult(f"{where} hold a case without inputs or without outputs.")
    arrays = cast("Mapping[object, object]", found)
    plain: dict[str, Array] = {}
    for name, array in arrays.items():
        if not isinstance(name, str) or not name or not isinstance(array, np.ndarray):
            raise BadResult(f"{where} hold something that is no array by the name of a tensor.")
        found_array = cast(Array, array)
        if found_array.dtype.kind not in "biufS":
            raise BadResult(f"{where} hold an array of type {found_array.dtype}, which is read nowhere.")
        plain[name] = np.array(found_array)
    return plain


def _reference(signal: object, found: object) -> Reference:
    if signal not in SIGNALS:
        raise BadResult(f"The reference names a signal {signal!r}: signals are {', '.join(SIGNALS)}.")
    if not isinstance(found, Reference):
        raise BadResult(f"The reference of {signal} is no Reference.")
    edges, counts = [_number(edge) for edge in found.edges], [_number(count) for count in found.counts]
    finite = [edge for edge in edges if edge is not None]
    fault = edges_fault(finite) if len(finite) == len(edges) else "they must be finite"
    if fault is not None:
        raise BadResult(f"The edges of the reference of {signal} are none: {fault}.")
    whole = [int(count) for count in counts if count is not None and count >= 0 and count == int(count)]
    if len(whole) != len(edges) + 1 or len(whole) != len(counts) or not sum(whole):
        raise BadResult(
            f"The reference of {signal} needs counts of 0 or more, not all 0, one more of them than edges."
        )
    return Reference(tuple(finite), tuple(whole))


def _metric(name: str, value: object) -> float:
    number = _number(value)
    if number is None:
        raise BadResult(f"The metric {name[:64]!r} is not a finite number.")
    return number


def _number(value: object) -> float | None:
    """None for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return None
    number = float(cast(float, value))
    return number if math.isfinite(number) else None
