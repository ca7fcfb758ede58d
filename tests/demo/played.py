"""What the demo printed and left running, and how tests call it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import psutil

ROUTES: Mapping[str, Mapping[str, str]] = {
    "device": {"tidegate-privacy": "on-a-device"},
    "pool": {"tidegate-privacy": "in-the-server-room"},
    "triton": {"tidegate-privacy": "in-the-cloud"},
}
"""Options at plant-7's gateway that leave one place each; Triton is behind the cloud's gateway."""
ENDPOINTS = {"device": "cameras", "pool": "server-room", "triton": "gw-cloud"}
TOLERANCE = {"device": 0.15, "pool": 1e-3, "triton": 1e-4}


@dataclass(frozen=True)
class Site:
    """A gateway's addresses, IP:PORT, and process ids."""

    http: str
    grpc: str
    pids: Mapping[str, list[int]]

    def get(self, path: str) -> Any:
        answer = httpx.get(f"http://{self.http}{path}", timeout=15)
        answer.raise_for_status()
        return answer.json()


@dataclass(frozen=True)
class Running:
    cloud: Site
    plant: Site
    agents: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Played:
    """The JSON document, what still runs, and the curl lines of `--serve`."""

    document: dict[str, Any]
    running: Running
    curl: list[str]


def served(line: Mapping[str, Any]) -> Running:
    sites = {
        name: Site(**{k: line[name][k] for k in ("http", "grpc", "pids")}) for name in ("cloud", "plant")
    }
    return Running(**sites, agents=line["agents"])


def children(pid: int) -> Iterator[psutil.Process]:
    yield from psutil.Process(pid).children(recursive=True)
