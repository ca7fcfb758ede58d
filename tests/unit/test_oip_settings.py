"""Trace and log settings: what a change may be, and what holds after it."""

from __future__ import annotations

from typing import Any

import pytest

from oip.errors import OipError
from oip.reasons import Reason
from oip.settings import (
    LogSettings,
    TraceSettings,
    changed_log,
    changed_trace,
    json_trace,
    json_trace_changes,
)

FIRST = TraceSettings(True, 20)
LOG = LogSettings(False, True, True)


def refused(call: Any, *arguments: Any) -> str:
    with pytest.raises(OipError) as caught:
        call(*arguments)
    assert caught.value.reason is Reason.MALFORMED
    return caught.value.message


@pytest.mark.parametrize(
    ("changes", "then"),
    [
        ({}, TraceSettings(False, 7)),
        ({"trace_level": ["TIMESTAMPS"]}, TraceSettings(True, 7)),
        ({"trace_level": ["OFF"], "trace_rate": ["1"]}, TraceSettings(False, 1)),
        ({"trace_level": None}, TraceSettings(True, 7)),
        ({"trace_rate": []}, TraceSettings(False, 20)),
        ({"trace_mode": ["opentelemetry"], "trace_count": None}, TraceSettings(False, 7)),
    ],
)
def test_changes_of_the_trace(changes: Any, then: TraceSettings):
    assert changed_trace(TraceSettings(False, 7), FIRST, changes) == then


@pytest.mark.parametrize(
    "changes",
    [
        {"bogus": ["1"]},
        {"trace_level": ["TENSORS"]},
        {"trace_level": ["TIMESTAMPS", "TENSORS"]},
        {"trace_level": ["OFF", "TIMESTAMPS"]},
        {"trace_rate": ["0"]},
        {"trace_rate": ["-1"]},
        {"trace_rate": ["often"]},
        {"trace_rate": ["٧"]},
        {"trace_rate": ["1", "2"]},
        {"trace_rate": ["99999999999"]},
        {"trace_file": ["/tmp/x"]},
        {"trace_mode": ["triton"]},
        {"trace_rate": ["5"], "trace_count": ["5"]},
    ],
)
def test_changes_that_the_trace_does_not_take(changes: Any):
    refused(changed_trace, FIRST, FIRST, changes)


def test_the_ratio_follows():
    assert TraceSettings(True, 4).ratio == 0.25
    assert TraceSettings(False, 4).ratio == 0.0


def test_trace_settings_as_json():
    told = json_trace(FIRST.told())
    assert (told["trace_level"], told["trace_rate"]) == (["TIMESTAMPS"], "20")
    given = {"trace_level": ["OFF"], "trace_rate": "1", "x": None}
    assert json_trace_changes(given) == {"trace_level": ["OFF"], "trace_rate": ["1"], "x": None}
    for wrong in ({"trace_rate": 1}, {"trace_level": "OFF"}, {"trace_level": [1]}, {"trace_rate": ["1"]}):
        assert "needs a string" in refused(json_trace_changes, wrong)


@pytest.mark.parametrize(
    ("changes", "then"),
    [
        ({}, LOG),
        ({"log_info": True}, LogSettings(True, True, True)),
        ({"log_warning": False}, LogSettings(False, False, True)),
        ({"log_error": False, "log_warning": False}, LogSettings(False, False, False)),
        ({"log_verbose_level": 3, "log_format": "default"}, LogSettings(False, True, True, 3)),
    ],
)
def test_changes_of_the_log(changes: Any, then: LogSettings):
    assert changed_log(LOG, changes) == then


@pytest.mark.parametrize(
    "changes",
    [
        {"bogus": 1},
        {"log_verbose_level": -1},
        {"log_verbose_level": True},
        {"log_verbose_level": "1"},
        {"log_verbose_level": 2**31},
        {"log_info": 1},
        {"log_info": None},
        {"log_format": "ISO8601"},
        {"log_file": "/etc/passwd"},
        {"log_file": ""},
        {"log_error": False},
        {"log_info": True, "log_warning": False},
    ],
)
def test_changes_that_the_log_does_not_take(changes: Any):
    refused(changed_log, LOG, changes)
