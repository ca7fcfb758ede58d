"""docs/policy.md says nothing that is not so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.config import Config, PlacedConfig, Retry
from gateway.core.config.load import parse_config
from gateway.core.decision import Decision, EndpointState, Snapshot, VariantKey
from gateway.core.fleet import Device
from gateway.core.place import Origin, Place, Tier
from gateway.core.request import ANYBODY, Caller, Options
from gateway.decide import admission, choose, decide, tables
from gateway.policy.privacy import allowed_set, compile_classes, origin_of
from gateway.policy.require import EXCLUSIONS, requirements
from gateway.resilience.budget import RetryBudget
from gateway.routing import devices, latency, pick, predict
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
        modules = (latency, predict, pick, quality, choose, admission, devices, tables)
        module = next(m for m in modules if hasattr(m, name))
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


GATEWAY = Place(Tier.DEVICE, None, "plant-7", "rack")


@pytest.mark.parametrize("row", table("credential"), ids=" ".join)
def test_origins(row: list[str]) -> None:
    credential, given, site, device = row
    caller = ANYBODY
    if credential.startswith("device "):
        name, _, of = credential.removeprefix("device ").split()
        caller = Caller(device=name, origin=Origin(of, name))
    elif credential.startswith("peer"):
        of = credential.removeprefix("peer of ")
        caller = Caller(peer="gw", origin=None if of.startswith("peer") else Origin(of))
    options = Options(caller=caller)
    if given != "none":
        key, value = given.removeprefix("tidegate-").split(": ")
        options = replace(options, **{key: value})
    found = origin_of(GATEWAY, options)
    assert (found.site or "-", found.device or "-") == (site, device)


@pytest.mark.parametrize("row", table("classes"), ids=" ".join)
def test_allowed_sets(row: list[str]) -> None:
    written, text = row
    classes = {f"c{i}": f"{{allow: [{rules}]}}" for i, rules in enumerate(written.split(" and "))}
    example = TEXT.split("```yaml\n")[1].split("```")[0]
    before, after = example.split("privacy:\n")[0], example[example.index("policies:") :]
    body = "".join(f"    {name}: {one}\n" for name, one in classes.items())
    text_of = f"{before}privacy:\n  default: c0\n  classes:\n{body}{after}"
    compiled = compile_classes(parse_config(text_of, "policy.md", {"triton": Triton}, {}, Path()))
    found = allowed_set([compiled[name] for name in classes], Origin("plant-7", "cam"))
    assert found.encode() == text


def test_ranges_of_readings() -> None:
    for reading, good, worst in table("reading"):
        key = reading.split(",")[0]
        sign = -1 if key == "heard_at" else 1
        for bound, factor in ((good, 1.0), (worst, devices.WORST)):
            known = {"heard_at": 0.0, key: sign * float(bound)}
            device = Device("d", GATEWAY, True, **known)
            assert devices.suitability(device, 0.0, 0) == pytest.approx(factor)
            beyond = {**known, key: known[key] + (known[key] - sign * (float(good) + float(worst)) / 2)}
            assert devices.suitability(Device("d", GATEWAY, True, **beyond), 0.0, 0) == pytest.approx(factor)


def test_scores_of_devices() -> None:
    def number(text: str) -> float | None:
        return None if text == "?" else float(text)

    for name, requests, battery, temperature, throttled, score in table("devices"):
        device = Device(
            name,
            GATEWAY,
            True,
            inflight=int(requests),
            battery_percent=number(battery),
            temperature_c=number(temperature),
            throttled=None if throttled == "?" else throttled == "yes",
        )
        assert devices.suitability(device, 0.0, 0) == pytest.approx(float(score))


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
