"""Settings that are changed while the gateway runs take hold, and go back to what was configured."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from random import Random

import pytest

from gateway.telemetry.settings import Settings
from gateway.telemetry.spans import Tracing
from oip.errors import OipError
from tests.support.log_levels import at_warning


def share(tracing: Tracing) -> float:
    """Of requests that are recorded."""
    found = [tracing.request(None, None, 0.0, {}).sampled for _ in range(2000)]
    return sum(found) / len(found)


def test_the_sampled_share_follows_the_settings():
    tracing = Tracing(lambda span: None, 0.3, Random(1))
    settings = Settings(tracing, 0.3)
    assert settings.trace({})["trace_rate"] == ["3"]
    assert share(tracing) == pytest.approx(0.3, abs=0.04)
    assert settings.trace({"trace_rate": ["1"]})["trace_rate"] == ["1"]
    assert share(tracing) == 1
    settings.trace({"trace_level": ["OFF"]})
    assert share(tracing) == 0
    with pytest.raises(OipError):
        settings.trace({"trace_level": ["TIMESTAMPS"], "trace_rate": ["no"]})
    assert share(tracing) == 0
    settings.trace({"trace_level": None, "trace_rate": None})
    assert share(tracing) == pytest.approx(0.3, abs=0.04)


def test_a_gateway_that_traces_nothing_can_be_told_to():
    tracing = Tracing(lambda span: None, 0.0, Random(1))
    settings = Settings(tracing, 0.0)
    assert settings.trace({})["trace_level"] == ["OFF"]
    assert share(tracing) == 0
    settings.trace({"trace_level": ["TIMESTAMPS"], "trace_rate": ["2"]})
    assert share(tracing) == pytest.approx(0.5, abs=0.05)
    assert settings.trace({"trace_level": [], "trace_rate": []})["trace_rate"] == ["1000"]
    assert share(tracing) == 0


@pytest.fixture
def levels() -> Iterator[None]:
    with at_warning():
        yield


@pytest.mark.usefixtures("levels")
def test_the_level_follows_the_settings():
    settings = Settings(Tracing(None, 0.0), 0.0)
    assert settings.log({})["log_info"] is False
    assert settings.log({})["log_warning"] is True
    for changes, level in (
        ({"log_info": True}, logging.INFO),
        ({"log_verbose_level": 1}, logging.DEBUG),
        ({"log_verbose_level": 0, "log_info": False}, logging.WARNING),
        ({"log_warning": False}, logging.ERROR),
        ({"log_error": False}, logging.CRITICAL + 1),
    ):
        settings.log(changes)
        assert logging.getLogger("gateway.pipeline").getEffectiveLevel() == level
        assert logging.getLogger("oip.codec").getEffectiveLevel() == level
    with pytest.raises(OipError):
        settings.log({"log_info": True})
    assert logging.getLogger("gateway").level == logging.CRITICAL + 1


@pytest.mark.usefixtures("levels")
def test_a_replica_that_starts_goes_on_with_what_the_others_have():
    old, tracing = Settings(Tracing(None, 0.5), 0.5), Tracing(lambda span: None, 0.5, Random(1))
    old.trace({"trace_rate": ["4"]})
    old.log({"log_info": True})
    new = Settings(tracing, 0.5)
    new.adopt(old.state)
    assert new.state == old.state
    assert share(tracing) == pytest.approx(0.25, abs=0.05)
    assert new.log({})["log_info"] is True
    new.trace({"trace_rate": ["2"]})
    new.adopt(old.state)
    assert new.trace({})["trace_rate"] == ["2"], "what has seen fewer changes is older"
    fresh = Settings(Tracing(None, 0.5), 0.5)
    fresh.adopt(Settings(Tracing(None, 0.1), 0.1).state)
    assert fresh.trace({})["trace_rate"] == ["2"], "its own configuration"
