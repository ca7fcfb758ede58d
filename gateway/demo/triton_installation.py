"""The tritonserver of this environment, and what it needs to run.

The nvidia-pytriton wheel carries the binary, its libraries and the Python backend. Missing are a
backend folder with the stub of *this* Python, the library path, an environment first on PATH from
which models import, and NumPy below 2 (with 2 this backend answers with empty tensors).

TritonError        the server did not start, or ended before it was ready
└── TritonMissing  this environment cannot run one at all (no wheel, wrong NumPy, no libpython)
"""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple


class TritonError(RuntimeError):
    """The server did not become ready. The message says why, with the end of its log."""


class TritonMissing(TritonError):
    """This environment cannot run a Triton. The message says what to install."""


class Installation(NamedTuple):
    """Where this environment's tritonserver is. `root` is the wheel's `pytriton/tritonserver`."""

    root: Path
    libraries: Path

    def binary(self, work: Path) -> Path:
        """The executable; a copy when the installer dropped its mode bit."""
        binary = self.root / "bin" / "tritonserver"
        return binary if os.access(binary, os.X_OK) else _executable_copy(binary, work / "tritonserver")

    def backends(self, work: Path) -> Path:
        """A backend folder below `work` whose Python backend runs models in this very Python."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = self.root / "python_backend_stubs" / version / "triton_python_backend_stub"
        if not stub.is_file():
            raise TritonMissing(f"the nvidia-pytriton wheel has no Python backend stub for Python {version}")
        target = work / "backends"
        shutil.copytree(self.root / "backends" / "python", target / "python")
        _executable_copy(stub, target / "python" / stub.name)
        return target

    def environment(self) -> dict[str, str]:
        """This process's environment with the server's libraries and this Python in front."""
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONPATH")}
        libdir = sysconfig.get_config_var("LIBDIR") or ""
        paths = [str(self.libraries), libdir, env.get("LD_LIBRARY_PATH", "")]
        env["LD_LIBRARY_PATH"] = os.pathsep.join(p for p in paths if p)
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
        return env


def find_installation() -> Installation:
    """The Triton of this environment. Raises TritonMissing, saying what to install."""
    spec = importlib.util.find_spec("pytriton")
    site = Path(spec.origin).parent.parent if spec is not None and spec.origin is not None else None
    if site is None or not (site / "pytriton/tritonserver/bin/tritonserver").is_file():
        raise TritonMissing("no tritonserver in this environment: pip install 'tidegate[demo]'")
    try:
        numpy = importlib.metadata.version("numpy")
    except importlib.metadata.PackageNotFoundError:
        raise TritonMissing("no NumPy in this environment: pip install 'numpy<2'") from None
    if int(numpy.split(".")[0]) >= 2:
        raise TritonMissing(
            f"NumPy {numpy}: this Triton's models would answer with empty tensors; pip install 'numpy<2'"
        )
    library = sysconfig.get_config_var("INSTSONAME") or ""
    beside = Path(sysconfig.get_config_var("LIBDIR") or "", library)
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not (".so" in library and beside.is_file()) and ctypes.util.find_library(name) is None:
        raise TritonMissing(f"no shared library lib{name}.so: use a Python built with --enable-shared")
    return Installation(site / "pytriton" / "tritonserver", site / "nvidia_pytriton.libs")


def _executable_copy(source: Path, target: Path) -> Path:
    shutil.copyfile(source, target)
    target.chmod(0o755)
    return target
