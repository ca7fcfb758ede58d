"""Plant-7 of the demo: a gateway at the site, two devices, and the line to the cloud with a tap on it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx

from gateway.demo.processes import Agent, Serving, gateway
from gateway.demo.wiretap import Wiretap

CONFIG = Path(__file__).with_name("plant.yaml")
NEAR, NEAR_TOO, FAR = "cam-7a", "cam-7b", "cam-9a"


@dataclass(slots=True)
class Plant:
    """`outward` is the line from the plant's gateway to the cloud's, `inward` the one back. `agents` are
    the devices of both plants by name; those of plant-9 are at the cloud's hub."""

    gateway: Serving
    artifacts: str
    agents: dict[str, Agent]
    outward: Wiretap
    inward: Wiretap


@contextlib.contextmanager
def plant_staged(
    work: Path, environment: Mapping[str, str], cloud: Serving, outward: Wiretap, inward: Wiretap
) -> Iterator[Plant]:
    """Start plant-7's gateway, then two devices at plant-7 and one at plant-9, each with a token of its
    own; until every model on them is ready."""
    with contextlib.ExitStack() as stack:
        site = stack.enter_context(gateway("plant-7", CONFIG, work, environment))
        inward.target = site.grpc
        agents = {
            name: Agent(name, hub.edge, work, token(hub.http, plant, name))
            for name, hub, plant in (
                (NEAR, site, "plant-7"),
                (NEAR_TOO, site, "plant-7"),
                (FAR, cloud, "plant-9"),
            )
        }
        for agent in agents.values():
            stack.callback(agent.stop)
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda agent: agent.start(), agents.values()))
        wait_devices(site.http, {NEAR, NEAR_TOO})
        wait_endpoints(site.http, {"cameras", "gw-cloud"})
        yield Plant(site, environment["TIDEGATE_DEMO_ARTIFACTS"], agents, outward, inward)


def token(http: str, site: str, device: str, labels: Mapping[str, str] | None = None) -> str:
    """One that enrols a device of this name."""
    query = {"site": site, "device": device, "labels": dict(labels or {})}
    answer = httpx.post(f"http://{http}/api/v1/devices/tokens", json=query, timeout=10)
    answer.raise_for_status()
    return answer.json()["token"]


def wait_devices(http: str, names: set[str], timeout_s: float = 60.0) -> None:
    """Until each of these devices is connected and has all its models active."""

    def ready() -> bool:
        views = httpx.get(f"http://{http}/api/v1/devices", timeout=10).json()
        return names <= {
            v["name"]
            for v in views
            if v["connected"] and v["models"] and all(m["state"] == "active" for m in v["models"])
        }

    wait_until(ready, timeout_s, f"the devices {', '.join(sorted(names))} are not ready")


def wait_endpoints(http: str, up: set[str], timeout_s: float = 60.0) -> None:
    """Until the gateway itself says that these endpoints, and every variant on them, are ready."""

    def ready() -> bool:
        views = httpx.get(f"http://{http}/api/v1/endpoints", timeout=10).json()
        return up <= {v["name"] for v in views if v["up"] and all(m["ready"] for m in v["models"])}

    wait_until(ready, timeout_s, f"the gateway does not see {', '.join(sorted(up))} as ready")


def wait_until(holds: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
    """Ask again and again; the operator API tells states, not changes. Raises RuntimeError(`otherwise`)."""
    until = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > until:
            raise RuntimeError(otherwise)
        time.sleep(0.05)
