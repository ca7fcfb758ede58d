"""Rollouts to 10,000 devices with every fault at once, in simulated time."""

from __future__ import annotations

import random
import time

from gateway.core.config import HaltConfig, RolloutConfig
from gateway.rollout.state import Phase
from gateway.rollout.view import view_of
from gateway.rollout.waves import size_of
from tests.support.simrollout import NEW, OLD, SimDevice, SimRollout

COUNT = 10_000
PLAN = RolloutConfig(
    waves=("1", "1%", "10%", "50%", "100%"),
    soak_s=60,
    min_requests=100,
    device_timeout_s=120,
    halt=HaltConfig(error_rate=0.02),
)
PERIOD_S = 10.0


def world(broken: float) -> dict[str, SimDevice]:
    """A share of `broken` devices cannot run the new version, half of them by a crash afterwards. One in
    10 is away, one in 30 is slow, one in 200 hangs, one in 33 lacks something."""
    drawn = random.Random(7)
    devices: dict[str, SimDevice] = {}
    for n in range(COUNT):
        fails = drawn.random() < broken
        crashes = fails and drawn.random() < 0.5
        devices[f"cam-{n:05d}"] = SimDevice(
            f"site-{drawn.randrange(120)}",
            connected=drawn.random() > 0.1,
            takes_s=90.0 if drawn.random() < 1 / 30 else drawn.uniform(2, 30),
            breaks=fails and not crashes,
            crashes_after_s=15.0 if crashes else None,
            hangs=drawn.random() < 1 / 200,
            unfit="lacks operator CONV_2D@5" if drawn.random() < 1 / 33 else "",
            rps=drawn.uniform(0, 1),
            failing={OLD: 0.002, NEW: 0.003},
        )
    return devices


def behind(sim: SimRollout, device: SimDevice) -> bool:
    return device.connected and not device.unfit and device.serves != NEW


class Weather:
    """Devices go and come back, leave and are enrolled, while it runs."""

    def __init__(self) -> None:
        self.drawn = random.Random(11)
        self.left = self.joined = 0

    def __call__(self, sim: SimRollout) -> None:
        names = self.drawn.sample(sorted(sim.devices), 40)
        for name in names[:36]:
            sim.devices[name].connected = not sim.devices[name].connected or self.drawn.random() < 0.7
        for name in names[36:38]:
            del sim.devices[name]
            self.left += 1
        for _ in range(3):
            sim.devices[f"new-{self.joined:05d}"] = SimDevice("site-new", rps=0.5)
            self.joined += 1


def test_rollout_to_a_large_fleet_with_faults_under_the_limit_ends_with_the_release_standing():
    weather = Weather()
    began = time.process_time()
    sim = SimRollout(world(broken=0.008), PLAN, period_s=PERIOD_S, during=weather).run()
    took = time.process_time() - began
    state = sim.state
    assert (state.phase, sim.standing) == (Phase.DONE, NEW)
    assert weather.left > 100
    assert weather.joined > 150
    able = COUNT - sum("lacks" in device.unfit for device in world(broken=0.008).values())
    for wave, size in zip(PLAN.waves[:4], state.sizes[:4], strict=True):
        assert size_of(wave, able - weather.left) <= size <= size_of(wave, able + weather.joined)
    assert len(sim.moves[0][1]) == 1
    late = [name for name, device in sim.devices.items() if behind(sim, device) and name not in state.failed]
    assert len(late) < 60, "all that were there in good time serve it"
    assert 0 < len(state.failed) < 0.02 * state.look.able
    assert view_of(state)["devices"]["excluded"] == sum(bool(d.unfit) for d in sim.devices.values())
    assert not any(d.serves == NEW for d in sim.devices.values() if d.unfit)
    sim.during = lambda _: None
    for _ in range(12):
        sim.tick()
    assert all(
        sim.devices[name].hangs or sim.devices[name].fault for name in late if behind(sim, sim.devices[name])
    )
    print(f"{sim.steps} steps, {sim.now - state.began:.0f} s simulated, {took:.1f} s of one core")


def test_release_that_breaks_one_device_in_twenty_is_stopped_in_the_second_wave():
    sim = SimRollout(world(broken=0.05), PLAN, period_s=PERIOD_S).run()
    assert (sim.state.phase, sim.standing, sim.withdrawn) == (Phase.ROLLED_BACK, OLD, True)
    told = {name for _, devices in sim.moves for name in devices}
    assert len(told) <= size_of("1%", COUNT)
    assert not any(d.serves == NEW and d.connected and not d.hangs for d in sim.devices.values())
    assert sim.state.wave == 1


def test_release_that_fails_requests_everywhere_is_stopped_in_its_first_wave():
    devices = world(broken=0.0)
    for device in devices.values():
        device.failing[NEW] = 0.1
        device.rps += 1.0
    sim = SimRollout(devices, PLAN, period_s=PERIOD_S).run()
    assert (sim.state.phase, sim.state.wave) == (Phase.ROLLED_BACK, 0)
    assert "requests failed" in sim.state.cause
