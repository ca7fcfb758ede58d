"""What discovery finds, in this package and in others."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.plugins import discover
from tests.conformance.pool_runtime import FixtureRuntime, installed

PACKAGE = "gateway.pool.runtimes"
anew = discover.__wrapped__


def test_another_packages_class_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    own = anew(PACKAGE)
    assert "fixtures" not in own
    monkeypatch.syspath_prepend(installed(tmp_path))
    assert anew(PACKAGE) == {**own, "fixtures": FixtureRuntime}
    assert anew("gateway.backends").keys() == discover("gateway.backends").keys()


def test_two_of_one_kind_are_told_apart_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for folder in ("a", "b"):
        points = installed(tmp_path / folder) / "tidegate_fixtures-1.dist-info" / "entry_points.txt"
        points.parent.rename(points.parent.with_name(f"of_{folder}-1.dist-info"))
        monkeypatch.syspath_prepend(tmp_path / folder)
    with pytest.raises(ValueError, match="FixtureRuntime and FixtureRuntime both claim kind 'fixtures'"):
        anew(PACKAGE)
