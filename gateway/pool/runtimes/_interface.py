"""What a pool asks of a runtime. A new one is one file in this package with a class that
has a `kind`, or such a class that another package names as an entry point in the group
`tidegate.pool.runtimes`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np

from oip.signature import Signature

Array = np.ndarray[Any, np.dtype[Any]]

DATATYPES: Mapping[str, str] = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
"""NumPy's name of an element type -> the protocol's. What is not here no pool carries (strings, bfloat16)."""


class LoadError(Exception):
    """A model that cannot be run. The message is a few words that follow "MODEL: "; no path, no
    traceback."""


class Session(Protocol):
    """One opened model. Not to be used by two threads at once."""

    signature: Signature
    """As the file has it, `max_batch` 0."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Every output by name, as arrays of its own: the next run does not touch them, and nothing of
        this run is left for it in the model. Any exception means that this run failed."""
        ...

    def stop(self) -> None:
        """Have the run under way, if any, fail as soon as the runtime can, at the latest at its end. From
        any thread; the next run is not touched."""
        ...


class Runtime(Protocol):
    """Opens models on the resources of one replica."""

    kind: ClassVar[str]
    formats: ClassVar[tuple[str, ...]]
    """What it reads, as suffixes of files; the first is what it likes best."""

    def load(self, model: bytes, resources: Mapping[str, float]) -> Session:
        """Open a model file. `resources` are Ray's, by name, as the pool was given them: an accelerator
        that the runtime can use is used, and one that it could use and does not find is a LoadError."""
        ...
