"""How `pytest -n 3` spreads the suite: whole files, so that what a module starts is started once, the
folders that wait the longest first."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SLOWEST_FIRST = (
    "demo",
    "chaos",
    "contract",
    "conformance",
    "soak",
    "integration",
    "property",
    "unit",
    "bench",
    "arch",
)
ONE_STAGE = ("demo", "conformance")
"""Folders whose files share one stage."""
STAGE_TIMEOUT_S = 600
"""Setting the stage is part of the first test's time: two minutes on free cores."""


class WholeFiles(LoadScopeScheduling):
    """A worker takes a file, or all of one stage's. By ids alone: with pytest 9.2, xdist 3.8 forgets groups
    that are made by marks."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return next((folder for folder in ONE_STAGE if f"/{folder}/" in file), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> WholeFiles:
    return WholeFiles(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: SLOWEST_FIRST.index(item.path.parent.name))
    for item in items:
        if item.path.parent.name in ONE_STAGE:
            item.add_marker(pytest.mark.timeout(STAGE_TIMEOUT_S))
