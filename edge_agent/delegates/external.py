"""A shared library with TFLite's public delegate ABI: `tflite_plugin_create_delegate` and `_destroy_`."""

from __future__ import annotations

from typing import Any, ClassVar

from edge_agent.delegates._interface import DelegateFailed, DelegateSpec
from edge_agent.delegates._runtime import BARE, allocated, load_library


class External:
    """Its nodes are the library's; the rest run on the builtin kernels, so that what it took can be
    told from what XNNPACK would take."""

    kind: ClassVar[str] = "external"

    def __init__(self, spec: DelegateSpec) -> None:
        self._spec = spec

    def interpreter(self, path: str, threads: int) -> Any:
        try:
            delegate = load_library(self._spec.library, dict(self._spec.options))
        except OSError as fault:
            raise DelegateFailed("its library is missing or does not fit this machine") from fault
        except AttributeError as fault:
            raise DelegateFailed("its library is no TFLite delegate") from fault
        except ValueError as fault:
            raise DelegateFailed(
                "its library refused to make a delegate: look at its options and its device"
            ) from fault
        try:
            return allocated(path, threads, BARE, [delegate])
        except (RuntimeError, ValueError) as fault:
            raise DelegateFailed("it could not prepare the model") from fault

    def version(self) -> str:
        return ""
