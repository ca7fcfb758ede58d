"""The one place that imports an interpreter's package."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from tflite_runtime.interpreter import Interpreter, OpResolverType, load_delegate

BARE = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
WITH_XNNPACK = OpResolverType.BUILTIN


def allocated(path: str, threads: int, resolver: Any, delegates: Sequence[Any] = ()) -> Any:
    """An interpreter with its tensors allocated. Raises RuntimeError or ValueError."""
    interpreter = Interpreter(
        model_path=path,
        num_threads=threads,
        experimental_op_resolver_type=resolver,
        experimental_delegates=list(delegates),
    )
    interpreter.allocate_tensors()
    return interpreter


def load_library(library: str, options: dict[str, str]) -> Any:
    """A delegate from a shared library. Raises OSError (no such library), AttributeError (it is no
    delegate), ValueError (it refused)."""
    return load_delegate(library, options)


def runtime_version() -> str:
    return f"tflite-runtime {version('tflite-runtime')}"
