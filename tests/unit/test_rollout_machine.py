"""A rollout from beginning to end over a simulated fleet, and each way in which it goes otherwise."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest

from gateway.core.config import HaltConfig, RolloutConfig
from gateway.rollout.fleet import ALONE_S
from gateway.rollout.machine import begin, moved, step
from gateway.rollout.messages import (
    Abort,
    Followed,
    MoveBack,
    NotNow,
    Ordered,
    Pause,
    Resume,
    Seen,
    Sight,
    Stood,
)
from gateway.rollout.state import Phase, from_document, to_document
from gateway.rollout.view import view_of
from tests.support.simrollout import NEW, OLD, SimDevice, SimRollout, Window, fleet

PLAN = RolloutConfig(soak_s=30, min_requests=10, device_timeout_s=120)


def one(**each: object) -> SimDevice:
    return SimDevice("site-0", **each)  # pyright: ignore[reportArgumentType]


def test_waves_grow_by_their_shares_and_the_release_stands_at_the_end():
    sim = SimRollout(fleet(20, sites=4), PLAN, store=True).run()
    assert [len(devices) for _, devices in sim.moves] == [1, 1, 8, 10]
    assert (sim.state.phase, sim.standing, sim.serving(NEW)) == (Phase.DONE, NEW, 20)
    assert sim.state.sizes == (1, 2, 10, 20)
    assert sim.ordered == [NEW]
    assert not sim.withdrawn
    assert moved(sim.state) == {}


def test_every_wave_soaks_after_its_devices_serve():
    sim = SimRollout(fleet(4, takes_s=20.0), PLAN).run()
    instants = [at for at, _ in sim.moves]
    assert all(b - a >= 20 + 30 for a, b in pairwise(instants))


def test_wave_that_is_reached_is_skipped_and_its_soak_not_repeated():
    """Of 7 devices 1 % and 10 % are one each."""
    plan = PLAN.model_copy(update={"waves": ("1%", "10%", "100%")})
    sim = SimRollout(fleet(7), plan).run()
    assert [len(devices) for _, devices in sim.moves] == [1, 6]
    assert sim.state.sizes == (1, 0, 7)
    assert [wave["state"] for wave in view_of(sim.state)["waves"]] == ["passed", "skipped", "passed"]


def test_no_evidence_is_not_success_and_no_failure_either():
    sim = SimRollout(fleet(3, rps=0.0), PLAN).run(ticks=600)
    assert (sim.state.phase, sim.state.wave, len(moved(sim.state))) == (Phase.SOAKING, 0, 1)
    assert "without evidence" in view_of(sim.state)["waits_for"]
    for device in sim.devices.values():
        device.rps = 1.0
    assert sim.run().state.phase is Phase.DONE


def test_wave_needs_exactly_so_many_answers_of_the_new_version():
    plan = PLAN.model_copy(update={"soak_s": 0, "min_requests": 50})
    sim = SimRollout(fleet(1, takes_s=1.0), plan)
    sim.until(Phase.SOAKING)
    before = 0
    while sim.state.wave == 0 and sim.state.phase is Phase.SOAKING:
        before = sim.state.look.new.answered
        sim.tick()
    assert (before, sim.state.look.new.answered) == (49, 50)


def test_error_rate_of_the_first_wave_turns_everything_back():
    devices = fleet(10, failing={OLD: 0.0, NEW: 0.5})
    sim = SimRollout(devices, PLAN, store=True).run()
    assert (sim.state.phase, sim.standing, sim.withdrawn) == (Phase.ROLLED_BACK, OLD, True)
    assert (sim.serving(OLD), len(sim.moves)) == (10, 1)
    assert sim.ordered == [NEW, OLD]
    assert "requests failed" in sim.state.cause
    assert view_of(sim.state)["outcome"] == "halted"


@pytest.mark.parametrize("worse", [{"confidence": {OLD: 0.9, NEW: 0.7}}, {"p95_s": {OLD: 0.01, NEW: 0.02}}])
def test_worse_confidence_or_latency_than_the_old_version_turns_it_back(worse: dict[str, dict[str, float]]):
    sim = SimRollout(fleet(10), PLAN, **worse).run()  # pyright: ignore[reportArgumentType]
    assert (sim.state.phase, len(sim.moves)) == (Phase.ROLLED_BACK, 1)


def test_single_device_is_held_against_the_time_before():
    sim = SimRollout(fleet(1), PLAN, confidence={OLD: 0.9, NEW: 0.5})
    sim.windows.append(Window(sim.now - 100, {OLD: 500.0}, {}))
    assert "before the rollout" in sim.run().state.cause


@pytest.mark.parametrize(("broken", "phase"), [(1, Phase.DONE), (2, Phase.ROLLED_BACK)])
def test_devices_that_fail_halt_exactly_at_the_threshold(broken: int, phase: Phase):
    """2 of 10 are the 20 % of the limit, 1 is not; those of the first wave do not fail."""
    plan = PLAN.model_copy(update={"waves": ("5", "100%"), "halt": HaltConfig(error_rate=0.2)})
    sim = SimRollout(fleet(10), plan)
    sim.until(Phase.SOAKING)
    late = [name for name in sim.devices if name not in moved(sim.state)]
    for name in late[:broken]:
        sim.devices[name].breaks = True
    sim.run()
    assert sim.state.phase is phase
    assert sim.serving(NEW) == (9 if phase is Phase.DONE else 0)
    if phase is Phase.DONE:
        assert view_of(sim.state)["failures"] == {late[0]: "golden vectors differ"}


def test_device_that_crashes_after_it_was_confirmed_counts_as_failed():
    sim = SimRollout(fleet(10, crashes_after_s=10.0), PLAN).run()
    assert sim.state.phase is Phase.ROLLED_BACK
    assert "1 of 1 devices failed" in sim.state.cause
    assert "crashed" in sim.state.cause


def test_device_is_timed_only_while_it_is_connected():
    devices = fleet(1, hangs=True)
    sim = SimRollout(devices, PLAN)
    sim.until(Phase.MOVING)
    for _ in range(100):
        sim.tick()
    next(iter(devices.values())).connected = False
    for _ in range(1000):
        sim.tick()
    assert not sim.state.cause
    next(iter(devices.values())).connected = True
    for _ in range(25):
        sim.tick()
    assert "did not come to an end within 120 s" in sim.state.cause


def test_time_that_nobody_watched_is_not_held_against_a_device():
    sim = SimRollout(fleet(1, hangs=True), PLAN)
    sim.until(Phase.MOVING)
    sim.tick()
    sim.now += 100_000
    sim.tick()
    assert sim.state.phase is Phase.MOVING
    sim.now -= 50_000
    sim.tick()
    assert sim.state.phase is Phase.MOVING


def test_devices_that_are_away_do_not_block_and_get_it_when_they_come():
    devices = fleet(10)
    away = ["cam-00003", "cam-00007"]
    for name in away:
        devices[name].connected = False
    sim = SimRollout(devices, PLAN).run()
    assert (sim.state.phase, sim.serving(NEW)) == (Phase.DONE, 8)
    assert not any(name in moved_now for _, moved_now in sim.moves for name in away)
    assert "2 devices to get it when back" in sim.said[-1]
    for name in away:
        devices[name].connected = True
    for _ in range(10):
        sim.tick()
    assert sim.serving(NEW) == 10


def test_device_that_comes_while_its_wave_soaks_is_waited_for():
    devices = fleet(3)
    devices["cam-00002"].connected = False
    plan = PLAN.model_copy(update={"waves": ("100%",)})
    sim = SimRollout(devices, plan).until(Phase.SOAKING)
    devices["cam-00002"].connected = True
    devices["cam-00002"].takes_s = 60.0
    sim.run()
    assert (sim.state.phase, sim.serving(NEW)) == (Phase.DONE, 3)


def test_with_every_device_away_it_waits_and_says_so():
    devices = fleet(5, connected=False)
    sim = SimRollout(devices, PLAN).run(ticks=600)
    assert (sim.state.phase, sim.moves) == (Phase.MOVING, [])
    assert "5 are away" in view_of(sim.state)["waits_for"]
    for device in devices.values():
        device.connected = True
    assert sim.run().state.phase is Phase.DONE


def test_hub_that_is_away_for_a_moment_lets_no_wave_pass():
    """Every device seems away; if a wave that nobody can be taken into passed, the others would get the
    release all at once."""
    devices = fleet(50)
    sim = SimRollout(devices, PLAN).until(Phase.SOAKING)
    for device in devices.values():
        device.connected = False
    for _ in range(50):
        sim.tick()
    assert (sim.state.wave, len(moved(sim.state))) == (0, 1)


def test_wave_of_which_all_are_away_for_long_gets_one_more():
    devices = fleet(10)
    sim = SimRollout(devices, PLAN).until(Phase.MOVING)
    sim.tick()
    (first,) = moved(sim.state)
    devices[first].connected = False
    for _ in range(int(ALONE_S) - 2):
        sim.tick()
    assert len(moved(sim.state)) == 1
    sim.run(ticks=5)
    assert len(moved(sim.state)) == 2
    assert sim.run().state.phase is Phase.DONE
    assert sim.serving(NEW) == 9


def test_devices_that_leave_drop_out_of_both_sides_of_the_share():
    """3 of 20 failed are under a fifth; when 8 of the others are revoked, 3 of 12 are over it."""
    plan = PLAN.model_copy(update={"waves": ("100%",), "halt": HaltConfig(error_rate=0.2), "soak_s": 1000})
    devices = fleet(20)
    for name in list(devices)[:3]:
        devices[name].breaks = True
    sim = SimRollout(devices, plan).until(Phase.SOAKING)
    assert not sim.state.cause
    for name in list(devices)[10:18]:
        del devices[name]
    sim.tick()
    assert "3 of 12 devices failed" in sim.state.cause


def test_failed_device_that_leaves_is_not_counted_any_more():
    plan = PLAN.model_copy(update={"waves": ("10", "100%"), "halt": HaltConfig(error_rate=0.2)})
    devices = fleet(20)
    sim = SimRollout(devices, plan)
    sim.until(Phase.MOVING)
    sim.tick()
    broken = min(moved(sim.state))
    devices[broken].breaks = True
    sim.until(Phase.SOAKING)
    assert sim.state.failed.keys() == {broken}
    del devices[broken]
    sim.tick()
    assert sim.state.failed == {}
    assert sim.run().state.phase is Phase.DONE


def test_first_device_that_leaves_is_replaced():
    devices = fleet(10)
    sim = SimRollout(devices, PLAN).until(Phase.SOAKING)
    (first,) = moved(sim.state)
    del devices[first]
    sim.tick()
    assert (sim.state.phase, len(moved(sim.state))) == (Phase.MOVING, 1)
    assert sim.run().state.phase is Phase.DONE


def test_shares_are_of_those_that_are_there_now():
    """Half of the 6 that are left of 20."""
    plan = PLAN.model_copy(update={"waves": ("1", "50%", "100%")})
    devices = fleet(20)
    sim = SimRollout(devices, plan).until(Phase.SOAKING)
    (first,) = moved(sim.state)
    for name in [name for name in devices if name != first][:14]:
        del devices[name]
    sim.run()
    assert [len(names) for _, names in sim.moves] == [1, 2, 3]


def test_devices_that_enrol_meanwhile_come_last():
    plan = PLAN.model_copy(update={"waves": ("1", "50%", "100%")})
    devices = fleet(4)
    sim = SimRollout(devices, plan).until(Phase.SOAKING)
    devices.update({f"new-{n}": one() for n in range(4)})
    sim.run()
    assert [len(names) for _, names in sim.moves] == [1, 3, 4]
    assert set(sim.moves[-1][1]) == {f"new-{n}" for n in range(4)}
    assert sim.serving(NEW) == 8


def test_incompatible_devices_are_left_out_and_not_counted_as_failed():
    devices = fleet(10)
    for name in list(devices)[:3]:
        devices[name].unfit = "lacks operator CONV_2D@5"
    sim = SimRollout(devices, PLAN).run()
    view = view_of(sim.state)
    assert (sim.state.phase, sim.serving(NEW), view["devices"]["excluded"]) == (Phase.DONE, 7, 3)
    assert view["devices"]["failed"] == 0
    assert view["excluded"]["cam-00000"] == "lacks operator CONV_2D@5"


def test_paused_rollout_moves_nobody_and_goes_on_afterwards():
    sim = SimRollout(fleet(10), PLAN).until(Phase.SOAKING)
    sim.happen(Pause())
    sim.happen(Pause())
    for _ in range(500):
        sim.tick()
    assert (len(moved(sim.state)), view_of(sim.state)["state"]) == (1, "paused")
    sim.happen(Resume())
    assert sim.run().state.phase is Phase.DONE


def test_paused_rollout_still_turns_back_on_a_fault():
    sim = SimRollout(fleet(10), PLAN).until(Phase.SOAKING)
    sim.happen(Pause())
    next(d for d in sim.devices.values() if d.serves == NEW).fault = "crashed"
    next(d for d in sim.devices.values() if d.serves == NEW).serves = OLD
    assert sim.run().state.phase is Phase.ROLLED_BACK


@pytest.mark.parametrize("phase", [Phase.MOVING, Phase.SOAKING])
def test_aborted_rollout_brings_everything_back(phase: Phase):
    sim = SimRollout(fleet(10), PLAN, store=True)
    sim.until(Phase.SOAKING)
    sim.until(phase)
    sim.happen(Abort())
    sim.happen(Abort())
    sim.run()
    assert (sim.state.phase, sim.withdrawn, sim.standing) == (Phase.ROLLED_BACK, True, OLD)
    assert (sim.serving(OLD), view_of(sim.state)["outcome"]) == (10, "aborted")


def test_device_that_does_not_come_back_is_told_and_does_not_hold_up_the_end():
    devices = fleet(3)
    plan = PLAN.model_copy(update={"waves": ("100%",)})
    sim = SimRollout(devices, plan).until(Phase.SOAKING)
    devices["cam-00001"].hangs = True
    devices["cam-00002"].connected = False
    sim.happen(Abort())
    sim.run()
    assert sim.state.phase is Phase.ROLLED_BACK
    assert sim.state.failed == {"cam-00001": "did not come back within 120 s"}
    assert "1 device away, to get it when back" in sim.said[-1]
    devices["cam-00002"].connected = True
    for _ in range(10):
        sim.tick()
    assert devices["cam-00002"].serves == OLD


def test_devices_are_told_the_old_version_only_once_that_is_signed_anew():
    """Before, they would refuse it as a downgrade."""
    sim = SimRollout(fleet(3), PLAN).until(Phase.SOAKING)
    state, commands = step(sim.state, Abort(), sim.now)
    assert set(moved(state).values()) == {NEW}
    assert not any(isinstance(command, MoveBack) for command in commands)
    state, commands = step(state, Ordered(OLD), sim.now)
    assert moved(state) == {}
    assert any(isinstance(command, MoveBack) for command in commands)


def test_followers_come_after_the_devices_and_are_watched_like_a_wave():
    sim = SimRollout(fleet(3), PLAN, followers={"pool": "", "gpu": ""})
    sim.until(Phase.FOLLOWING)
    assert sim.serving(NEW) == 3
    sim.until(Phase.SOAKING)
    began = sim.now
    sim.run()
    assert (sim.state.phase, sim.followed) == (Phase.DONE, [NEW])
    assert sim.now - began >= 30


def test_follower_that_fails_for_good_is_told_and_does_not_undo_the_devices():
    sim = SimRollout(fleet(3), PLAN, followers={"pool": "", "gpu": "it is down"}).run()
    assert (sim.state.phase, sim.standing) == (Phase.DONE, NEW)
    assert view_of(sim.state)["followers"] == {"pool": "", "gpu": "it is down"}
    assert 10 <= len(sim.followed) <= 13


def test_followers_go_back_too():
    sim = SimRollout(fleet(3), PLAN, followers={"pool": ""})
    sim.until(Phase.FOLLOWING)
    sim.until(Phase.SOAKING)
    sim.happen(Abort())
    sim.run()
    assert (sim.state.phase, sim.followed) == (Phase.ROLLED_BACK, [NEW, OLD])


def test_without_a_device_the_followers_take_it_alone_and_need_evidence():
    sim = SimRollout({}, PLAN, followers={"pool": ""}).run(ticks=500)
    assert (sim.state.phase, sim.followed) == (Phase.SOAKING, [NEW])
    assert "without evidence" in view_of(sim.state)["waits_for"]


def test_what_nothing_takes_does_not_stand():
    sim = SimRollout({}, PLAN, followers={"pool": "cannot load it"}).run()
    assert (sim.state.phase, sim.standing) == (Phase.ROLLED_BACK, OLD)
    assert "pool: cannot load it" in sim.state.cause


def test_what_comes_late_or_twice_changes_nothing():
    sim = SimRollout(fleet(3), PLAN).until(Phase.SOAKING)
    for event in (Stood(), Followed(NEW, {"pool": ""}), Followed(OLD)):
        assert step(sim.state, event, sim.now) == (sim.state, ())
    sim.run()
    assert step(sim.state, Seen({}), sim.now) == (sim.state, ())


@pytest.mark.parametrize("event", [Pause(), Resume(), Abort()])
def test_what_has_ended_can_be_neither_held_nor_aborted(event: Pause | Resume | Abort):
    sim = SimRollout(fleet(1), PLAN).run()
    with pytest.raises(NotNow, match="is done"):
        sim.happen(event)


def test_rollback_cannot_be_paused():
    sim = SimRollout(fleet(3, hangs=False), PLAN).until(Phase.SOAKING)
    sim.happen(Abort())
    with pytest.raises(NotNow, match="on its way back"):
        sim.happen(Pause())


def test_device_that_says_nothing_of_the_model_stays_what_it_was():
    """As right after it has connected again."""
    sim = SimRollout(fleet(3), PLAN).until(Phase.SOAKING)
    (first,) = moved(sim.state)
    sights = {name: device.sight() for name, device in sim.devices.items()}
    sights[first] = Sight("site-0", True)
    state, _ = step(sim.state, Seen(sights), sim.now)
    assert state.confirmed == {first}


def test_confirmed_takes_the_very_file_and_not_just_the_versions_name():
    state, _ = begin("ro", "m", OLD, NEW, PLAN, {"cam": Sight("s", True, OLD)}, 0.0)
    state, _ = step(state, Ordered(NEW), 0.0)
    for second in range(1, 30):
        state, _ = step(state, Seen({"cam": Sight("s", True, NEW, has_new=False)}), float(second))
    assert (state.phase, state.confirmed) == (Phase.MOVING, frozenset())


def test_document_of_another_format_is_refused():
    sim = SimRollout(fleet(3), PLAN)
    document = to_document(sim.state)
    with pytest.raises(ValueError, match="format 2"):
        from_document({**document, "format": 2})


def test_document_of_ten_thousand_devices_is_small():
    sim = SimRollout(fleet(10_000, sites=100), PLAN.model_copy(update={"waves": ("100%",)}))
    sim.tick()
    sim.tick()
    assert len(json.dumps(to_document(sim.state))) < 400_000


@pytest.mark.parametrize("breaks", [False, True])
def test_one_device_is_one_device_in_words(breaks: bool):
    sim = SimRollout(fleet(1, breaks=breaks), RolloutConfig(soak_s=2, min_requests=1))
    told: list[str] = []
    while sim.state.open:
        sim.tick()
        told.append(sim.state.look.lacks)
    assert any("1 device to " in words for words in told)
    assert [words for words in (*told, *sim.said) if re.search(r"(?<!of )\b1 devices", words)] == []
