"""How the gateway starts, as far as that needs no Ray: what it does when Ray fails, or is asked to stop."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.quiet_ray import ray  # isort: skip  # before anything that uses Ray
from ray._private import utils
from ray.exceptions import RayError

from gateway.core.config.models import Replicas
from gateway.serve import app
from gateway.serve.settings import Address, Listen, ReplicaSettings
from tests.support.configs import config_from

UTILS: Any = utils
CONFIG = config_from(
    {
        "version": 1,
        "gateway": {"name": "gw", "location": {"tier": "site", "site": "plant-7"}},
        "endpoints": [{"name": "t", "kind": "fake", "location": {"tier": "site"}}],
        "models": [{"name": "m", "variants": [{"endpoint": "t"}]}],
        "privacy": {"default": "any", "classes": {"any": {"allow": [{"tier": ["site"]}]}}},
        "policies": [{"name": "default", "match": {}, "weights": {"latency": 1}}],
    }
)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReplicaSettings:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    anywhere = Address("127.0.0.1", 0)
    return ReplicaSettings(CONFIG, "r", Listen(anywhere, anywhere, anywhere), tmp_path, 1.0)


def test_whatever_ray_raises_on_its_way_up_is_one_sentence(
    settings: ReplicaSettings, monkeypatch: pytest.MonkeyPatch
):
    def late(**_: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", late)
    with (
        pytest.raises(app.StartError, match=r"^Ray did not start: The current node timed out"),
        app.running(settings, "f", lambda: False),
    ):
        pass


@pytest.mark.parametrize("error", [TimeoutError(), RayError("gone\n  File x"), ValueError("gone")])
def test_whatever_serve_raises_on_its_way_up_is_one_sentence(
    settings: ReplicaSettings, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    def fails(*_: object) -> None:
        raise error

    for name in ("init", "shutdown"):
        monkeypatch.setattr(ray, name, lambda **_: None)
    monkeypatch.setattr(app, "_start_serve", fails)
    with (
        pytest.raises(app.StartError, match=r"^the gateway did not start on Ray Serve: (gone|TimeoutError)$"),
        app.running(settings, "f", lambda: False),
    ):
        pass


def test_asked_to_stop_while_ray_starts_it_goes_no_further(
    settings: ReplicaSettings, monkeypatch: pytest.MonkeyPatch
):
    """Ray's own handler of SIGTERM would end the process in the middle of Ray's code."""
    ended: list[str] = []

    def init(**_: object) -> None:
        UTILS.set_sigterm_handler(signal.SIG_IGN)

    def further(*_: object) -> Any:
        raise AssertionError("started Serve all the same")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append("ray"))
    monkeypatch.setattr(app, "_start_serve", further)
    before = signal.getsignal(signal.SIGTERM)
    take = UTILS.set_sigterm_handler
    try:
        with app.running(settings, "f", lambda: True) as serving:
            assert serving == {}
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended == ["ray"]
    assert UTILS.set_sigterm_handler is take


def test_what_a_killed_gateway_left_is_removed_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
):
    # A socket's path is short, so the folder is not pytest's own.
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        root = Path(short)
        monkeypatch.setattr(tempfile, "gettempdir", lambda: short)
        for name in ("tidegate-left", "tidegate-new", "other"):
            (root / name).mkdir()
        with socket.socket(socket.AF_UNIX) as left, socket.socket(socket.AF_UNIX) as other:
            left.bind(str(root / "tidegate-left" / "homes.sock"))
            other.bind(str(root / "other" / "homes.sock"))
        with app._private_folder() as living, socket.socket(socket.AF_UNIX) as hub:
            hub.bind(str(living / "homes.sock"))
            with app._private_folder() as second:
                names = {folder.name for folder in root.iterdir()}
                assert names == {living.name, second.name, "tidegate-new", "other"}
        assert {folder.name for folder in root.iterdir()} == {"tidegate-new", "other"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has names to claim a port by")
def test_two_gateways_that_start_at_once_get_ports_of_their_own(monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    monkeypatch.setattr(app, "FREE_PORTS", [port] * 20)
    anywhere = Address("127.0.0.1", 0)
    with contextlib.ExitStack() as later:
        with contextlib.ExitStack() as first:
            assert app._free(anywhere, first).port == port
            assert app._free(anywhere, later).port != port
        assert app._free(anywhere, later).port == port


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has names to claim an address by")
def test_an_address_is_claimed_while_nobody_listens_there():
    """Replicas share their ports with whoever shares too, another gateway's among them."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    given = Address("127.0.0.1", port)
    listen = Listen(given, Address("127.0.0.1", 0), Address("127.0.0.1", 0))
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        app._refuse_taken(listen, first)
        with pytest.raises(app.StartError, match=f"^HTTP: cannot listen on {given}: Address already in use$"):
            app._refuse_taken(listen, second)
        app._refuse_taken(Listen(Address("127.0.0.2", port), *[Address("127.0.0.1", 0)] * 2), second)
    taken = pytest.raises(app.StartError, match="Address already in use")
    with socket.create_server(given), contextlib.ExitStack() as third, taken:
        app._refuse_taken(listen, third)


def test_replicas_that_share_a_port_are_for_linux_alone(
    settings: ReplicaSettings, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "platform", "darwin")
    gateway = CONFIG.gateway.model_copy(update={"replicas": Replicas(min=2, max=2)})
    shared = replace(settings, config=CONFIG.model_copy(update={"gateway": gateway}))
    with (
        pytest.raises(app.StartError, match=r"gateway\.replicas above 1 needs Linux"),
        app.running(shared, "f", lambda: True),
    ):
        pass


class Answering:
    """A handle whose replicas come up one after the other."""

    def __init__(self, *told: list[dict[str, Any]]) -> None:
        self.told = [*told]

    def broadcast(self, method: str) -> Answering:
        assert method == "describe"
        return self

    def results(self, timeout_s: float) -> list[dict[str, Any]]:
        return self.told.pop(0) if len(self.told) > 1 else self.told[0]


def test_ready_is_when_every_replica_serves(monkeypatch: pytest.MonkeyPatch):
    def plane(pid: int, trouble: str = "") -> dict[str, Any]:
        return {"http": "h", "grpc": "g", "endpoints": {"t": trouble, "u": ""}, "pid": pid}

    control = Answering([{"metrics": "m", "pid": 1}])
    coming = Answering([plane(2)], [plane(2)], [plane(2), plane(3, "down")])
    found = app._described({"control": control, "data_plane": coming}, 2)
    assert found == {
        "edge": None,
        "metrics": "m",
        "http": "h",
        "grpc": "g",
        "endpoints": {"t": "down", "u": ""},
        "pids": {"control": [1], "data_plane": [2, 3]},
    }
    failing = Answering([plane(2), {"failure": "gRPC: cannot listen"}])
    with pytest.raises(app.StartError, match="gRPC: cannot listen"):
        app._described({"data_plane": failing}, 2)
    monkeypatch.setattr(app, "DESCRIBE_S", 0.1)
    with pytest.raises(TimeoutError, match="1 of 2 replicas came up"):
        app._described({"data_plane": Answering([plane(2)])}, 2)
