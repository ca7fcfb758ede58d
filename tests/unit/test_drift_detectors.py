"""Detectors against known numbers."""

from __future__ import annotations

import math
import random
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from edgewire.signals import bin_counts, default_edges
from gateway.core.evidence import Histogram, summed
from gateway.core.plugins import discover
from gateway.drift._interface import Detector
from gateway.drift.adwin import Adwin
from gateway.drift.ks import Ks
from gateway.drift.psi import Psi
from tests.support.processes import source_env
from tests.unit.config_support import changed, problems

EDGES = tuple(k / 20 for k in range(1, 20))


def counted(values: np.ndarray, edges: tuple[float, ...] = EDGES) -> Histogram:
    return Histogram(edges, tuple(bin_counts(values, edges)))


def betas(a: float, b: float, n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).beta(a, b, n)


def windows_of(values: np.ndarray, each: int = 50) -> list[Histogram]:
    return [counted(values[at : at + each]) for at in range(0, len(values), each)]


def test_every_detector_is_found_by_its_kind():
    assert discover("gateway.drift") == {"psi": Psi, "ks": Ks, "adwin": Adwin}


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("psy", "unknown detector 'psy', did you mean 'psi'?"),
        ("mmd", "unknown detector 'mmd'; known here: adwin, ks, psi"),
    ],
)
def test_an_unknown_detector_is_told_with_its_line(named: str, told: str):
    update = f"updates:\n  - model: digits\n    drift: {{detector: {named}, threshold: 0.2}}\n"
    text = changed("updates: []\n", update)
    line = text[: text.index("drift:")].count("\n") + 1
    assert problems(text) == [f"t.yaml:{line}:23: {told}"]


@pytest.mark.parametrize("detector", [Psi(), Ks(), Adwin()], ids=lambda d: d.kind)
class TestEveryDetector:
    def test_nothing_moved_is_0(self, detector: Detector):
        reference = counted(betas(8, 2, 4000))
        assert detector.score(reference, [reference]) == pytest.approx(0, abs=1e-12)
        assert detector.score(reference, windows_of(betas(8, 2, 2000, seed=2))) < 0.05

    def test_what_moved_far_is_over_a_threshold_of_a_fifth(self, detector: Detector):
        reference = counted(betas(8, 2, 4000))
        assert detector.score(reference, windows_of(betas(2, 4, 1000))) > 0.2

    def test_it_stays_in_its_range_and_is_pure(self, detector: Detector):
        rng = random.Random(3)
        greatest = {"psi": math.inf, "ks": 1.0, "adwin": 0.5}[detector.kind]
        for _ in range(40):
            reference, *windows = (
                Histogram((0.0, 1.0, 5.0), tuple(rng.choice((0, 0, 1, 7, 900)) for _ in range(4)))
                for _ in range(rng.randint(2, 6))
            )
            total = summed(windows)
            assert total is not None
            if not reference.total or not total.total:
                with pytest.raises(ValueError, match="needs values"):
                    detector.score(reference, windows)
                continue
            score = detector.score(reference, windows)
            assert 0 <= score <= greatest
            assert detector.score(reference, windows) == score

    def test_other_bins_and_nothing_are_refused(self, detector: Detector):
        reference = Histogram((0.0,), (1, 1))
        with pytest.raises(ValueError, match="other bins"):
            detector.score(reference, [Histogram((1.0,), (1, 1))])
        with pytest.raises(ValueError, match="needs values"):
            detector.score(reference, [])


def test_psi_by_hand():
    """Shares 10.5/21 and 10.5/21 of the reference, 15.5/21 and 5.5/21 of the windows, (q - p) ln(q / p):
    5/21 ln(15.5/10.5) + 5/21 ln(10.5/5.5) = 0.09273 + 0.15396."""
    score = Psi().score(Histogram((0.5,), (10, 10)), [Histogram((0.5,), (9, 1)), Histogram((0.5,), (6, 4))])
    assert score == pytest.approx(0.24669, abs=1e-5)


def test_psi_of_an_empty_bin_by_hand():
    """A bin that is empty in both is none; one that is empty in the reference has half a count of 101."""
    reference, now = Histogram((1.0, 2.0), (0, 100, 0)), Histogram((1.0, 2.0), (0, 50, 50))
    expected = (50.5 / 101 - 100.5 / 101) * math.log(50.5 / 100.5) + (50.5 / 101 - 0.5 / 101) * math.log(101)
    assert Psi().score(reference, [now]) == pytest.approx(expected)
    assert expected == pytest.approx(2.6254, abs=1e-4)


def test_psi_of_few_values_in_many_bins_is_small():
    """Most of the default bins of an input's mean are empty: they add nothing, however the totals differ."""
    edges = default_edges("input.mean")
    rng = np.random.default_rng(5)
    reference = counted(rng.normal(0.3, 0.05, 100_000), edges)
    assert Psi().score(reference, [counted(rng.normal(0.3, 0.05, 500), edges)]) < 0.02


@pytest.mark.parametrize("seed", range(5))
def test_ks_is_scipys_on_what_the_bins_tell_apart(seed: int):
    reference, now = betas(5, 2, 700, seed), betas(3, 2, 300, seed + 50)
    binned = [np.searchsorted(EDGES, values, side="right") for values in (reference, now)]
    expected = stats.ks_2samp(*binned).statistic
    assert Ks().score(counted(reference), [counted(now[:100]), counted(now[100:])]) == pytest.approx(expected)
    assert expected <= stats.ks_2samp(reference, now).statistic + 1e-12


def test_ks_by_hand():
    """Below 1: 2 of 4 against 0 of 4; below 2: 3 of 4 against 4 of 4."""
    assert Ks().score(Histogram((1.0, 2.0), (2, 1, 1)), [Histogram((1.0, 2.0), (0, 4, 0))]) == 0.5


def test_adwin_tells_how_far_the_mean_rank_moved_after_the_change():
    """Half of the reference is in each bin, so the ranks are a quarter and three quarters; afterwards all
    are in the lower one."""
    reference = Histogram((0.0,), (500, 500))
    calm, low = Histogram((0.0,), (25, 25)), Histogram((0.0,), (50, 0))
    assert Adwin().score(reference, [calm] * 10) == 0
    assert Adwin().score(reference, [calm] * 4 + [low] * 12) == pytest.approx(0.25, abs=0.02)
    assert Adwin().score(reference, [low] * 16) == pytest.approx(0.25, abs=0.02)


def test_adwin_does_not_ask_for_a_signals_scale():
    small, large = (
        Adwin().score(
            Histogram(tuple(scale * e for e in EDGES), counted(betas(8, 2, 2000)).counts),
            [Histogram(tuple(scale * e for e in EDGES), counted(betas(4, 4, 600)).counts)],
        )
        for scale in (1e-6, 1e6)
    )
    assert small == large > 0.2


def test_looking_for_detectors_does_not_load_river():
    """Validating a configuration looks at every detector, and river takes seconds."""
    program = (
        "import sys; from gateway.core.plugins import discover; discover('gateway.drift');"
        "sys.exit('river' in sys.modules or 'pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], env=source_env(), check=False).returncode == 0


def test_a_histograms_mean_takes_open_bins_as_wide_as_their_neighbours():
    one = Histogram((1.0, 2.0, 4.0), (1, 2, 0, 1))
    assert one.middles == (0.5, 1.5, 3.0, 5.0)
    assert one.mean == pytest.approx((0.5 + 2 * 1.5 + 5.0) / 4)
    assert Histogram((1.0,), (0, 0)).mean is None
    assert Histogram((1.0,), (0, 2)).mean == 1.0
    with pytest.raises(ValueError, match="make no"):
        Histogram((1.0,), (1,))
