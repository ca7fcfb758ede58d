"""How the `tidegate` command ends where the gateway's parts are not installed, as on a device."""

from __future__ import annotations

import sys

import pytest

from gateway.cli.main import run

DEVICE = "tidegate: httpx is not installed here; this command needs pip install 'tidegate[gateway]'\n"


@pytest.mark.parametrize(
    "line", ["route --model m", "devices list", "devices token --site s", "devices revoke cam-7a"]
)
def test_a_missing_extra_is_named_in_one_line(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "httpx", None)
    assert run(line.split()) == 1
    assert capsys.readouterr().err == DEVICE


def test_the_demo_names_its_own_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.delitem(sys.modules, "gateway.demo.digits", raising=False)
    monkeypatch.delitem(sys.modules, "gateway.demo.scenes", raising=False)
    monkeypatch.delitem(sys.modules, "gateway.demo.plant_scenes", raising=False)
    monkeypatch.setitem(sys.modules, "httpx", None)
    assert run(["demo"]) == 1
    assert capsys.readouterr().err.endswith("this command needs pip install 'tidegate[demo]'\n")


def test_a_missing_part_of_the_project_is_no_missing_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gateway.core.config.load", None)
    with pytest.raises(ModuleNotFoundError):
        run(["up"])
