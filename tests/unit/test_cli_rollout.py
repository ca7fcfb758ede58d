"""`tidegate rollout` over an operator API that answers from a script."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console

from gateway.cli import rollout as command
from gateway.cli.main import run
from gateway.cli.rollout_drawing import WIDTH, bar
from gateway.core.config import RolloutConfig
from gateway.rollout.messages import Abort
from gateway.rollout.state import Phase
from gateway.rollout.view import view_of
from tests.support.simrollout import NEW, OLD, SimRollout, fleet

PLAN = RolloutConfig(soak_s=5, min_requests=5)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Calls to the operator API; answers are taken from ANSWERS in turn, the last again and again."""
    calls: list[tuple[Any, ...]] = []

    def call(url: str, method: str, path: str, body: Any = None) -> Any:
        calls.append((method, path, body))
        return ANSWERS.pop(0) if len(ANSWERS) > 1 else ANSWERS[0]

    monkeypatch.setattr(command, "call_operator", call)
    monkeypatch.setattr(command, "FOLLOW_S", 0.0)
    monkeypatch.setenv("COLUMNS", "120")
    return calls


ANSWERS: list[Any] = []


def answers(*given: Any) -> None:
    ANSWERS[:] = given


def views() -> list[dict[str, Any]]:
    """One rollout at each look."""
    sim = SimRollout(fleet(20, sites=2), PLAN)
    found = [view_of(sim.state)]
    while sim.state.open:
        sim.tick()
        found.append(view_of(sim.state))
    return found


def rolled_back() -> dict[str, Any]:
    return view_of(SimRollout(fleet(10, breaks=True), PLAN).run().state)


def test_start_says_how_to_watch_it(asked: list[Any], capsys: pytest.CaptureFixture[str]):
    answers(views()[0])
    assert run(["rollout", "start", "digits", "2", "--force"]) == 0
    assert asked == [("POST", "/api/v1/rollouts", {"model": "digits", "version": "2", "force": True})]
    assert capsys.readouterr().out == "ro-1 has begun: tidegate rollout status ro-1 --follow\n"


@pytest.mark.parametrize("call", ["pause", "resume", "abort"])
def test_operators_word_goes_to_its_rollout(call: str, asked: list[Any], capsys: pytest.CaptureFixture[str]):
    answers(views()[5])
    assert run(["rollout", call, "ro-1"]) == 0
    assert asked == [("POST", f"/api/v1/rollouts/ro-1/{call}", None)]
    assert capsys.readouterr().out.startswith("ro-1 ")
    assert run(["rollout", call, "ro-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "ro-1"


def test_status_draws_a_bar_a_wave(asked: list[Any], capsys: pytest.CaptureFixture[str]):
    sim = SimRollout(fleet(20, sites=2), PLAN)
    sim.until(Phase.SOAKING)
    while sim.state.wave < 2 or sim.state.phase is not Phase.SOAKING:
        sim.tick()
    answers(view_of(sim.state))
    assert run(["rollout", "status", "ro-1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ro-1  digits: version 1 to 2  (running)"
    shown = [line.split() for line in lines[1:5]]
    assert [(row[0], row[-2], row[-1]) for row in shown[:3]] == [
        ("1", "1/1", "passed"), ("10%", "2/2", "passed"), ("50%", "10/10", "soaking"),
    ]  # fmt: skip
    assert lines[4].split()[0] == "100%"
    assert lines[4].count("█") == WIDTH // 2
    assert "10 of 20 devices serve it, 10 not yet told" in lines[5]
    assert any(line.startswith("confidence") and "0.9" in line for line in lines)
    assert lines[-1].startswith("waits for its soak to end")


def test_status_of_all_draws_what_is_under_way_and_lists_what_has_ended(
    asked: list[Any], capsys: pytest.CaptureFixture[str]
):
    answers([views()[5], {**rolled_back(), "id": "ro-0"}])
    assert run(["rollout", "status"]) == 0
    shown = capsys.readouterr().out
    assert "ro-1  digits: version 1 to 2  (running)" in shown
    assert "ro-0" in shown
    assert "halted" in shown
    answers([])
    assert run(["rollout", "status"]) == 0
    assert "nothing was rolled out yet" in capsys.readouterr().out


def test_follow_tells_each_event_once_and_ends_with_the_rollout(
    asked: list[Any], capsys: pytest.CaptureFixture[str]
):
    found = views()
    answers(*found)
    assert run(["rollout", "status", "ro-1", "--follow"]) == 0
    lines = [line.split("  ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert lines == [event["text"] for event in found[-1]["events"]]


def test_follow_of_a_rollout_that_went_back_fails(asked: list[Any], capsys: pytest.CaptureFixture[str]):
    view = rolled_back()
    answers([view], view)
    assert run(["rollout", "status", "--follow", "--json"]) == 1
    assert asked[1][1] == "/api/v1/rollouts/ro-1"
    assert json.loads(capsys.readouterr().out)["outcome"] == "halted"


def test_follow_without_any_rollout_is_bad_input(asked: list[Any], capsys: pytest.CaptureFixture[str]):
    answers([])
    with pytest.raises(SystemExit) as ended:
        run(["rollout", "status", "--follow"])
    assert ended.value.code == 2
    assert "there is no rollout to follow" in capsys.readouterr().err


@pytest.mark.parametrize("id", ["", "../x", "a b", "RO"])
def test_what_is_no_id_is_told_before_anything_is_asked(
    id: str, asked: list[Any], capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        run(["rollout", "pause", id])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"tidegate: no rollout {id!r}")
    assert asked == []


def test_drawing_holds_what_failed_and_what_it_waits_for_at_any_width(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", "80")
    sim = SimRollout(fleet(10, failing={OLD: 0.0, NEW: 0.0}), PLAN, followers={"gpu": "it is down"})
    sim.until(Phase.SOAKING)
    sim.happen(Abort())
    sim.tick()
    answers(view_of(sim.state))
    assert run(["rollout", "status", "ro-1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "(rolling back)" in shown
    assert "aborted by an operator" in shown


@pytest.mark.parametrize(
    ("part", "whole", "failed", "full", "red"),
    [
        (0, 10, 0, 0, 0), (10, 10, 0, WIDTH, 0), (1, 10_000, 0, 1, 0), (9_999, 10_000, 0, WIDTH - 1, 0),
        (0, 0, 0, 0, 0), (5, 10, 5, WIDTH // 2, WIDTH // 2), (9_999, 10_000, 1, WIDTH - 1, 1),
    ],
)  # fmt: skip
def test_bar_never_draws_something_as_nothing_or_not_all_as_all(
    part: int, whole: int, failed: int, full: int, red: int
):
    drawn = bar(part, whole, failed)
    assert len(drawn.plain) == WIDTH
    console = Console()
    spans = {str(span.style): span.end - span.start for span in drawn.spans if span.end > span.start}
    assert (spans.get("green", 0), spans.get("red", 0)) == (full, red)
    assert console.measure(drawn).maximum == WIDTH
