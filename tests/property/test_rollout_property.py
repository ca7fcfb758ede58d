"""Whatever happens to a fleet, to its rollout and to whoever carries it out: what always holds."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.config import HaltConfig, RolloutConfig
from gateway.rollout.fleet import ALONE_S
from gateway.rollout.machine import moved
from gateway.rollout.messages import Abort, NotNow, Pause, Resume
from gateway.rollout.state import Phase
from gateway.rollout.view import view_of
from gateway.rollout.waves import size_of
from tests.support.simrollout import NEW, OLD, SimDevice, SimRollout

WAVES = st.sampled_from(
    [("100%",), ("1", "100%"), ("1%", "10%", "100%"), ("1", "10%", "50%", "100%"), ("2", "3", "100%")]
)
PLANS = st.builds(
    RolloutConfig,
    waves=WAVES,
    soak_s=st.sampled_from([0, 5, 40]),
    min_requests=st.sampled_from([0, 1, 20]),
    device_timeout_s=st.sampled_from([10, 60]),
    halt=st.builds(HaltConfig, error_rate=st.sampled_from([0.0, 0.02, 0.2, 0.5, 1.0])),
)
DEVICES = st.builds(
    SimDevice,
    site=st.sampled_from("ab"),
    connected=st.booleans(),
    takes_s=st.sampled_from([0.5, 3.0, 15.0]),
    breaks=st.sampled_from([False, False, False, True]),
    hangs=st.sampled_from([False, False, False, True]),
    crashes_after_s=st.sampled_from([None, None, None, 4.0]),
    unfit=st.sampled_from(["", "", "lacks memory"]),
    rps=st.sampled_from([0.0, 1.0, 7.0]),
    failing=st.sampled_from([{OLD: 0.0, NEW: 0.0}, {OLD: 0.0, NEW: 0.0}, {OLD: 0.1, NEW: 0.3}]),
)  # fmt: skip
FLEETS = st.lists(DEVICES, max_size=12)
HAPPENINGS = st.lists(
    st.tuples(
        st.integers(1, 30),
        st.sampled_from(
            ["connect", "disconnect", "leave", "join", "pause", "resume", "abort", "fault", "skip", "rest"]
        ),
        st.integers(0, 11),
    ),
    max_size=12,
)
FOLLOWERS = st.sampled_from([{}, {"pool": ""}, {"pool": "it is down"}, {"pool": "", "gpu": "it is down"}])


def happens(sim: SimRollout, what: str, index: int) -> None:
    names = sorted(sim.devices)
    name = names[index % len(names)] if names else None
    if what == "join":
        sim.devices[f"new-{index}"] = SimDevice("a")
    elif what in ("pause", "resume", "abort"):
        try:
            sim.happen({"pause": Pause(), "resume": Resume(), "abort": Abort()}[what])
        except NotNow:
            assert sim.state.phase in (Phase.STANDING, Phase.DONE, Phase.RETURNING, Phase.ROLLED_BACK)
    elif what == "skip":
        sim.now += 500.0 if index % 2 else -500.0
    elif name is not None and what == "leave":
        del sim.devices[name]
    elif name is not None and what in ("connect", "disconnect"):
        sim.devices[name].connected = what == "connect"
    elif name is not None and what == "fault":
        sim.devices[name].breaks = True


class Watch:
    """Looks at each moment, and at how it came from the one before."""

    def __init__(self, sim: SimRollout) -> None:
        self.orders = dict(moved(sim.state))
        self.phase, self.paused, self.wave, self.cause = sim.state.phase, False, 0, ""

    def look(self, sim: SimRollout) -> None:
        state, orders = sim.state, dict(moved(sim.state))
        assert set(orders.values()) <= {NEW}
        groups = [
            set(state.moving),
            set(state.confirmed),
            set(state.failed),
            set(state.returned),
            set(state.waiting),
        ]
        assert sum(map(len, groups)) == len(set().union(*groups)), "a device is in two states at once"
        added = orders.keys() - self.orders.keys()
        if self.paused and state.paused:
            assert not added, "a paused rollout moves nobody"
            assert state.wave == self.wave
        if self.cause:
            assert not added, "nobody is taken after it has turned back"
            assert state.phase in (Phase.RETURNING, Phase.ROLLED_BACK)
        assert state.wave >= self.wave
        if self.phase in (Phase.DONE, Phase.ROLLED_BACK):
            assert state.phase is self.phase
        if state.phase is Phase.DONE:
            assert (sim.standing, sim.withdrawn) == (NEW, False)
        else:
            assert sim.standing == OLD
        if state.phase is Phase.ROLLED_BACK:
            assert sim.withdrawn
            assert sim.ordered[-1] == OLD
            assert not orders
        assert all(not sim.devices[name].unfit for name in added if name in sim.devices)
        view_of(state)
        self.orders, self.phase, self.paused, self.wave, self.cause = (
            orders, state.phase, state.paused, state.wave, state.cause,
        )  # fmt: skip


def runs(
    fleet: list[SimDevice], plan: RolloutConfig, happenings: list[Any], followers: dict[str, str], store: bool
) -> SimRollout:
    devices = {f"cam-{n}": SimDevice(**{**vars(device), "switches": []}) for n, device in enumerate(fleet)}
    sim = SimRollout(devices, plan, followers=followers, store=store)
    watch = Watch(sim)
    for ticks, what, index in happenings:
        for _ in range(ticks):
            sim.tick()
            watch.look(sim)
        happens(sim, what, index)
        watch.look(sim)
    for _ in range(150):
        sim.tick()
        watch.look(sim)
    return sim


@settings(max_examples=80, deadline=None)
@given(fleet=FLEETS, plan=PLANS, happenings=HAPPENINGS, followers=FOLLOWERS)
def test_what_always_holds(
    fleet: list[SimDevice], plan: RolloutConfig, happenings: list[Any], followers: dict[str, str]
):
    sim = runs(fleet, plan, happenings, followers, store=False)
    for device in sim.devices.values():
        assert device.switches.count(NEW) <= 1 or device.switches.count(OLD) >= 1
    if sim.state.phase is Phase.DONE:
        for name in sim.state.confirmed & sim.devices.keys():
            assert sim.devices[name].serves == NEW or sim.devices[name].crashes_after_s is not None


@settings(max_examples=40, deadline=None)
@given(fleet=FLEETS, plan=PLANS, happenings=HAPPENINGS, followers=FOLLOWERS)
def test_restart_between_any_two_events_gives_the_same_run(
    fleet: list[SimDevice], plan: RolloutConfig, happenings: list[Any], followers: dict[str, str]
):
    straight = runs(fleet, plan, happenings, followers, store=False)
    restarted = runs(fleet, plan, happenings, followers, store=True)
    assert restarted.state == straight.state
    assert restarted.moves == straight.moves
    assert restarted.said == straight.said


@settings(max_examples=80, deadline=None)
@given(count=st.integers(1, 40), plan=PLANS, away=st.sets(st.integers(0, 39)), sites=st.integers(1, 5))
def test_quiet_rollout_has_exactly_the_waves_that_were_asked_for(
    count: int, plan: RolloutConfig, away: set[int], sites: int
):
    """Without a fault each wave ends with its share of all devices, or with all that are there."""
    devices = {
        f"cam-{n}": SimDevice(f"s{n % sites}", connected=n not in away, takes_s=1.0, rps=5.0)
        for n in range(count)
    }
    there = sum(device.connected for device in devices.values())
    sim = SimRollout(devices, plan).run(ticks=600)
    if not there:
        assert (sim.state.phase, sim.moves) == (Phase.MOVING, [])
        return
    assert sim.state.phase is Phase.DONE
    taken = 0
    for wave, size in zip(plan.waves, sim.state.sizes, strict=True):
        wanted = min(size_of(wave, count), there)
        if size:
            assert size == wanted
            taken = size
        else:
            assert size_of(wave, count) <= taken
    assert sim.serving(NEW) == there


@settings(max_examples=80, deadline=None)
@given(
    count=st.integers(1, 60),
    broken=st.integers(0, 60),
    rate=st.sampled_from([0.01, 0.02, 0.1, 0.2, 0.25, 0.5, 1.0]),
    plan=PLANS,
)
def test_never_beyond_a_threshold_that_is_reached(count: int, broken: int, rate: float, plan: RolloutConfig):
    """What has failed at the end of each look is under the limit, or it has turned back."""
    plan = plan.model_copy(update={"halt": HaltConfig(error_rate=rate)})
    devices = {f"cam-{n}": SimDevice("s", takes_s=1.0, rps=5.0, breaks=n < broken) for n in range(count)}
    sim = SimRollout(devices, plan)
    for _ in range(600):
        if not sim.state.open:
            break
        sim.tick()
        failed, taken = len(sim.state.failed), sim.state.taken
        if sim.state.phase in (Phase.MOVING, Phase.SOAKING, Phase.FOLLOWING, Phase.STANDING, Phase.DONE):
            assert not failed or failed * 1000 < taken * round(rate * 1000)
    assert sim.state.phase in (Phase.DONE, Phase.ROLLED_BACK)
    assert sim.serving(NEW) == (0 if sim.state.cause else count - min(broken, count))


def test_wait_for_one_more_is_not_longer_than_a_device_is_given():
    assert RolloutConfig().device_timeout_s > ALONE_S
