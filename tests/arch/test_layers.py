"""The dependency rule holds, and `make check` says who breaks it."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.arch.project import ROOT, copy_sources, make

PURE = {
    "core", "policy", "routing", "resilience", "rollout", "drift", "compat", "decide", "simulate",
}  # fmt: skip
IMPURE_MODULES = {
    "asyncio", "time", "random", "socket", "grpc", "ray", "fastapi", "sqlalchemy", "opentelemetry",
    "tritonclient",
}  # fmt: skip


def contracts() -> dict[str, dict[str, list[str]]]:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return {contract["id"]: contract for contract in linter["contracts"]}


def plant(root: Path, module: str, line: str) -> None:
    """Append a line to a module, which is made with its packages where it is missing."""
    top, *_ = parts = module.split(".")
    path = (root / "proto" if top == "oip" else root).joinpath(*parts).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "__init__.py").touch()
    with path.open("a") as file:
        file.write(f"\n{line}\n")


def layers(root: Path) -> subprocess.CompletedProcess[str]:
    return make("layers", root)


def test_the_rule_holds():
    result = layers(ROOT)
    assert result.returncode == 0, result.stdout


def test_check_looks_at_the_layers():
    rule = (ROOT / "Makefile").read_text().split("\ncheck:", 1)[1].split("\n", 1)[0]
    assert {"format", "lint", "types", "layers"} <= set(rule.split("##")[0].split())


@pytest.mark.parametrize(
    ("module", "line", "named"),
    [
        pytest.param(
            "gateway.core.request",
            "import asyncio",
            "gateway.core is not allowed to import asyncio",
            id="a pure room importing asyncio",
        ),
        pytest.param(
            "gateway.decide.planted",
            "from time import monotonic",
            "gateway.decide is not allowed to import time",
            id="a pure room asking the clock",
        ),
        pytest.param(
            "gateway.policy.privacy",
            "import gateway.backends.planted",
            "gateway.policy is not allowed to import gateway.backends",
            id="an import upwards",
        ),
        pytest.param(
            "gateway.core.planted",
            "def f():\n    import gateway.backends.planted",
            "gateway.core is not allowed to import gateway.backends",
            id="an import upwards inside a function",
        ),
        pytest.param(
            "gateway.policy.planted",
            "import gateway.routing.planted",
            "gateway.policy is not allowed to import gateway.routing",
            id="a neighbour importing a neighbour",
        ),
        pytest.param(
            "oip.planted",
            "import gateway.core.request",
            "oip is not allowed to import gateway",
            id="oip importing the gateway",
        ),
        pytest.param(
            "oip.planted",
            "import tritonclient.grpc",
            "oip is not allowed to import tritonclient",
            id="another module of oip importing the stubs",
        ),
    ],
)
def test_a_planted_fault_is_named(tmp_path: Path, module: str, line: str, named: str):
    root = copy_sources(tmp_path)
    for target in ("gateway.backends.planted", "gateway.routing.planted"):
        plant(root, target, "")
    assert layers(root).returncode == 0
    plant(root, module, line)
    result = layers(root)
    assert result.returncode != 0
    assert named in result.stdout


def test_the_stubs_do_not_reach_a_pure_room_through_the_codec(tmp_path: Path):
    root = copy_sources(tmp_path)
    plant(root, "gateway.core.request", "import oip.codec")
    result = layers(root)
    assert result.returncode != 0
    assert "gateway.core is not allowed to import tritonclient" in result.stdout


def test_an_unlisted_room_is_refused(tmp_path: Path):
    root = copy_sources(tmp_path)
    plant(root, "gateway.attic.planted", "")
    result = layers(root)
    assert result.returncode != 0
    assert "gateway.attic" in result.stdout


def test_every_pure_room_is_under_the_pure_rule():
    pure = contracts()["pure-rooms"]
    made = {f"gateway.{room}" for room in PURE if (ROOT / "gateway" / room / "__init__.py").exists()}
    assert set(pure["source_modules"]) == made
    assert set(pure["forbidden_modules"]) == IMPURE_MODULES


def test_oip_is_as_pure_and_knows_less():
    forbidden = set(contracts()["shared"]["forbidden_modules"]) | set(
        contracts()["pure-oip"]["forbidden_modules"]
    )
    assert forbidden == IMPURE_MODULES | {"gateway", "edge_agent"}
