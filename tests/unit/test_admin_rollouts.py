"""The operator API's rollout calls over real rollouts in a scripted world."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from gateway.admin.app import operator_app
from gateway.admin.plane import ControlPlane, RolloutQuery
from gateway.control.rollouts import Rollouts
from gateway.core.release import Stage
from gateway.store.database import migrate
from tests.support.rollout_world import Gadget, World, opened, release


class Plane:
    def __init__(self, rollouts: Rollouts) -> None:
        self.rollouts = rollouts

    async def rollouts_view(self) -> list[dict[str, Any]]:
        return self.rollouts.views()

    async def rollout_view(self, id: str) -> dict[str, Any]:
        return self.rollouts.view(id)

    async def start_rollout(self, query: RolloutQuery) -> dict[str, Any]:
        return self.rollouts.view(await self.rollouts.start(query.model, query.version, force=query.force))

    async def pause_rollout(self, id: str) -> dict[str, Any]:
        return await self.rollouts.pause(id)

    async def resume_rollout(self, id: str) -> dict[str, Any]:
        return await self.rollouts.resume(id)

    async def abort_rollout(self, id: str) -> dict[str, Any]:
        return await self.rollouts.abort(id)


@pytest.fixture
async def client(tmp_path: Path):
    migrate(tmp_path)
    world = World({f"cam-{n}": Gadget("s") for n in range(3)})
    world.shelf |= {"2": release("2", 2), "3": release("3", 3, Stage.REFUSED)}
    app = operator_app(cast(ControlPlane, Plane(await opened(tmp_path, world))), "0")
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://control/api/v1") as client:
        yield client


async def test_rollout_is_begun_held_resumed_and_aborted(client: httpx.AsyncClient):
    assert (await client.get("/rollouts")).json() == []
    begun = await client.post("/rollouts", json={"model": "digits", "version": "2"})
    assert begun.status_code == 200
    path = f"/rollouts/{begun.json()['id']}"
    assert (await client.get("/rollouts")).json() == [begun.json()]
    assert (await client.get(path)).json()["state"] == "running"
    assert (await client.post(f"{path}/pause")).json()["state"] == "paused"
    assert (await client.post(f"{path}/resume")).json()["state"] == "running"
    assert (await client.post(f"{path}/abort")).json()["state"] == "rolling_back"
    held = await client.post(f"{path}/pause")
    assert (held.status_code, list(held.json())) == (409, ["error"])


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "digits", "version": "3"}, 409, "only by force"),
        ({"model": "digits", "version": "1"}, 409, "stands already"),
        ({"model": "digits", "version": "9"}, 404, "no release 9"),
        ({"model": "nope", "version": "2"}, 404, "no release 2 of nope"),
        ({"model": "digits", "version": 2}, 400, "version"),
        ({"model": "digits"}, 400, "version"),
        ({"model": "", "version": "2"}, 400, "model"),
        ({"model": "digits", "version": "2", "force": 1}, 400, "force"),
        ({"model": "digits", "version": "2", "wave": 1}, 400, "the members are model, version, force"),
    ],
)
async def test_refused_start_is_one_sentence_and_begins_nothing(
    client: httpx.AsyncClient, body: dict[str, Any], status: int, words: str
):
    answer = await client.post("/rollouts", json=body)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert words in answer.json()["error"]
    assert (await client.get("/rollouts")).json() == []


@pytest.mark.parametrize("call", ["", "/pause", "/resume", "/abort"])
async def test_unknown_rollout_is_404(client: httpx.AsyncClient, call: str):
    answer = await client.request("POST" if call else "GET", f"/rollouts/nope%20x{call}")
    assert answer.status_code == 404
    assert answer.json() == {"error": "no rollout 'nope x': unknown, or too old"}


async def test_documentation_names_every_rollout_call(client: httpx.AsyncClient):
    paths = (await client.get("/openapi.json")).json()["paths"]
    assert {path for path in paths if path.startswith("/api/v1/rollouts")} == {
        "/api/v1/rollouts",
        "/api/v1/rollouts/{id}",
        "/api/v1/rollouts/{id}/pause",
        "/api/v1/rollouts/{id}/resume",
        "/api/v1/rollouts/{id}/abort",
    }
