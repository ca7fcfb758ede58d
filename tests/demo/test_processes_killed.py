"""kill -9 of what answers, in the middle of 200 requests: right answers or clear errors before the
deadline, and recovery without a hand."""

from __future__ import annotations

import os
import signal

import psutil

from gateway.demo.caller import DEADLINE_S
from tests.demo.played import (
    ENDPOINTS,
    ROUTES,
    TOLERANCE,
    Played,
    Site,
    Storm,
    answers_again,
    children,
    storm,
)

CLEAR = {"UNAVAILABLE", "DEADLINE_EXCEEDED"}


def kill(process: psutil.Process) -> None:
    os.kill(process.pid, signal.SIGKILL)


def check(got: Storm, site: Site, route: str, *, failed_at_most: int, what: str) -> None:
    print(
        f"{what} killed: {len(got.failed)} of {len(got.answers)} failed "
        f"({sorted({a.status for a in got.failed})}), slowest {got.slowest_ms:.0f} ms"
    )
    assert got.wrong(TOLERANCE[route]) == []
    assert {a.status for a in got.failed} <= CLEAR, [a.message for a in got.failed[:3]]
    assert all(a.message for a in got.failed)
    assert len(got.failed) <= failed_at_most
    assert got.slowest_ms < DEADLINE_S * 1000
    answers_again(site, ROUTES[route])


def test_a_worker_of_an_agent(played: Played):
    """The agent stays, and starts another; the other device answers meanwhile."""
    site, agent = played.running.plant, played.running.agents["cam-7b"]
    workers = list(children(agent["pid"]))
    assert workers
    got = storm(site, ROUTES["device"], lambda: [kill(worker) for worker in workers])
    check(got, site, "device", failed_at_most=0, what="every worker of cam-7b")
    assert psutil.pid_exists(agent["pid"])


def test_the_hub(played: Played):
    """Its devices cannot be reached until Ray Serve has started another and they have dialled again."""
    site = played.running.plant
    (hub,) = site.pids["hub"]
    got = storm(site, ROUTES["device"], lambda: os.kill(hub, signal.SIGKILL))
    check(got, site, "device", failed_at_most=200, what="the hub")


def test_a_replica_of_the_pool(played: Played):
    site = played.running.plant
    answers_again(site, ROUTES["pool"])
    replicas = pool_replicas(site)
    assert replicas
    got = storm(site, ROUTES["pool"], lambda: [os.kill(pid, signal.SIGKILL) for pid in replicas])
    check(got, site, "pool", failed_at_most=16, what="every replica of the pool")
    assert not set(pool_replicas(site)) & set(replicas)


def pool_replicas(site: Site) -> list[int]:
    """Process ids, as Ray names its workers in the process list; the data plane's siblings."""
    mine = psutil.Process(site.pids["data_plane"][0]).parent()
    assert mine is not None
    return [p.pid for p in mine.children() if f"tidegate-pool-{ENDPOINTS['pool']}" in " ".join(p.cmdline())]
