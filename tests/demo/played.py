"""What the demo printed and left running, and how tests call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import psutil

from gateway.demo.caller import Answer, Caller
from gateway.demo.digits import sample, train
from tests.support.waiting import until_true

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


def right(answer: Answer, pixels: np.ndarray, tolerance: float) -> bool:
    return answer.probabilities is not None and np.allclose(
        answer.probabilities, MODEL.predict(pixels), atol=tolerance
    )


MODEL = train()
PIXELS, _ = sample(200)


@dataclass(frozen=True)
class Storm:
    """200 requests with something killed in the middle."""

    answers: list[tuple[int, Answer]]

    def wrong(self, tolerance: float) -> list[int]:
        return [i for i, a in self.answers if a.status == "OK" and not right(a, PIXELS[i][None], tolerance)]

    @property
    def failed(self) -> list[Answer]:
        return [a for _, a in self.answers if a.status != "OK"]

    @property
    def slowest_ms(self) -> float:
        return max(a.latency_ms for _, a in self.answers)


def storm(site: Site, options: Mapping[str, str], kill: Callable[[], None], count: int = 200) -> Storm:
    """`kill` runs after a third of the requests, eight callers at a time."""
    caller = Caller(site.grpc)

    def one(i: int) -> tuple[int, Answer]:
        if i == count // 3:
            kill()
        return i, caller.ask(PIXELS[i][None], dict(options))

    try:
        with ThreadPoolExecutor(8) as pool:
            return Storm(list(pool.map(one, range(count))))
    finally:
        caller.close()


def answers_again(site: Site, options: Mapping[str, str], timeout_s: float = 60.0) -> None:
    """Until ten requests in a row are answered."""
    caller = Caller(site.grpc)
    try:
        until_true(
            lambda: all(caller.ask(PIXELS[i][None], dict(options)).status == "OK" for i in range(10)),
            timeout_s,
        )
    finally:
        caller.close()


def children(pid: int) -> Iterator[psutil.Process]:
    yield from psutil.Process(pid).children(recursive=True)
