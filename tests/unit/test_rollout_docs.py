"""docs/rollouts.md says nothing that is not so."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.control.rollouts import BEFORE_S
from gateway.core.config import HaltConfig, RolloutConfig
from gateway.rollout.fleet import ALONE_S
from gateway.rollout.halting import NOTHING, Figures, device_fault, evidence_fault
from gateway.rollout.state import Phase
from gateway.rollout.waves import size_of
from tests.support.simrollout import SimRollout, fleet

TEXT = (Path(__file__).parents[2] / "docs" / "rollouts.md").read_text()
HALT = HaltConfig(error_rate=0.2, latency_p95_ratio=2, confidence_drop=0.1)


def table(heading: str) -> list[list[str]]:
    """The rows of the table whose first heading is this."""
    lines = TEXT.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows: list[list[str]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    assert rows
    return rows


@pytest.mark.parametrize(("wave", "able", "size"), table("wave"))
def test_waves(wave: str, able: str, size: str):
    assert size_of(wave, int(able)) == int(size)


@pytest.mark.parametrize(("answered", "failed", "p95", "confidence", "why"), table("answered"))
def test_evidence(answered: str, failed: str, p95: str, confidence: str, why: str):
    def number(text: str) -> float | None:
        return None if text == "-" else float(text)

    latency = number(p95)
    new = Figures(
        int(answered),
        int(failed),
        None if latency is None else latency / 1000,
        number(confidence),
        int(answered),
    )
    fault = evidence_fault(new, Figures(100, 0, 0.01, 0.9, 100), NOTHING, HALT, 20)
    words = {"errors": "requests failed", "latency": "p95 latency", "confidence": "mean confidence"}
    assert (fault is None) if why == "-" else (words[why] in (fault or ""))


@pytest.mark.parametrize(("failed", "told", "back"), table("devices that failed"))
def test_devices(failed: str, told: str, back: str):
    names = {f"cam-{n}": "crashed" for n in range(int(failed))}
    assert (device_fault(names, int(told), HALT) is not None) is (back == "yes")


def test_plan_that_is_shown_is_the_default():
    shown = RolloutConfig(
        waves=("1", "10%", "50%", "100%"),
        soak_s=300,
        min_requests=20,
        device_timeout_s=900,
        halt=HaltConfig(error_rate=0.02, latency_p95_ratio=1.3, confidence_drop=0.1),
    )
    assert shown == RolloutConfig()


def test_worked_examples():
    plan = RolloutConfig(waves=("1%", "10%", "100%"), soak_s=5, min_requests=5)
    assert "the waves 1%, 10%, 100% take 1, none and 6" in TEXT
    sim = SimRollout(fleet(7), plan).run()
    assert [len(devices) for _, devices in sim.moves] == [1, 6]

    assert "of 20 devices, with 14 revoked after the first wave, 50% is 3" in TEXT
    sim = SimRollout(fleet(20), plan.model_copy(update={"waves": ("1", "50%", "100%")})).until(Phase.SOAKING)
    for name in [name for name in sim.devices if name not in sim.state.confirmed][:14]:
        del sim.devices[name]
    assert sim.run().state.sizes == (1, 3, 6)


def test_spans_of_time():
    assert "away for a minute gets one more" in TEXT
    assert ALONE_S == 60
    assert "the hour before the rollout" in TEXT
    assert BEFORE_S == 3600
