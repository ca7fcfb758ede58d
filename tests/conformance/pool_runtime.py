"""`runtime: fixtures`: a pool that runs the fixture models in Python. An artifact is a model's name.

It is installed as any other package's runtime would be: `installed` gives a folder for PYTHONPATH that has the
entry point.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from gateway.pool.runtimes._interface import LoadError, Session
from oip.signature import Signature
from tests.conformance.python_models import MODELS, Array, PythonModel

SUFFIX = "fixture"


class FixtureRuntime:
    kind: ClassVar[str] = "fixtures"
    formats: ClassVar[tuple[str, ...]] = (SUFFIX,)

    def load(self, model: bytes, resources: Mapping[str, float]) -> Session:
        name = model.decode(errors="replace")
        if name not in MODELS:
            raise LoadError("it is no fixture model")
        return _Session(MODELS[name])


class _Session:
    def __init__(self, model: PythonModel) -> None:
        self._model = model
        self._stopped = False
        self.signature = Signature(model.inputs, model.outputs)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self._stopped = False
        return self._model.run(inputs, lambda: self._stopped)

    def stop(self) -> None:
        self._stopped = True


def artifact(folder: Path, name: str) -> Path:
    """A model's file."""
    path = folder / f"{name}.{SUFFIX}"
    path.write_text(name)
    return path


def installed(folder: Path) -> Path:
    """What a package manager would have left of the package that has this runtime."""
    info = folder / "tidegate_fixtures-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tidegate-fixtures\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        f"[tidegate.pool.runtimes]\nfixtures = {__name__}:{FixtureRuntime.__name__}\n"
    )
    return folder
