"""What a release must show before any device gets it.

Every rule says what it found, the bound, and whether that passes. No evidence is not success: a rule that
has nothing to look at refuses, unless there is by nature nothing to compare with (the model's first version,
no device that could run it, a release of one file alone). Then it says so, and does not refuse.

Shares are compared as fractions of counts, so that a bound that is met exactly is met.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from gateway.core.config.updates import GateConfig
from gateway.core.fleet import TrialReport

CANDIDATE, CURRENT = "candidate ", "current "
"""What the names of files in `Figures.unmeasured` begin with."""
NAMED = 5
"""So many devices or classes are named in a sentence."""
ACTIVE = "active"
"""The state of a trial that worked: the device's own runtime gave the golden vectors."""


@dataclass(frozen=True, slots=True)
class Quality:
    """One file over the held-out data. `rows` and `right` by label."""

    format: str
    rows: Mapping[int, int]
    right: Mapping[int, int]

    @property
    def share(self) -> Fraction:
        """The accuracy; 0 without a row."""
        return _share(sum(self.right.values()), sum(self.rows.values()))

    @property
    def accuracy(self) -> float:
        return float(self.share)

    def of_class(self, label: int) -> Fraction:
        return _share(self.right.get(label, 0), self.rows.get(label, 0))


@dataclass(frozen=True, slots=True)
class Figures:
    """What was found out about a candidate. Files are named by slot, devices by name.

    `candidate`, `current`: their files over the same held-out data. `unmeasured`: files of either, as
    "candidate onnx", that could not be run, and why in a clause. `compared`: whether there is a current
    version at all. `fits`: every device that is to run the model, and why it cannot, "" for one that can.
    `trial` and `tried_on`: how it did on one of them.
    """

    candidate: Mapping[str, Quality]
    current: Mapping[str, Quality] = field(default_factory=dict[str, Quality])
    unmeasured: Mapping[str, str] = field(default_factory=dict[str, str])
    compared: bool = True
    fits: Mapping[str, str] = field(default_factory=dict[str, str])
    trial: TrialReport | None = None
    tried_on: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """`passed` None: there was by nature nothing to look at, and the rule does not refuse. `value` and
    `bound` are None where there is no one number."""

    name: str
    passed: bool | None
    sentence: str
    value: float | None = None
    bound: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """`excluded`: devices that cannot run it, which a rollout leaves out, and why."""

    rules: tuple[Rule, ...]
    excluded: Mapping[str, str]
    metrics: Mapping[str, float]

    @property
    def passed(self) -> bool:
        return all(rule.passed is not False for rule in self.rules)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The sentences of the rules that refuse."""
        return tuple(rule.sentence for rule in self.rules if rule.passed is False)


UNFELT_MS = 0.5
"""A longer run than before by less than this is passed whatever its ratio: the median of some tens of runs of
a few microseconds moves by half with what else the device does."""


def judge(figures: Figures, config: GateConfig) -> Verdict:
    """Hold what was found against the update's gate."""
    rules: list[Rule] = [_held_out(figures), *_unmeasured(figures, config)]
    if _rows(figures):
        rules.append(_least(figures, config))
        if config.not_worse_than_current:
            rules.append(_not_worse(figures))
        rules.append(_per_class(figures, config))
        rules.append(_quantized(figures, config))
    rules += [_compatible(figures), _golden(figures), _latency(figures, config)]
    excluded = {device: why for device, why in figures.fits.items() if why}
    return Verdict(tuple(rules), excluded, _metrics(figures))


def _rows(figures: Figures) -> int:
    return max((sum(quality.rows.values()) for quality in figures.candidate.values()), default=0)


def _held_out(figures: Figures) -> Rule:
    rows = _rows(figures)
    measured = [*figures.candidate.values(), *figures.current.values()]
    if rows and any(quality.rows != measured[0].rows for quality in measured):
        return Rule("held_out", False, "The files were not all measured on the same rows.", rows, 1)
    if rows:
        return Rule("held_out", True, f"There are {rows} held-out rows.", rows, 1)
    if not figures.candidate:
        return Rule("held_out", False, "No file of the candidate was measured.", 0, 1)
    return Rule(
        "held_out",
        False,
        "There is no held-out data to measure with: set gate.data, or collect and label samples.",
        0,
        1,
    )


def _unmeasured(figures: Figures, config: GateConfig) -> list[Rule]:
    compares = config.not_worse_than_current or config.per_class_drop < 1
    return [
        Rule(
            "runs",
            False if name.startswith(CANDIDATE) or compares else None,
            f"The file {name} could not be measured: {why}.",
        )
        for name, why in figures.unmeasured.items()
    ]


def _least(figures: Figures, config: GateConfig) -> Rule:
    slot, worst = min(figures.candidate.items(), key=lambda item: item[1].share)
    passed = worst.share >= _exactly(config.min)
    words = "is" if passed else "is below"
    return Rule(
        "min",
        passed,
        f"Accuracy {_percent(worst.share)} of {slot} {words}"
        f"{' at least' if passed else ''} {_percent(_exactly(config.min))}.",
        worst.accuracy,
        config.min,
    )


def _counterpart(figures: Figures, slot: str, quality: Quality) -> tuple[str, Quality] | None:
    """The current file that a candidate's is held against: of the same slot, else of the same format, else
    the best there is."""
    if slot in figures.current:
        return slot, figures.current[slot]
    alike = {name: other for name, other in figures.current.items() if other.format == quality.format}
    among = alike or figures.current
    return max(among.items(), key=lambda item: item[1].share, default=None)


def _pairs(figures: Figures) -> list[tuple[str, Quality, str, Quality]]:
    found: list[tuple[str, Quality, str, Quality]] = []
    for slot, quality in figures.candidate.items():
        other = _counterpart(figures, slot, quality)
        if other is not None:
            found.append((slot, quality, *other))
    return found


def _nothing_to_compare(name: str, figures: Figures, bound: float | None) -> Rule:
    if not figures.compared:
        return Rule(name, None, "There is no current version to compare with.", None, bound)
    return Rule(
        name,
        False,
        "No file of the current version was measured, so there is nothing to compare with: give it a file, "
        "or set gate.not_worse_than_current: false and gate.per_class_drop: 1.",
        None,
        bound,
    )


def _not_worse(figures: Figures) -> Rule:
    pairs = _pairs(figures)
    if not pairs:
        return _nothing_to_compare("not_worse_than_current", figures, None)
    slot, new, other, old = min(pairs, key=lambda pair: pair[1].share - pair[3].share)
    worse = new.share < old.share
    return Rule(
        "not_worse_than_current",
        not worse,
        f"Accuracy {_percent(new.share)} of {slot} is {'worse than' if worse else 'not worse than'} "
        f"{_percent(old.share)} of the current {other}{_left_alone(figures, pairs)}.",
        new.accuracy,
        old.accuracy,
    )


def _left_alone(figures: Figures, pairs: Iterable[tuple[str, Quality, str, Quality]]) -> str:
    """Current files that no file of the candidate was held against, which it has no counterpart for."""
    used = {other for _, _, other, _ in pairs}
    left = sorted(set(figures.current) - used)
    return (
        f"; the current {', '.join(left)} could not be compared, the candidate has no such file"
        if left
        else ""
    )


def _per_class(figures: Figures, config: GateConfig) -> Rule:
    bound = _exactly(config.per_class_drop)
    drops = [
        (old.of_class(label) - new.of_class(label), slot, label, count)
        for slot, new, _, old in _pairs(figures)
        for label, count in new.rows.items()
        if count and old.rows.get(label)
    ]
    if not drops:
        if config.per_class_drop >= 1:
            return Rule("per_class_drop", None, "No class could be compared.", None, config.per_class_drop)
        return _nothing_to_compare("per_class_drop", figures, config.per_class_drop)
    worst, slot, label, count = max(drops, key=lambda drop: drop[0])
    if worst <= 0:
        words = f"No class is read worse than by the current version ({slot})."
    else:
        words = (
            f"Class {label} loses {_percent(worst)} of its accuracy ({slot}, {count} rows), and "
            f"{_percent(bound)} is allowed."
        )
    return Rule("per_class_drop", worst <= bound, words, max(0.0, float(worst)), config.per_class_drop)


def _quantized(figures: Figures, config: GateConfig) -> Rule:
    bound = config.quantized_drop
    made = [q for q in figures.candidate.values() if q.format == "tflite"]
    source = [q for q in figures.candidate.values() if q.format == "onnx"]
    if not made or not source:
        lacking = "tflite" if source else "onnx"
        return Rule(
            "quantized_drop", None, f"There is no {lacking} file to compare the other with.", None, bound
        )
    drop = max(q.share for q in source) - min(q.share for q in made)
    return Rule(
        "quantized_drop",
        drop <= _exactly(bound),
        f"The file for devices is {_percent(abs(drop))} {'worse' if drop > 0 else 'better'} than its source, and "
        f"{_percent(_exactly(bound))} worse is allowed."
        if drop
        else "The file for devices is as good as its source.",
        float(drop),
        bound,
    )


def _compatible(figures: Figures) -> Rule:
    if not figures.fits:
        return Rule("compatibility", None, "No device is to run the model.")
    able = sum(not why for why in figures.fits.values())
    unable = [f"{device} ({why})" for device, why in sorted(figures.fits.items()) if why]
    left_out = f"; left out: {_some(unable)}" if unable else ""
    if not able:
        return Rule("compatibility", False, f"No device can run it: {_some(unable)}.", 0, 1)
    return Rule(
        "compatibility", True, f"{able} of {len(figures.fits)} devices can run it{left_out}.", able, 1
    )


def _golden(figures: Figures) -> Rule:
    if not figures.fits:
        return Rule("golden", None, "No device is to run the model, so none tried it.")
    trial = figures.trial
    if trial is None:
        return Rule("golden", False, "No device could try it: connect one that is to run the model.")
    if trial.state != ACTIVE:
        why = trial.reason.rstrip(".") or f"it is {trial.state}"
        return Rule("golden", False, f"{figures.tried_on} did not get it to work: {why}.")
    return Rule("golden", True, f"{figures.tried_on} gives the golden vectors.")


def _latency(figures: Figures, config: GateConfig) -> Rule:
    bound, trial = config.latency_ratio, figures.trial
    if not figures.fits:
        return Rule("latency_ratio", None, "No device is to run the model, so none timed it.", None, bound)
    if trial is None or trial.runs < 1 or not trial.p50_ms > 0:
        return Rule("latency_ratio", False, "No device has timed it.", None, bound)
    took = f"{figures.tried_on} takes {trial.p50_ms:.3g} ms"
    if trial.active_p50_ms == 0:
        return Rule("latency_ratio", None, f"{took}, and runs no version to compare with.", None, bound)
    ratio = trial.p50_ms / trial.active_p50_ms
    words = f"{took}, {ratio:.3g} times what the current version takes, and {bound:g} times is allowed."
    if ratio > bound and trial.p50_ms - trial.active_p50_ms < UNFELT_MS:
        words += f" It is less than {UNFELT_MS:g} ms more, which timing does not tell from chance."
        return Rule("latency_ratio", True, words, ratio, bound)
    return Rule("latency_ratio", ratio <= bound, words, ratio, bound)


def _metrics(figures: Figures) -> dict[str, float]:
    found = {f"accuracy.{slot}": quality.accuracy for slot, quality in figures.candidate.items()}
    found |= {f"current.accuracy.{slot}": quality.accuracy for slot, quality in figures.current.items()}
    if _rows(figures):
        found["held_out_rows"] = float(_rows(figures))
    if figures.trial is not None and figures.trial.runs:
        found["latency_p50_ms"] = figures.trial.p50_ms
    return found


def _share(part: int, whole: int) -> Fraction:
    return Fraction(part, whole) if whole else Fraction(0)


def _exactly(bound: float) -> Fraction:
    """As it is written in the file: 0.1 is a tenth."""
    return Fraction(str(bound))


def _percent(share: Fraction) -> str:
    return f"{float(share) * 100:.4g} %"


def _some(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
