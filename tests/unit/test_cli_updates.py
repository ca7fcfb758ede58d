"""`tidegate updates` over what updates themselves say, and the operator API between the two."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from gateway.admin.app import operator_app
from gateway.cli import updates_drawing as drawing
from gateway.cli.common import fail
from gateway.cli.main import run
from gateway.control.updates import Updates
from gateway.rollout.loop_state import ENDS, Phase
from gateway.store.database import migrate, open_database
from tests.support.update_world import World, config


class Gateway:
    """A gateway of which the operator API and its updates are real; time goes on between calls."""

    def __init__(self, folder: Path) -> None:
        self.world = World()
        migrate(folder)
        self.engine = open_database(folder)
        ports = self.world.ports()
        self.updates = Updates(self.engine, config(), folder, ports, lambda: self.world.now)
        self.app = operator_app(cast(Any, self), "0")
        self.calls: list[tuple[str, str]] = []

    async def updates_view(self) -> dict[str, Any]:
        return self.updates.views()

    async def update_view(self, id: str) -> dict[str, Any]:
        return self.updates.view(id)

    async def start_update(self, model: str) -> dict[str, Any]:
        return await self.updates.trigger(model)

    async def cancel_update(self, id: str) -> dict[str, Any]:
        return await self.updates.cancel(id)

    async def retry_update(self, id: str) -> dict[str, Any]:
        return await self.updates.retry(id)

    async def samples_view(self, model: str) -> list[dict[str, Any]]:
        return await self.updates.samples(model)

    async def go(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.now += 1
            await self.updates.tick()
            while running := [task for task in asyncio.all_tasks() if task.get_name().startswith("update ")]:
                await asyncio.wait(running)
            self.world.rollouts.go_on()

    async def ask(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://control") as client:
            return await client.request(method, path, json=body)


class Session:
    """Runs commands against a gateway, each on a loop of its own, as separate processes would."""

    def __init__(self, folder: Path) -> None:
        self.runner = asyncio.Runner()
        self.gateway = Gateway(folder)
        self.runner.run(self.gateway.updates.resume_all())

    def call(self, url: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = self.runner.run(self.gateway.ask(method, path, body))
        if answer.status_code != 200:
            fail(answer.json()["error"], 2 if answer.status_code in (400, 404) else 1)
        return answer.json()

    def go(self, seconds: int = 1) -> None:
        self.runner.run(self.gateway.go(seconds))

    def close(self) -> None:
        self.runner.run(self.gateway.updates.close())
        self.runner.run(self.gateway.engine.dispose())
        self.runner.close()


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = Session(tmp_path)
    monkeypatch.setattr("gateway.cli.updates.call_operator", found.call)
    monkeypatch.setenv("COLUMNS", "120")
    yield found
    found.close()


def test_the_whole_loop_as_it_is_shown(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    session.go(40)
    assert run(["updates", "list"]) == 0
    out = capsys.readouterr().out
    assert "digits" in out
    assert "gauges" in out
    assert "drifting" in out
    assert "recovered" in out
    assert run(["updates", "show", "u1"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "u1 digits  recovered"
    assert lines[1] == "Version 2 is out, with a drift score of 0.00."
    assert lines[2].startswith("set off by output.confidence 3.48 of 0.2 at plant-7")
    for phase in ("gathering", "training", "measuring", "trying", "deciding", "rolling", "watching"):
        assert any(f" {phase} " in line and "+" in line for line in lines), phase
    assert "from the first score over its threshold to the recovered model:" in out
    assert "0.20 " in out
    assert "not_worse_than_current" in out
    assert "epoch 1" in out
    view = json.loads(_json(["updates", "show", "u1", "--json"], capsys))
    assert view["phase"] == "recovered"


def _json(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(command) == 0
    return capsys.readouterr().out


def test_follow_tells_each_wait_and_ends_by_how_it_ended(
    session: Session, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cli.updates.time", SimpleNamespace(sleep=lambda _: session.go()))
    monkeypatch.setattr("gateway.cli.updates.clock", lambda: "12:00:00")
    session.gateway.world.drifts = set()
    assert run(["updates", "start", "digits"]) == 0
    assert capsys.readouterr().out == "u1 has begun: tidegate updates show u1 --follow\n"
    session.gateway.world.rollouts.ends = "halted"
    assert run(["updates", "show", "u1", "--follow"]) == 1
    out = capsys.readouterr().out
    assert "12:00:00  gathering: " in out
    assert "u1 digits  rolled back\nWave 1 fails too often." in out
    session.gateway.world.rollouts.ends = "done"
    session.gateway.world.right["3"] = 9
    assert run(["updates", "retry", "u1"]) == 0
    capsys.readouterr()
    assert run(["updates", "show", "u2", "--follow", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told[-1]["phase"] == "recovered"
    assert told[0]["open"]


def test_cancel_and_samples(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    session.gateway.world.drifts = set()
    run(["updates", "start", "digits"])
    capsys.readouterr()
    assert run(["updates", "cancel", "u1"]) == 0
    assert capsys.readouterr().out == "u1 has ended: Cancelled by the operator.\n"
    session.gateway.world.labelled = {"0" * 64: [3]}
    assert run(["updates", "samples", "digits"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{'0' * 64}  0.400  1 row  plant-7  teacher"
    assert lines[1].endswith("1  0.400  1 row  plant-7  no label")
    assert "request" not in _json(["updates", "samples", "digits", "--json"], capsys)


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["show", "u9"], 2, "tidegate: no update 'u9': unknown, or too old"),
        (["show", "../u9"], 2, "tidegate: no update '../u9': `tidegate updates list` has their ids"),
        (["cancel", "u9"], 2, "tidegate: no update 'u9': unknown, or too old"),
        (["start", "faces"], 2, "tidegate: the running configuration has no update of a model 'faces'"),
        (["start", "gauges"], 1,
         "tidegate: the update of 'gauges' has no trainer: add train to it in the file"),
        (["samples", "a/b"], 2, "tidegate: the running configuration has no update of a model 'a/b'"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(
    session: Session, command: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["updates", *command])
    assert ended.value.code == code
    assert capsys.readouterr().err == message + "\n"


@pytest.mark.parametrize("body", ["{", "[]", "{}", '{"model": ""}', '{"model": 1}', '{"model": "m", "x": 1}'])
def test_a_malformed_start_is_one_sentence_and_400(session: Session, body: str) -> None:
    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(session.gateway.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://control") as client:
            headers = {"content-type": "application/json"}
            return await client.post("/api/v1/updates", content=body, headers=headers)

    answer = session.runner.run(post())
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]


def test_a_chart_loses_no_peak_and_draws_its_threshold() -> None:
    scores = [0.0] * 200
    scores[77] = 1.0
    lines = [line.plain for line in drawing.columns(scores, 0.2, 40, 4)]
    full = lines[0].strip()
    assert len(full) == 1
    at = lines[0].index(full)
    assert at == int(77 * 40 / 200)
    assert all(line[at] == full for line in lines)
    assert lines[3].count("-") == 39
    assert [line.count("-") for line in lines[:3]] == [0, 0, 0]


def test_the_page_has_every_stage_and_end() -> None:
    page = (Path(__file__).parents[2] / "docs" / "updates.md").read_text(encoding="utf-8")
    told = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    stages, rest = told[: told.index("end")], told[told.index("end") :]
    ends = rest[: 2 + len(ENDS)]
    assert [p.value for p in Phase if p not in ENDS] == [
        word for word in stages if word not in ("stage", "---")
    ]
    assert sorted(ends) == sorted(["end", "---", *(p.value for p in ENDS)])


def test_without_a_score_there_is_an_empty_line() -> None:
    assert [line.plain for line in drawing.columns([], 0.2, 40, 1)] == [""]
