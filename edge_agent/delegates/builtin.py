"""tflite-runtime's own kernels."""

from __future__ import annotations

from typing import Any, ClassVar

from edge_agent.delegates._interface import DelegateFailed, DelegateSpec
from edge_agent.delegates._runtime import BARE, allocated, runtime_version


class Builtin:
    kind: ClassVar[str] = "builtin"

    def __init__(self, spec: DelegateSpec) -> None:
        del spec

    def interpreter(self, path: str, threads: int) -> Any:
        try:
            return allocated(path, threads, BARE)
        except (RuntimeError, ValueError) as fault:
            raise DelegateFailed("tflite-runtime cannot load the model") from fault

    def version(self) -> str:
        return runtime_version()
