"""One stage for the whole folder, which one worker takes, and which is gone before it takes anything else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.python_models import MODELS
from tests.conformance.stage import Stage, set_up
from tests.support.triton import REPOSITORY


@pytest.fixture(scope="package")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with set_up(REPOSITORY, tmp_path_factory.mktemp("stage"), only=MODELS) as found:
        yield found
