"""What a delegate's file offers, and how a chain names delegates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class DelegateSpec:
    """One step of a chain. `library` and `options` are for the kind `external`: the path of the shared
    library, and what it is told at its creation. Raises ValueError when they do not fit the kind."""

    kind: str
    library: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.kind == "external") != bool(self.library):
            raise ValueError(
                "a delegate of kind external needs a library"
                if self.kind == "external"
                else f"a delegate of kind {self.kind} takes no library"
            )
        if self.options and self.kind != "external":
            raise ValueError(f"a delegate of kind {self.kind} takes no options")

    @property
    def name(self) -> str:
        """As states and messages show it; the library by its file's name alone."""
        return f"{self.kind}:{PurePath(self.library).name}" if self.library else self.kind

    def to_dict(self) -> dict[str, object]:
        return {"kind": self.kind, "library": self.library, "options": dict(self.options)}


DEFAULT_CHAIN = (DelegateSpec("xnnpack"), DelegateSpec("builtin"))


class DelegateFailed(Exception):
    """A delegate does not work; the text is one clause that says why, without paths."""


class Delegate(Protocol):
    """One way to run a model. Made anew for each interpreter, which it must outlive."""

    kind: ClassVar[str]

    def __init__(self, spec: DelegateSpec) -> None: ...

    def interpreter(self, path: str, threads: int) -> Any:
        """An interpreter of the model file, tensors allocated. Raises DelegateFailed."""
        ...

    def version(self) -> str:
        """Of the library or runtime; "" when it does not say."""
        ...
