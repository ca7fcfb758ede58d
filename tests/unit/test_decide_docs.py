"""docs/policy.md says nothing that is not so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.config import Config, PlacedConfig, Retry
from gateway.core.config.load import parse_config
from gateway.core.decision import Decision, EndpointState, Snapshot, VariantKey
from gateway.core.request import Options
from gateway.decide import admission, choose, decide
from gateway.policy.require import EXCLUSIONS, requirements
from gateway.resilience.budget import RetryBudget
from gateway.routing import latency, pick, predict
from gateway.routing.score import SCORERS
from gateway.routing.scorers import quality
from tests.unit.decide_config import NOW, Fixed, measured, request_of

TEXT = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()


class Triton(PlacedConfig):
    url: str


def table(heading: str) -> list[list[str]]:
    """The rows of the table whose first heading is this, cells without backticks."""
    lines = TEXT.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows: list[list[str]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
    assert rows
    return rows


@pytest.fixture(scope="module")
def config() -> Config:
    text = TEXT.split("```yaml\n")[1].split("```")[0]
    return parse_config(text, "policy.md", {"triton": Triton}, {}, Path())


@pytest.fixture(scope="module")
def snapshot(config: Config) -> Snapshot:
    states = {
        VariantKey(name, "digits", ""): measured(
            float(p50), float(p95), capacity_rps=float(capacity), response_bytes=float(size)
        )
        for name, p50, p95, capacity, size in table("measured")
    }
    assert set(states) == {VariantKey(e.name, "digits", "") for e in config.endpoints}
    return Snapshot(config, "r", {e.name: EndpointState(True) for e in config.endpoints}, states)


def decided(snapshot: Snapshot, options: Options) -> Decision:
    left = None if options.deadline_ms is None else options.deadline_ms / 1000
    request = replace(request_of(payload_bytes=9000, time_left_s=left), options=options)
    return decide(snapshot, request, NOW, Fixed())


def test_constants() -> None:
    for name, value, _ in table("name"):
        module = next(m for m in (latency, predict, pick, quality, choose, admission) if hasattr(m, name))
        assert getattr(module, name) == float(value)


def test_rules_and_scorers_are_all_there(config: Config) -> None:
    order = [row[0] for row in table("rule")]
    assert order[: len(EXCLUSIONS)] == [rule.__name__ for rule in EXCLUSIONS]
    required = config.policies[0].require.model_copy(update={"max_cost_per_1k": 1.0, "min_quality": 1.0})
    assert len(order) - len(EXCLUSIONS) == len(requirements(required))
    assert {row[0] for row in table("scorer")} == set(SCORERS)


def test_scores(snapshot: Snapshot) -> None:
    decision = decided(snapshot, Options())
    by_name = {c.variant.endpoint: c for c in decision.candidates}
    rows = table("place")
    assert len(rows) == len(by_name)
    for name, cost, cost_score, latency_score, total in rows:
        candidate = by_name[name]
        assert candidate.predicted.cost == pytest.approx(float(cost))
        assert candidate.scores == pytest.approx(
            {"cost": float(cost_score), "latency": float(latency_score), "total": float(total)}, abs=5e-5
        )


@pytest.mark.parametrize("row", table("options"), ids=lambda row: row[0])
def test_decisions(snapshot: Snapshot, row: list[str]) -> None:
    given, policy, plan, excluded = row
    options = Options()
    if given != "none":
        key, value = given.removeprefix("tidegate-").replace("-", "_").split(": ")
        typed = float(value) if key in ("deadline_ms", "max_cost") else value
        options = replace(options, **{key: typed})
    decision = decided(snapshot, options)
    if policy.startswith("refused: "):
        assert decision.refused == policy.removeprefix("refused: ")
        return
    assert decision.policy == policy
    assert ", ".join(c.variant.endpoint for c in decision.plan) == plan
    out = [c for c in decision.candidates if c not in decision.plan]
    assert ", ".join(f"{c.variant.endpoint} {c.reasons[0].rule}" for c in out) == excluded


def test_retry_budget() -> None:
    limits = Retry(num_retries=1, budget_percent=20, min_concurrent=1)
    for requests, admitted in table("requests in flight"):
        budget = RetryBudget()
        for _ in range(int(requests)):
            budget.begin_request()
        given = 0
        while budget.admit_retry(limits):
            given += 1
        assert given == int(admitted)
