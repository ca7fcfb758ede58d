"""Two assembly lines whose cameras read digits on the device itself: what they see, and how well they read."""

from __future__ import annotations

import contextlib
import csv
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

from gateway.demo.digits.data import held_out_images, training_images
from gateway.demo.digits.drift import rotate_and_fade
from gateway.demo.plant import token, wait_devices
from gateway.demo.processes import Agent, Serving
from oip.sample import sample_id

MODEL = "line-digits"
CAMERAS = {"cam-3a": "plant-3", "cam-3b": "plant-3", "cam-4a": "plant-4", "cam-4b": "plant-4"}
"""The cameras and their sites."""
LABELS = {"line": "assembly"}
DEGREES, CONTRAST = 35.0, 0.5
PER_SECOND = 20.0
"""Digits that each camera reads."""
LABELLED = 900
"""Digits that the operator has told the truth about; the others tell how well the cameras read."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One digit read; `right` None: the operator labels this one, so training may see it. `version` is what
    answered, "" where the device failed, and `failure` says how."""

    at: float
    device: str
    version: str
    right: bool | None
    failure: str = ""


class Scenery:
    """What the lines show: digits to label and digits to be measured by, as they are and as a camera that
    was turned and whose lens is dirty sees them."""

    def __init__(self) -> None:
        shown, truth = training_images()
        held, held_truth = held_out_images()
        self._clean = np.concatenate([shown[:LABELLED], held])
        self._turned = rotate_and_fade(self._clean, DEGREES, CONTRAST)
        self.truth = np.concatenate([truth[:LABELLED], held_truth])
        self.turned = False

    def __len__(self) -> int:
        return len(self.truth)

    def measured(self, index: int) -> bool:
        return index >= LABELLED

    def image(self, index: int) -> np.ndarray:
        """FP32 [1, 64]."""
        return (self._turned if self.turned else self._clean)[index][None]

    def held_out_turned(self) -> tuple[np.ndarray, np.ndarray]:
        """Those that no training sees, turned, and what they show."""
        return self._turned[LABELLED:], self.truth[LABELLED:]

    def write_labels(self, path: Path) -> None:
        """The operator's label file, for the digits that are to be labelled."""
        with path.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("sample", "label"))
            for images in (self._clean, self._turned):
                for index in range(LABELLED):
                    rows.writerow((sample_id({"pixels": images[index][None]}), self.truth[index]))


class Lines:
    """The cameras at work. `readings` grows as they read."""

    def __init__(self, agents: dict[str, Agent], scenery: Scenery) -> None:
        self.agents = agents
        self.scenery = scenery
        self.readings: list[Reading] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(name,), daemon=True) for name in agents]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def accuracy(self, since: float, until: float = float("inf")) -> float:
        """Of the measured digits read in this time; NaN where there is none."""
        right = [r.right for r in self._between(since, until) if r.right is not None]
        return sum(right) / len(right) if right else float("nan")

    def failures(self, since: float = 0.0) -> list[Reading]:
        return [reading for reading in self._between(since) if reading.failure]

    def versions(self, since: float) -> dict[str, Counter[str]]:
        """How often each version answered, by device."""
        found: dict[str, Counter[str]] = {name: Counter() for name in self.agents}
        for reading in self._between(since):
            found[reading.device][reading.version] += 1
        return found

    def _between(self, since: float, until: float = float("inf")) -> list[Reading]:
        return [r for r in self.readings[:] if since <= r.at < until]

    def _read(self, device: str) -> None:
        agent, rng = self.agents[device], np.random.default_rng()
        due = time.monotonic()
        with httpx.Client(timeout=10) as client:
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                due = max(due, time.monotonic() - 1) + 1 / PER_SECOND
                index = int(rng.integers(len(self.scenery)))
                self.readings.append(self._one(client, agent, device, index))

    def _one(self, client: httpx.Client, agent: Agent, device: str, index: int) -> Reading:
        pixels = self.scenery.image(index)
        tensor = {"name": "pixels", "datatype": "FP32", "shape": list(pixels.shape)}
        body = {"inputs": [{**tensor, "data": pixels.ravel().tolist()}]}
        at = time.monotonic()
        try:
            answer = client.post(f"http://{agent.http}/v2/models/{MODEL}/infer", json=body)
        except httpx.HTTPError as error:
            return Reading(at, device, "", None, type(error).__name__)
        if answer.status_code != 200:
            return Reading(at, device, "", None, answer.text)
        found = answer.json()
        digit = int(np.argmax(found["outputs"][0]["data"]))
        right = digit == self.scenery.truth[index] if self.scenery.measured(index) else None
        return Reading(at, device, found["model_version"], right)


@contextlib.contextmanager
def lines_staged(work: Path, hub: Serving, scenery: Scenery) -> Iterator[Lines]:
    """Enrol and start the cameras of both lines at a gateway's hub, and let them read."""
    agents = {
        name: Agent(name, hub.edge, work, token(hub.http, site, name, LABELS))
        for name, site in CAMERAS.items()
    }
    with contextlib.ExitStack() as stack:
        for agent in agents.values():
            stack.callback(agent.stop)
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda agent: agent.start(), agents.values()))
        wait_devices(hub.http, set(agents))
        lines = Lines(agents, scenery)
        lines.start()
        stack.callback(lines.stop)
        yield lines
