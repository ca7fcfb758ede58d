"""How `pytest -n 3` spreads the suite: whole files, so that what a module starts is started once, the
folders that wait the longest first."""

from __future__ import annotations

import pytest

SLOWEST_FIRST = ("demo", "chaos", "contract", "integration", "property", "unit", "bench", "arch")
ONE_STAGE = "demo"
"""The folder whose files share one stage."""
STAGE_TIMEOUT_S = 600
"""Setting the stage is part of the first test's time: two minutes on free cores."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: SLOWEST_FIRST.index(item.path.parent.name))
    for item in items:
        folder = item.path.parent.name
        item.add_marker(pytest.mark.xdist_group(folder if folder == ONE_STAGE else item.path.stem))
        if folder == ONE_STAGE:
            item.add_marker(pytest.mark.timeout(STAGE_TIMEOUT_S))
