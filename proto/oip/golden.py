"""Golden vectors: inputs with the outputs that they must give, in an .npz beside the artifact.

Arrays are named `0/input/NAME`, `0/output/NAME`, `1/input/NAME` and so on; the scalar `tolerance` is the
most that a value may be off, absolute. They are read without pickle.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from oip.signature import TensorSpec

Array = np.ndarray[Any, np.dtype[Any]]
Cases = list[tuple[dict[str, Array], dict[str, Array]]]

MAX_CASES = 256
MAX_UNPACKED_BYTES = 256 * 2**20


class GoldenFailed(Exception):
    """The vectors cannot be used, or the model does not give them; the text is one clause."""


def read_golden(file: Path | BinaryIO) -> tuple[Cases, float]:
    """The cases in order, and the tolerance. Raises GoldenFailed."""
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > MAX_UNPACKED_BYTES:
            raise GoldenFailed(f"the golden vectors unpack to {unpacked} bytes, more than are read")
        with np.load(file, allow_pickle=False) as found:
            arrays: dict[str, Array] = {name: found[name] for name in found.files}
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("a file that is no array")
    except (GoldenFailed, MemoryError):
        raise
    except Exception as fault:  # zip, its packers and numpy raise what they like of a bent file
        raise GoldenFailed("the golden vectors are no .npz that can be read without pickle") from fault
    tolerance = arrays.pop("tolerance", None)
    if tolerance is None or tolerance.ndim or tolerance.dtype.kind not in "fiu":
        raise GoldenFailed("the golden vectors have no scalar `tolerance`")
    if not 0 <= float(tolerance) < math.inf:
        raise GoldenFailed("the golden vectors' tolerance is not a number of 0 or more")
    return _cases(arrays), float(tolerance)


def inputs_of(path: Path) -> list[dict[str, Array]]:
    """The inputs of each case, as the engine takes them. Raises GoldenFailed."""
    cases, _ = read_golden(path)
    return [{name: _as_bytes(array) for name, array in given.items()} for given, _ in cases]


def check_golden(
    cases: Cases,
    tolerance: float,
    inputs: Sequence[TensorSpec],
    run: Callable[[Mapping[str, Array]], Mapping[str, Array]],
) -> None:
    """Run every case. Raises GoldenFailed for the first that is off; what `run` raises passes."""
    for at, (given, wanted) in enumerate(cases):
        if set(given) != {spec.name for spec in inputs}:
            raise GoldenFailed(f"golden case {at} does not have exactly the model's inputs")
        for spec in inputs:
            _check_input(at, given[spec.name], spec)
        found = run({name: _as_bytes(array) for name, array in given.items()})
        for name, array in wanted.items():
            if name not in found:
                raise GoldenFailed(f"golden case {at} has output {name[:64]!r}, which the model has not")
            _compare(at, name, found[name], _as_bytes(array), tolerance)


def check_finite(outputs: Mapping[str, Array]) -> None:
    """Raises GoldenFailed for an output that holds nothing, NaN or infinity."""
    for name, array in outputs.items():
        if not array.size:
            raise GoldenFailed(f"the model answers zeros with an empty output {name[:64]!r}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise GoldenFailed(f"the model answers zeros with no finite number in output {name[:64]!r}")


def _cases(arrays: Mapping[str, Array]) -> Cases:
    found: dict[int, tuple[dict[str, Array], dict[str, Array]]] = {}
    for key, array in arrays.items():
        number, _, rest = key.partition("/")
        role, _, name = rest.partition("/")
        if not number.isdecimal() or len(number) > 9 or role not in ("input", "output") or not name:
            raise GoldenFailed(f"the golden vectors hold {key[:64]!r}, which is not of the form 0/input/NAME")
        found.setdefault(int(number), ({}, {}))[role == "output"][name] = array
    if not found or sorted(found) != list(range(len(found))) or len(found) > MAX_CASES:
        raise GoldenFailed(f"the golden vectors' cases are not numbered from 0 to at most {MAX_CASES - 1}")
    if any(not given or not wanted for given, wanted in found.values()):
        raise GoldenFailed("a golden case lacks its inputs or its outputs")
    return [found[at] for at in sorted(found)]


def _check_input(at: int, array: Array, spec: TensorSpec) -> None:
    where = f"golden case {at} gives input {spec.name[:64]!r}"
    fits = len(array.shape) == len(spec.shape) and all(
        wanted in (-1, dim) for wanted, dim in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        raise GoldenFailed(f"{where} in shape {list(array.shape)}, and the model takes {list(spec.shape)}")
    if spec.datatype == "BYTES":
        right = array.dtype.kind in "SV"
    else:
        right = array.dtype.kind in "biuf" and array.dtype == _dtype(spec.datatype)
    if not right:
        raise GoldenFailed(f"{where} in another datatype than {spec.datatype}")


def _dtype(datatype: str) -> np.dtype[Any]:
    names = {"BOOL": "bool", "FP16": "float16", "FP32": "float32", "FP64": "float64"}
    return np.dtype(names.get(datatype) or datatype.lower())


def _as_bytes(array: Array) -> Array:
    """Strings as the engine takes them: an .npz without pickle holds them in fixed width."""
    return array.astype(object) if array.dtype.kind == "S" else array


def _compare(at: int, name: str, found: Array, wanted: Array, tolerance: float) -> None:
    where = f"golden case {at}, output {name[:64]!r}"
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise GoldenFailed(
            f"{where}: the model gives {found.dtype} {list(found.shape)}, and the vectors "
            f"{wanted.dtype} {list(wanted.shape)}"
        )
    if found.dtype.hasobject or found.dtype.kind == "b":
        if not np.array_equal(found, wanted):
            raise GoldenFailed(f"{where}: the model gives other values")
        return
    got, want = found.astype(np.float64), wanted.astype(np.float64)
    if not np.allclose(got, want, rtol=0, atol=tolerance, equal_nan=True):
        with np.errstate(invalid="ignore"):
            off = np.nanmax(np.abs(got - want)) if np.isfinite(got - want).any() else math.inf
        raise GoldenFailed(f"{where}: off by {off:.3g}, and {tolerance:.3g} is allowed")
