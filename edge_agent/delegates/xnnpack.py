"""XNNPACK, the delegate that tflite-runtime carries and applies by itself."""

from __future__ import annotations

from typing import Any, ClassVar

from edge_agent.delegates._interface import DelegateFailed, DelegateSpec
from edge_agent.delegates._runtime import WITH_XNNPACK, allocated, runtime_version


class Xnnpack:
    kind: ClassVar[str] = "xnnpack"

    def __init__(self, spec: DelegateSpec) -> None:
        del spec

    def interpreter(self, path: str, threads: int) -> Any:
        try:
            return allocated(path, threads, WITH_XNNPACK)
        except (RuntimeError, ValueError) as fault:
            raise DelegateFailed("XNNPACK cannot prepare the model") from fault

    def version(self) -> str:
        return runtime_version()
