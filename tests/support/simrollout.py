"""A fleet in simulated time under a rollout's machine: devices that take, fail, crash, leave, come late or
are slow, and the evidence that their requests leave behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.core.config import RolloutConfig
from gateway.rollout.halting import Figures
from gateway.rollout.machine import begin, moved, step
from gateway.rollout.messages import (
    Announce,
    Command,
    Event,
    Follow,
    Followed,
    Move,
    MoveBack,
    Order,
    Ordered,
    Seen,
    Sight,
    Stand,
    Stood,
    Withdraw,
    Withdrawn,
)
from gateway.rollout.state import Phase, from_document, to_document

OLD, NEW = "1", "2"


@dataclass
class SimDevice:
    """`takes_s` how long it is at work on a version that it is told. `breaks`: it says that it cannot run
    the new one; `crashes_after_s`: it says so only after it served it for so long. `rps`, and the share of
    its requests that fail on each version."""

    site: str
    connected: bool = True
    serves: str = OLD
    told: str = OLD
    takes_s: float = 5.0
    breaks: bool = False
    hangs: bool = False
    crashes_after_s: float | None = None
    unfit: str = ""
    rps: float = 1.0
    failing: dict[str, float] = field(default_factory=lambda: {OLD: 0.0, NEW: 0.0})
    at_work: float = 0.0
    served_s: float = 0.0
    fault: str = ""
    last: Sight | None = None
    switches: list[str] = field(default_factory=list[str])

    def pass_time(self, seconds: float) -> None:
        if not self.connected:
            return
        if self.serves == NEW:
            self.served_s += seconds
            if self.crashes_after_s is not None and self.served_s >= self.crashes_after_s:
                self.serves, self.fault = OLD, "crashed"
                return
        if self.told == self.serves or self.hangs or (self.told == NEW and self.fault):
            return
        self.at_work += seconds
        if self.at_work < self.takes_s:
            return
        self.at_work = 0.0
        if self.told == NEW and self.breaks:
            self.fault = "golden vectors differ"
            return
        self.serves = self.told
        self.switches.append(self.told)

    def sight(self) -> Sight:
        seen = self.last
        if (
            seen is None
            or seen.connected is not self.connected
            or seen.serves != self.serves
            or seen.fault != self.fault
            or seen.unfit != self.unfit
        ):
            has_new = self.serves == NEW
            self.last = seen = Sight(self.site, self.connected, self.serves, has_new, self.fault, self.unfit)
        return seen


@dataclass
class Window:
    """Requests by version in a second of simulated time."""

    at: float
    answered: Mapping[str, float]
    failed: Mapping[str, float]


class SimRollout:
    """The machine, its surroundings and a clock. `store` passes each state through JSON, as a restart
    between any two events does."""

    def __init__(
        self,
        devices: dict[str, SimDevice],
        plan: RolloutConfig,
        *,
        followers: Mapping[str, str] | None = None,
        period_s: float = 1.0,
        confidence: Mapping[str, float] | None = None,
        p95_s: Mapping[str, float] | None = None,
        store: bool = False,
        during: Callable[[SimRollout], None] = lambda _: None,
    ) -> None:
        self.devices = devices
        self.plan = plan
        self.followers = dict(followers or {})
        self.followed: list[str] = []
        self.period_s = period_s
        self.confidence = dict(confidence or {OLD: 0.9, NEW: 0.9})
        self.p95_s = dict(p95_s or {OLD: 0.01, NEW: 0.01})
        self.store = store
        self.during = during
        self.now = 1_000_000.0
        self.windows: list[Window] = []
        self.steps = 0
        self.standing = OLD
        self.withdrawn = False
        self.ordered: list[str] = []
        self.moves: list[tuple[float, tuple[str, ...]]] = []
        self.said: list[str] = []
        sights = {name: device.sight() for name, device in devices.items()}
        state, commands = begin("ro-1", "digits", OLD, NEW, plan, sights, self.now)
        self.state = state
        self._carry_out(commands)

    def happen(self, event: Event) -> None:
        self.steps += 1
        before = self.state
        if self.store:
            before = from_document(json.loads(json.dumps(to_document(before))))
            assert before == self.state
        self.state, commands = step(before, event, self.now)
        self._carry_out(commands)

    def _carry_out(self, commands: tuple[Command, ...]) -> None:
        for command in commands:
            match command:
                case Order(version):
                    self.ordered.append(version)
                    self.happen(Ordered(version))
                case Withdraw():
                    self.withdrawn = True
                    self.happen(Withdrawn())
                case Stand(version):
                    self.standing = version
                    self.happen(Stood())
                case Follow(version):
                    self.followed.append(version)
                    self.happen(Followed(version, dict(self.followers)))
                case Move(devices):
                    self.moves.append((self.now, devices))
                case MoveBack():
                    pass
                case Announce(text):
                    self.said.append(text)

    def tick(self) -> None:
        """A period of time passes, and somebody looks."""
        orders = moved(self.state)
        answered: dict[str, float] = {}
        failed: dict[str, float] = {}
        for name, device in self.devices.items():
            device.told = orders.get(name, self.standing)
            device.pass_time(self.period_s)
            if device.connected:
                count = device.rps * self.period_s
                bad = count * device.failing[device.serves]
                answered[device.serves] = answered.get(device.serves, 0.0) + count - bad
                failed[device.serves] = failed.get(device.serves, 0.0) + bad
        self.now += self.period_s
        self.windows.append(Window(self.now, answered, failed))
        self.during(self)
        sights = {name: device.sight() for name, device in self.devices.items()}
        since = self.state.wave_began
        began = self.state.began
        self.happen(
            Seen(
                sights,
                self.figures(NEW, since, self.now),
                self.figures(OLD, since, self.now),
                self.figures(OLD, began - 3600, began),
            )
        )

    def figures(self, version: str, since: float, until: float) -> Figures:
        answered = failed = 0.0
        for window in reversed(self.windows):
            if window.at <= since:
                break
            if window.at <= until:
                answered += window.answered.get(version, 0.0)
                failed += window.failed.get(version, 0.0)
        rated = int(answered)
        if not rated:
            return Figures(0, int(failed))
        return Figures(rated, int(failed), self.p95_s[version], self.confidence[version], rated)

    def run(self, ticks: int = 5000) -> SimRollout:
        """Until it has ended, or so many periods have passed."""
        for _ in range(ticks):
            if not self.state.open:
                break
            self.tick()
        return self

    def until(self, *phases: Phase, ticks: int = 5000) -> SimRollout:
        for _ in range(ticks):
            if self.state.phase in phases:
                return self
            self.tick()
        raise AssertionError(f"still {self.state.phase}: {self.state.look.lacks}")

    def serving(self, version: str) -> int:
        return sum(1 for device in self.devices.values() if device.serves == version)


def fleet(count: int, sites: int = 1, **each: object) -> dict[str, SimDevice]:
    return {f"cam-{n:05d}": SimDevice(f"site-{n % sites}", **each) for n in range(count)}  # pyright: ignore[reportArgumentType]
