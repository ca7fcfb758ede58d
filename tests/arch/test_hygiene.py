"""What the tree and the lock must not hold, and what the wheel must."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.arch.project import ROOT

FOLDERS = ("gateway", "edge_agent", "proto", "tests", "docs", "deploy", ".ci")
SOURCES = ("gateway", "edge_agent", "proto")
LONGEST_MODULE = 500


def files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def test_no_file_names_a_machines_folders():
    folders = re.compile("/" + "(work|root|tmp/w)" + r"(/|\b)")
    top = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    found = []
    for path in [*files(*FOLDERS), *top]:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{number}"
            for number, line in enumerate(lines, 1)
            if re.search(r"(?<![\w.$}\-])" + folders.pattern, line)
        ]
    assert found == []


def test_the_lock_holds_pins_and_hashes_only():
    other = [
        line
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if not re.fullmatch(
            r"[a-z0-9][a-z0-9.\-]*==[\w.+!]+( ; [^:/\\]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?", line
        )
    ]
    assert other == []


def test_modules_stay_short():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in files(*SOURCES)
        if path.suffix == ".py" and not path.stem.endswith(("_pb2", "_pb2_grpc"))
    }
    assert {name: length for name, length in lengths.items() if length >= LONGEST_MODULE} == {}


def test_proto_is_no_package():
    assert not (ROOT / "proto" / "__init__.py").exists()


def project() -> dict[str, list[Requirement]]:
    """The project's requirements: its own under "", and those of each extra."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": table["dependencies"], **table["optional-dependencies"]}
    return {name: [Requirement(line) for line in lines] for name, lines in groups.items()}


def resolve(extra: str) -> dict[str, list[Requirement]]:
    """Everything that installing `tidegate[extra]` brings here, with who asks for which versions."""
    own = project()
    found: dict[str, list[Requirement]] = {}
    seen: set[tuple[str, str]] = set()
    queue = [*own[""], *own[extra]]
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if name == "tidegate":
            queue += [entry for group in requirement.extras for entry in own[group]]
            continue
        found.setdefault(name, []).append(requirement)
        for group in ("", *requirement.extras):
            if (name, group) in seen:
                continue
            seen.add((name, group))
            queue += [
                entry
                for line in distribution(name).requires or []
                if (entry := Requirement(line)).marker is None or entry.marker.evaluate({"extra": group})
            ]
    return found


def lock() -> dict[str, str]:
    pins = re.findall(r"^([a-z0-9.\-]+)==([\w.+!]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pins}


@pytest.mark.parametrize("extra", ["gateway", "pool", "agent", "demo", "dev"])
def test_the_lock_satisfies_every_extra(extra: str):
    pins = lock()
    wrong = [
        f"{name}: {requirement.specifier}, locked {pins.get(name)}"
        for name, requirements in resolve(extra).items()
        for requirement in requirements
        if name not in pins or not requirement.specifier.contains(pins[name], prereleases=True)
    ]
    assert wrong == []


def test_the_lock_is_what_is_installed():
    here = {name: distribution(name).version for name in resolve("dev")}
    pins = lock()
    assert {name: version for name, version in here.items() if pins[name] != version} == {}


def test_the_agent_needs_neither_ray_nor_fastapi():
    names = set(resolve("agent"))
    assert names.isdisjoint({"ray", "fastapi", "starlette", "sqlalchemy", "nvidia-pytriton"})
    assert {"tflite-runtime", "grpcio", "tritonclient"} <= names


def test_the_pins_that_hold_the_stack_together():
    pins = lock()
    assert int(pins["numpy"].split(".")[0]) < 2
    assert int(pins["protobuf"].split(".")[0]) < 7
    assert pins["tflite-runtime"] == "2.14.0"


def test_the_wheel_holds_the_packages_with_their_data_and_nothing_else(tmp_path: Path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        str(path.relative_to(base))
        for base, package in (
            (ROOT, "gateway"),
            (ROOT, "edge_agent"),
            (ROOT / "proto", "proto/oip"),
            (ROOT / "proto", "proto/edgewire"),
        )
        for path in files(package)
        if path.suffix != ".pyc"
    }
    assert packed == expected
    assert "oip/reasons.py" in packed
