"""kill -9 of what answers, in the middle of 200 requests: right answers or clear errors before the
deadline, and recovery without a hand."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from gateway.edgehub.session import Terms
from tests.demo.played import ENDPOINTS, ROUTES, TOLERANCE, Played, Site, children
from tests.support.storm import CALLERS, Storm, answers_again, storm
from tests.support.waiting import until_true

HEARTBEAT_S = Terms("").heartbeat_s
HEARTBEATS = 30
"""Within so many, whatever was killed answers again: a process starts, and devices dial with jitter."""
LEFT = 200 - 200 // 3 + CALLERS
"""Of 200 requests, those that a kill after a third of them can reach."""


def killed(played: Played, route: str, what: str, kill: Callable[[], None], *, failed_at_most: int) -> Storm:
    """A storm on a route, and its recovery."""
    site = played.running.plant
    got = storm(site.grpc, ROUTES[route], kill)
    got.check(what, TOLERANCE[route], failed_at_most)
    recovered(what, got.killed_at, answers_again(site.grpc, ROUTES[route], HEARTBEATS * HEARTBEAT_S))
    return got


def recovered(what: str, killed_at: float, at: float) -> None:
    beats = (at - killed_at) / HEARTBEAT_S
    print(f"{what}: back {at - killed_at:.1f} s after the kill, {beats:.1f} heartbeats")
    assert beats < HEARTBEATS


def connected(site: Site, device: str) -> bool:
    view = site.get(f"/api/v1/devices/{device}")
    return view["connected"] and all(model["state"] == "active" for model in view["models"])


def until_connected(site: Site, *devices: str) -> float:
    """The monotonic instant at which all are there, their models active."""
    until_true(lambda: all(connected(site, device) for device in devices), HEARTBEATS * HEARTBEAT_S)
    return time.monotonic()


def test_a_worker_of_an_agent(played: Played):
    """The agent stays, and starts another; the other device answers meanwhile."""
    agent = played.running.agents["cam-7b"]
    workers = list(children(agent["pid"]))
    assert workers

    def kill() -> None:
        for worker in workers:
            worker.kill()

    killed(played, "device", "every worker of cam-7b", kill, failed_at_most=0)
    until_connected(played.running.plant, "cam-7b")
    assert psutil.pid_exists(agent["pid"])
    assert len(list(children(agent["pid"]))) == len(workers)


def test_an_agent(played: Played):
    """The other device answers meanwhile. Nothing of the dead agent stays, and what keeps it running
    has it back with all its models by the same command."""
    site, agent = played.running.plant, psutil.Process(played.running.agents["cam-7a"]["pid"])
    command, environment = agent.cmdline(), agent.environ()
    workers = list(children(agent.pid))
    got = killed(played, "device", "cam-7a's agent", agent.kill, failed_at_most=0)
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive
    until_true(lambda: not connected(site, "cam-7a"))
    with started(command, environment):
        recovered("cam-7a's agent, started over", got.killed_at, until_connected(site, "cam-7a"))
        answers_again(site.grpc, ROUTES["device"])


@contextmanager
def started(command: list[str], environment: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(30) == 0


def test_the_hub(played: Played):
    """Its devices cannot be reached until Ray Serve has started another and they have dialled again."""
    site = played.running.plant
    (hub,) = site.pids["hub"]
    killed(played, "device", "the hub", lambda: os.kill(hub, signal.SIGKILL), failed_at_most=LEFT)
    until_connected(site, "cam-7b")
    assert not psutil.pid_exists(hub)


def test_a_replica_of_the_pool(played: Played):
    site = played.running.plant
    answers_again(site.grpc, ROUTES["pool"])
    replicas = pool_replicas(site)
    assert replicas

    def kill() -> None:
        for pid in replicas:
            os.kill(pid, signal.SIGKILL)

    # Those out at the kill, and those that Serve sends to a replica before it knows that it is gone.
    killed(played, "pool", "every replica of the pool", kill, failed_at_most=2 * CALLERS)
    assert not set(pool_replicas(site)) & set(replicas)


def pool_replicas(site: Site) -> list[int]:
    """Process ids, as Ray names its workers in the process list; the data plane's siblings."""
    mine = psutil.Process(site.pids["data_plane"][0]).parent()
    assert mine is not None
    return [p.pid for p in mine.children() if f"tidegate-pool-{ENDPOINTS['pool']}" in " ".join(p.cmdline())]
