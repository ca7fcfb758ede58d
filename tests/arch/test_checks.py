"""The parts of `make check`, so that the suite fails with them."""

from __future__ import annotations

import pytest

from tests.arch.project import make


@pytest.mark.parametrize("target", ["format", "lint", "types"])
def test_check_passes(target: str):
    result = make(target)
    assert result.returncode == 0, result.stdout
