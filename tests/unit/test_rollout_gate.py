"""The gate: what passes, what refuses and with which words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.config.updates import GateConfig
from gateway.core.fleet import TrialReport
from gateway.rollout.gate import Figures, Quality, Rule, Verdict, judge

TRIAL = TrialReport(
    "sha256:0", "active", p50_ms=1.2, p95_ms=2.0, runs=30, active_p50_ms=1.0, active_p95_ms=9.0
)


def quality(format: str, *right: int, of: int = 50) -> Quality:
    """So many right of `of` rows, class by class."""
    return Quality(format, dict.fromkeys(range(len(right)), of), dict(enumerate(right)))


GOOD = Figures(
    candidate={"onnx": quality("onnx", 48, 48), "tflite": quality("tflite", 47, 47)},
    current={"onnx": quality("onnx", 40, 40), "tflite": quality("tflite", 39, 39)},
    fits={"cam-1": "", "cam-2": ""},
    trial=TRIAL,
    tried_on="cam-1",
)


def ruled(figures: Figures, **keys: Any) -> tuple[Verdict, dict[str, Rule]]:
    verdict = judge(figures, GateConfig.model_validate(keys))
    return verdict, {rule.name: rule for rule in verdict.rules}


def test_a_better_one_passes_and_tells_its_figures():
    verdict, rules = ruled(GOOD, min=0.9)
    assert verdict.passed
    assert verdict.reasons == ()
    assert {name: rule.passed for name, rule in rules.items()} == {
        "held_out": True, "min": True, "not_worse_than_current": True, "per_class_drop": True,
        "quantized_drop": True, "compatibility": True, "golden": True, "latency_ratio": True,
    }  # fmt: skip
    assert verdict.metrics == {
        "accuracy.onnx": 0.96, "accuracy.tflite": 0.94, "current.accuracy.onnx": 0.8,
        "current.accuracy.tflite": 0.78, "held_out_rows": 100.0, "latency_p50_ms": 1.2,
    }  # fmt: skip
    assert rules["quantized_drop"].sentence == (
        "The file for devices is 2 % worse than its source, and 3 % worse is allowed."
    )


@pytest.mark.parametrize(
    ("name", "config", "met", "missed"),
    [
        ("min", {"min": 0.94}, {}, {"tflite": quality("tflite", 47, 46)}),
        ("quantized_drop", {"quantized_drop": 0.02}, {}, {"tflite": quality("tflite", 47, 46)}),
        (
            "per_class_drop",
            {"per_class_drop": 0.1, "not_worse_than_current": False},
            {"onnx": quality("onnx", 35, 50), "tflite": quality("tflite", 35, 50)},
            {"onnx": quality("onnx", 34, 50), "tflite": quality("tflite", 35, 50)},
        ),
        (
            "not_worse_than_current",
            {},
            {"onnx": quality("onnx", 40, 40), "tflite": quality("tflite", 39, 39)},
            {"tflite": quality("tflite", 38, 39), "onnx": quality("onnx", 39, 41)},
        ),
    ],
)
def test_a_bound_that_is_met_exactly_is_met_and_one_answer_less_is_not(
    name: str, config: dict[str, Any], met: dict[str, Quality], missed: dict[str, Quality]
):
    verdict, rules = ruled(replace(GOOD, candidate={**GOOD.candidate, **met}), **config)
    assert (rules[name].passed, verdict.passed) == (True, True), rules[name]
    verdict, rules = ruled(replace(GOOD, candidate={**GOOD.candidate, **met, **missed}), **config)
    assert [rule.name for rule in verdict.rules if rule.passed is False] == [name]
    assert verdict.reasons == (rules[name].sentence,)


def test_one_class_that_is_lost_refuses_whatever_the_others_gain():
    verdict, rules = ruled(replace(GOOD, candidate={"onnx": quality("onnx", 50, 30)}))
    assert not verdict.passed
    assert rules["per_class_drop"].sentence == (
        "Class 1 loses 20 % of its accuracy (onnx, 50 rows), and 10 % is allowed."
    )
    assert rules["per_class_drop"].value == pytest.approx(0.2)


@pytest.mark.parametrize(("ms", "passed"), [(1.5, True), (1.51, False)])
def test_a_device_that_takes_longer_refuses(ms: float, passed: bool):
    verdict, rules = ruled(replace(GOOD, trial=replace(TRIAL, p50_ms=ms)), latency_ratio=1.5)
    assert rules["latency_ratio"].passed is passed
    assert verdict.passed is passed
    assert rules["latency_ratio"].value == ms


def test_microseconds_more_refuse_nobody():
    trial = replace(TRIAL, active_p50_ms=0.01, p50_ms=0.02)
    verdict, rules = ruled(replace(GOOD, trial=trial), latency_ratio=1.5)
    assert verdict.passed
    assert rules["latency_ratio"].value == 2.0
    assert "less than 0.5 ms more" in rules["latency_ratio"].sentence


@pytest.mark.parametrize(
    ("changes", "rule", "says"),
    [
        ({"candidate": {}}, "held_out", "No file of the candidate was measured"),
        ({"candidate": {"onnx": quality("onnx")}}, "held_out", "set gate.data, or collect and label samples"),
        ({"unmeasured": {"candidate tflite": "no such operator"}}, "runs", "candidate tflite could not be measured: no such"),
        ({"unmeasured": {"current onnx": "no such operator"}}, "runs", "current onnx"),
        ({"current": {}}, "not_worse_than_current", "nothing to compare with"),
        ({"current": {"onnx": quality("onnx", 40)}}, "held_out", "not all measured on the same rows"),
        ({"trial": replace(TRIAL, active_p50_ms=float("nan"))}, "latency_ratio", "nan times"),
        ({"trial": None}, "golden", "No device could try it"),
        ({"trial": None}, "latency_ratio", "No device has timed it"),
        ({"trial": replace(TRIAL, runs=0)}, "latency_ratio", "No device has timed it"),
        ({"trial": replace(TRIAL, p50_ms=float("nan"))}, "latency_ratio", "No device has timed it"),
        ({"trial": replace(TRIAL, state="failed", reason="off by 3.")}, "golden", "cam-1 did not get it to work: off by 3."),
        ({"trial": replace(TRIAL, state="trying")}, "golden", "it is trying"),
        ({"fits": {"cam-1": "no operator X", "cam-2": "too small"}}, "compatibility", "No device can run it: cam-1 (no"),
    ],
)  # fmt: skip
def test_no_evidence_is_not_success(changes: dict[str, Any], rule: str, says: str):
    verdict = judge(replace(GOOD, **changes), GateConfig())
    refused = {found.name: found.sentence for found in verdict.rules if found.passed is False}
    assert not verdict.passed
    assert says in refused[rule]


def test_devices_that_cannot_run_it_are_left_out_by_name():
    fits = {f"cam-{n}": "no operator X" if n < 7 else "" for n in range(10)}
    verdict, rules = ruled(replace(GOOD, fits=fits, tried_on="cam-8"))
    assert verdict.passed
    assert verdict.excluded == {f"cam-{n}": "no operator X" for n in range(7)}
    assert rules["compatibility"].sentence.startswith(
        "3 of 10 devices can run it; left out: cam-0 (no operator X)"
    )
    assert rules["compatibility"].sentence.endswith("and 2 more.")


def test_where_no_device_is_to_run_it_none_need_try_it():
    verdict, rules = ruled(replace(GOOD, fits={}, trial=None, tried_on=""))
    assert verdict.passed
    assert {name for name, rule in rules.items() if rule.passed is None} == {
        "compatibility", "golden", "latency_ratio",
    }  # fmt: skip


def test_the_first_version_has_nothing_to_compare_with():
    verdict, rules = ruled(replace(GOOD, current={}, compared=False))
    assert verdict.passed
    assert rules["not_worse_than_current"].sentence == "There is no current version to compare with."
    assert rules["per_class_drop"].passed is None
    assert not ruled(replace(GOOD, current={}, compared=False), min=0.95)[0].passed


def test_a_file_without_a_counterpart_is_compared_with_what_there_is_and_told():
    tflite = {"tflite": quality("tflite", 41, 41)}
    verdict, rules = ruled(replace(GOOD, candidate=tflite))
    assert verdict.passed
    assert rules["quantized_drop"].passed is None
    assert rules["quantized_drop"].sentence == "There is no onnx file to compare the other with."
    assert "the current onnx could not be compared" in rules["not_worse_than_current"].sentence
    # Another slot of the same format comes before a better file of another.
    special = {"cameras": quality("tflite", 39, 39)}
    assert ruled(replace(GOOD, candidate=special))[0].passed
    # With no file of its format, it is held against the best.
    onnx_alone = {"onnx": quality("onnx", 42, 42)}
    assert not ruled(replace(GOOD, candidate=tflite, current=onnx_alone))[0].passed


def test_the_operator_may_do_without_a_comparison():
    alone = replace(GOOD, current={}, unmeasured={"current onnx": "no such operator"})
    assert not ruled(alone)[0].passed
    assert ruled(alone, not_worse_than_current=False, per_class_drop=1.0)[0].passed


def test_a_device_with_nothing_to_compare_with_is_told():
    _, rules = ruled(replace(GOOD, trial=replace(TRIAL, active_p50_ms=0.0)))
    assert rules["latency_ratio"].passed is None
    assert "cam-1 takes 1.2 ms, and runs no version to compare with" in rules["latency_ratio"].sentence


COUNTS = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 9)).map(lambda p: (p[0], min(p))), min_size=1, max_size=4
)


@given(COUNTS, COUNTS, st.integers(0, 100), st.booleans())
def test_what_passes_has_shown_every_bound(
    new: list[tuple[int, int]], old: list[tuple[int, int]], percent: int, compare: bool
):
    """Told anew in whole numbers."""
    rows = [max(n for n, _ in pair) for pair in zip(new, old, strict=False)]
    mine, theirs = (
        [min(n, r) for (_, n), r in zip(new, rows, strict=False)],
        [min(n, r) for (_, n), r in zip(old, rows, strict=False)],
    )
    at = dict(enumerate(rows))
    figures = replace(
        GOOD,
        candidate={"tflite": Quality("tflite", at, dict(enumerate(mine)))},
        current={"tflite": Quality("tflite", at, dict(enumerate(theirs)))},
    )
    verdict, _ = ruled(figures, min=percent / 100, not_worse_than_current=compare, per_class_drop=0.25)
    wanted = (
        sum(mine) * 100 >= percent * sum(rows)
        and (not compare or sum(mine) >= sum(theirs))
        and all(4 * (b - a) <= r for a, b, r in zip(mine, theirs, rows, strict=True))
    )
    assert verdict.passed is wanted
