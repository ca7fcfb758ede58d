"""Rollouts over a real database: what is stored and what is asked of releases, hub and followers, also
where those fail."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from edgewire.places import Place, Tier
from edgewire.signals import CONFIDENCE
from gateway.control.ports import Fit
from gateway.control.rollouts import KEPT, Rollouts
from gateway.control.sights import Sights
from gateway.core.config import RolloutConfig
from gateway.core.evidence import Evidence
from gateway.core.fleet import DeviceReport, ModelReport
from gateway.core.release import Reference, Release, Stage
from gateway.store.database import migrate, open_database
from oip.errors import OipError
from oip.reasons import Reason
from tests.support.rollout_world import MODEL, Gadget, World, digest_of, opened, release
from tests.support.waiting import until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    migrate(tmp_path)
    return tmp_path


def world_of(count: int = 6, **each: object) -> World:
    world = World({f"cam-{n}": Gadget(f"site-{n % 2}", **each) for n in range(count)})  # pyright: ignore[reportArgumentType]
    world.shelf["2"] = release("2", 2)
    return world


async def go(world: World, holds: Callable[[], bool], ticks: int = 300) -> None:
    """Seconds pass until something is so."""
    assert world.rollouts is not None
    for _ in range(ticks):
        if holds():
            return
        world.pass_second()
        await world.rollouts.tick()
    raise AssertionError(world.rollouts.views())


async def ended(rollouts: Rollouts, world: World, id: str) -> dict:
    await go(world, lambda: not rollouts.view(id)["open"])
    return rollouts.view(id)


async def test_release_reaches_every_device_and_stands(folder: Path):
    world = world_of()
    world.followers = {"pool": ""}
    rollouts = await opened(folder, world)
    id = await rollouts.start(MODEL, "2")
    assert world.stands == "1"
    view = await ended(rollouts, world, id)
    assert (view["state"], view["outcome"], view["devices"]["confirmed"]) == ("done", "done", 6)
    assert world.log == ["follow 2", "stands 2"]
    assert [device.switches for device in world.devices.values()] == [["2"]] * 6
    assert rollouts.moved() == {}
    assert json.loads(json.dumps(rollouts.views())) == [view]


async def test_moved_names_the_devices_of_the_waves_so_far(folder: Path):
    world = world_of()
    rollouts = await opened(folder, world)
    await rollouts.start(MODEL, "2")
    assert rollouts.moved() == {MODEL: {}}
    await go(world, lambda: len(rollouts.moved()[MODEL]) == 1)
    await go(world, lambda: len(rollouts.moved()[MODEL]) == 3)
    assert set(rollouts.moved()[MODEL].values()) == {"2"}


async def test_broken_release_goes_back_by_an_order_signed_anew_and_is_withdrawn(folder: Path):
    world = world_of(breaks_on=("2",))
    rollouts = await opened(folder, world)
    view = await ended(rollouts, world, await rollouts.start(MODEL, "2"))
    assert (view["state"], view["outcome"]) == ("rolled_back", "halted")
    assert "golden vectors differ" in view["cause"]
    assert world.log == ["ordered 1", "withdrawn 2"]
    assert world.shelf["1"].order > world.shelf["2"].order
    with pytest.raises(OipError, match="was rolled back: release its files as a new version"):
        await rollouts.start(MODEL, "2", force=True)


async def test_devices_that_went_back_had_no_order_to_refuse(folder: Path):
    world = world_of()
    rollouts = await opened(folder, world)
    id = await rollouts.start(MODEL, "2")
    await go(world, lambda: len(rollouts.moved()[MODEL]) == 3)
    await go(world, lambda: sum(d.serves == "2" for d in world.devices.values()) == 3)
    await rollouts.abort(id)
    view = await ended(rollouts, world, id)
    assert (view["outcome"], view["devices"]["returned"]) == ("aborted", 3)
    assert {device.serves for device in world.devices.values()} == {"1"}
    assert {device.refused for device in world.devices.values()} == {0}


async def test_older_release_is_ordered_before_devices_are_moved_to_it(folder: Path):
    world = world_of()
    rollouts = await opened(folder, world)
    await ended(rollouts, world, await rollouts.start(MODEL, "2"))
    await ended(rollouts, world, await rollouts.start(MODEL, "1"))
    assert world.log == ["follow 2", "stands 2", "ordered 1", "follow 1", "stands 1"]
    assert {device.serves for device in world.devices.values()} == {"1"}
    assert {device.refused for device in world.devices.values()} == {0}


async def refusal(rollouts: Rollouts, *args: str, force: bool = False) -> str:
    with pytest.raises(OipError) as caught:
        await rollouts.start(*args, force=force)
    assert caught.value.reason in (Reason.CONFLICT, Reason.NOT_FOUND)
    assert rollouts.views() == []
    return caught.value.message


async def test_start_refuses_what_cannot_be_rolled_out_and_says_why(folder: Path):
    world = world_of()
    rollouts = await opened(folder, world)
    assert "no release 9" in await refusal(rollouts, MODEL, "9")
    assert "stands already" in await refusal(rollouts, MODEL, "1")
    figures = {"accuracy": 0.8125, "current_accuracy": 0.93}
    world.shelf["3"] = replace(release("3", 3, Stage.REFUSED), metrics=figures)
    assert await refusal(rollouts, MODEL, "3") == (
        "version 3 of digits was refused by its gate (accuracy 0.8125, current_accuracy 0.93); only by force is "
        "it rolled out"
    )
    world.shelf["4"] = release("4", 4, Stage.CANDIDATE)
    assert "has not passed a gate" in await refusal(rollouts, MODEL, "4")


async def test_start_refuses_a_release_that_nothing_can_take(folder: Path):
    world = world_of(count=5)
    world.unfit = dict.fromkeys(world.devices, "its place is not allowed")
    rollouts = await opened(folder, world)
    text = await refusal(rollouts, MODEL, "2")
    assert "nothing can take version 2 of digits: cam-0: its place is not allowed;" in text
    assert text.endswith("and 2 more")
    world.devices.clear()
    assert "no device is in its groups and no endpoint follows it" in await refusal(rollouts, MODEL, "2")


async def test_one_rollout_of_a_model_at_a_time(folder: Path):
    world = world_of()
    world.shelf["3"] = release("3", 3)
    rollouts = await opened(folder, world)
    id = await rollouts.start(MODEL, "2")
    with pytest.raises(OipError, match=f"rollout {id} of digits to version 2 is under way"):
        await rollouts.start(MODEL, "3")
    both = await asyncio.gather(
        *(Rollouts.start(rollouts, MODEL, "2") for _ in range(3)), return_exceptions=True
    )
    assert all(isinstance(one, OipError) for one in both)
    await ended(rollouts, world, id)
    assert await rollouts.start(MODEL, "3") != id


@pytest.mark.parametrize(("stage", "log"), [(Stage.CANDIDATE, ["judged 3"]), (Stage.REFUSED, [])])
async def test_force_takes_what_the_gate_did_not_pass(folder: Path, stage: Stage, log: list[str]):
    world = world_of()
    world.shelf["3"] = release("3", 3, stage)
    rollouts = await opened(folder, world)
    id = await rollouts.start(MODEL, "3", force=True)
    assert world.log == log
    view = rollouts.view(id)
    assert view["forced"]
    assert "its gate did not pass it" in view["events"][0]["text"]
    assert (await ended(rollouts, world, id))["outcome"] == "done"


async def test_same_source_asked_again_has_the_same_rollout(folder: Path):
    world = world_of()
    rollouts = await opened(folder, world)
    id = await rollouts.start(MODEL, "2", source="update-7")
    assert await rollouts.start(MODEL, "2", source="update-7") == id
    await ended(rollouts, world, id)
    again = await opened(folder, world)
    assert await again.start(MODEL, "2", source="update-7") == id


async def test_next_control_goes_on_where_the_last_one_ended(folder: Path):
    world = world_of()
    rollouts = await opened(folder, world)
    id = await rollouts.start(MODEL, "2")
    for _ in range(40):
        world.pass_second()
        await rollouts.tick()
        before = {name: rollouts.view(id)[name] for name in ("phase", "devices", "waves")}
        rollouts = await opened(folder, world)
        assert {name: rollouts.view(id)[name] for name in ("phase", "devices", "waves")} == before
    assert rollouts.view(id)["state"] == "done"
    # A control that ends while followers move asks them again.
    assert [entry for entry in world.log if entry != "follow 2"] == ["stands 2"]
    assert world.log[0] == "follow 2"
    assert [device.switches for device in world.devices.values()] == [["2"]] * 6


@pytest.mark.parametrize("port", ["order_back", "fleet", "evidence", "stand", "follow", "changed"])
async def test_what_cannot_be_done_now_is_done_later(folder: Path, port: str):
    world = world_of()
    world.followers = {"pool": ""}
    rollouts = await opened(folder, world)
    if port != "fleet":
        world.trouble.add(port)
    id = await rollouts.start(MODEL, "2")
    world.trouble.add(port)
    for _ in range(40):
        world.pass_second()
        await rollouts.tick()
        await asyncio.sleep(0)
    assert rollouts.view(id)["state"] == "running"
    assert world.stands == "1"
    if port in ("order_back", "evidence", "stand"):
        assert rollouts.view(id)["waits_for"] == f"{port} is not available"
    world.trouble.clear()
    view = await ended(rollouts, world, id)
    assert (view["outcome"], world.log[-1]) == ("done", "stands 2")


@pytest.mark.parametrize("port", ["withdraw", "order_back", "changed"])
async def test_abort_that_cannot_be_carried_out_now_is_not_forgotten(folder: Path, port: str):
    world = world_of()
    rollouts = await opened(folder, world)
    id = await rollouts.start(MODEL, "2")
    await go(world, lambda: len(rollouts.moved()[MODEL]) == 1)
    world.trouble.add(port)
    assert (await rollouts.abort(id))["state"] == "rolling_back"
    rollouts = await opened(folder, world)
    for _ in range(5):
        world.pass_second()
        await rollouts.tick()
    world.trouble.clear()
    assert (await ended(rollouts, world, id))["outcome"] == "aborted"
    assert sorted(world.log) == ["ordered 1", "withdrawn 2"]


async def test_slow_followers_hold_nothing_up_and_an_abort_brings_them_back(folder: Path):
    world = world_of()
    world.followers = {"pool": ""}
    world.follow_gate = asyncio.Event()
    rollouts = await opened(folder, world)
    id = await rollouts.start(MODEL, "2")
    await go(world, lambda: rollouts.view(id)["phase"] == "following")
    for _ in range(20):
        world.pass_second()
        await rollouts.tick()
    await rollouts.abort(id)
    world.pass_second()
    await rollouts.tick()
    assert rollouts.view(id)["phase"] == "returning"
    world.follow_gate.set()
    await until(lambda: "follow 2" in world.log)
    for _ in range(20):
        world.pass_second()
        await rollouts.tick()
        await asyncio.sleep(0)
    assert rollouts.view(id)["outcome"] == "aborted"
    assert [line for line in world.log if line.startswith("follow")] == ["follow 2", "follow 1"]
    await rollouts.close()


async def test_close_leaves_what_is_under_way_to_the_next_one(folder: Path):
    world = world_of()
    world.followers = {"pool": ""}
    world.follow_gate = asyncio.Event()
    rollouts = await opened(folder, world)
    id = await rollouts.start(MODEL, "2")
    await go(world, lambda: rollouts.view(id)["phase"] == "following")
    await rollouts.close()
    world.follow_gate = None
    rollouts = await opened(folder, world)
    assert (await ended(rollouts, world, id))["outcome"] == "done"


async def test_pause_and_resume_answer_the_view_and_an_ended_rollout_refuses_both(folder: Path):
    world = world_of()
    rollouts = await opened(folder, world)
    id = await rollouts.start(MODEL, "2")
    await go(world, lambda: len(rollouts.moved()[MODEL]) == 1)
    assert (await rollouts.pause(id))["state"] == "paused"
    rollouts = await opened(folder, world)
    for _ in range(60):
        world.pass_second()
        await rollouts.tick()
    assert len(rollouts.moved()[MODEL]) == 1
    assert (await rollouts.resume(id))["state"] == "running"
    await ended(rollouts, world, id)
    for call in (rollouts.pause, rollouts.resume, rollouts.abort):
        with pytest.raises(OipError, match="has ended: done") as caught:
            await call(id)
        assert caught.value.reason is Reason.CONFLICT
        with pytest.raises(OipError, match="no rollout 'nope'") as caught:
            await call("nope")
        assert caught.value.reason is Reason.NOT_FOUND


async def test_confidence_is_read_by_the_bins_of_each_release(folder: Path):
    """Ten bins of the old, two of the new: the middles say 0.95 and 0.25."""
    world = world_of()
    tenths = Reference(tuple(n / 10 for n in range(1, 10)), (0,) * 10)
    world.shelf["1"] = replace(world.shelf["1"], reference={CONFIDENCE: tenths})
    world.shelf["2"] = replace(world.shelf["2"], reference={CONFIDENCE: Reference((0.5,), (0, 0))})
    world.answers["1"] = Evidence(100, 0, {}, {CONFIDENCE: (0,) * 9 + (100,)})
    world.answers["2"] = Evidence(100, 0, {}, {CONFIDENCE: (100, 0)})
    rollouts = await opened(folder, world)
    view = await ended(rollouts, world, await rollouts.start(MODEL, "2"))
    assert "mean confidence is 0.250 against 0.950" in view["cause"]


async def test_first_release_of_a_model_has_nothing_to_go_back_to(folder: Path):
    world = world_of(serves="", told="", order=0)
    world.stands = ""
    world.shelf = {"2": release("2", 2)}
    rollouts = await opened(folder, world)
    id = await rollouts.start(MODEL, "2")
    await go(world, lambda: len(rollouts.moved()[MODEL]) == 1)
    assert rollouts.view(id)["from"] is None
    await rollouts.abort(id)
    assert rollouts.moved() == {MODEL: {}}
    assert world.log == ["withdrawn 2"]


async def test_database_that_fails_changes_nothing(folder: Path):
    world = world_of()
    rollouts = await opened(folder, world)
    engine = open_database(folder)
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE rollouts RENAME TO elsewhere"))
    with pytest.raises(OipError) as caught:
        await rollouts.start(MODEL, "2")
    assert caught.value.reason is Reason.UNAVAILABLE
    assert (rollouts.views(), rollouts.moved(), world.log) == ([], {}, [])
    with pytest.raises(OipError, match="cannot be read or written"):
        await opened(folder, world)


async def test_only_the_last_ones_are_shown(folder: Path):
    world = world_of(count=1)
    world.plan = RolloutConfig(waves=("100%",), soak_s=0, min_requests=0)
    rollouts = await opened(folder, world)
    version = 2
    id = ""
    for version in range(2, 6):
        world.shelf[str(version)] = release(str(version), version)
        id = await rollouts.start(MODEL, str(version))
        await ended(rollouts, world, id)
    assert [view["to"] for view in rollouts.views()] == ["5", "4", "3", "2"]
    assert rollouts.views()[0]["id"] == id
    assert KEPT >= 20


def sight_of(report: ModelReport | None):
    world = World({})
    place = Place(Tier.DEVICE, site="s", device="cam")
    models = {} if report is None else {MODEL: report}
    devices = [DeviceReport("cam", place, {}, True, {}, models)]
    return Sights(world.fits).of(release("2", 2), devices)["cam"]


def test_what_a_device_reports_counts_for_the_very_file_alone():
    two, other = digest_of("2"), digest_of("7")
    assert sight_of(ModelReport("2", two, "active", "", "2", two)).has_new
    assert not sight_of(ModelReport("2", two, "active", "", "2", other)).has_new
    assert not sight_of(ModelReport("2", two, "trying", "", "1", digest_of("1"))).has_new
    assert sight_of(ModelReport("2", two, "failed", "no room", "1", digest_of("1"))).fault == "no room"
    assert sight_of(ModelReport("2", two, "failed")).fault
    assert not sight_of(ModelReport("2", other, "failed", "no room")).fault
    assert not sight_of(ModelReport("1", two, "failed", "no room")).fault
    assert sight_of(None).serves is None
    assert not sight_of(ModelReport("2", two, "failed", "crashed", "2", two)).has_new


def test_devices_are_looked_at_again_when_they_or_the_release_say_something_new():
    world = World({"cam": Gadget("s"), "other-cam": Gadget("s")})
    asked: list[str] = []

    def fits(release: Release, device: DeviceReport) -> Fit | None:
        asked.append(device.name)
        return world.fits(release, device)

    sights, two = Sights(fits), release("2", 2)
    reports = [device.report(name) for name, device in world.devices.items()]
    assert sights.of(two, reports).keys() == {"cam"}
    assert sights.of(two, reports).keys() == {"cam"}
    assert asked == ["cam", "other-cam"]
    world.devices["cam"].serves = "2"
    changed = [world.devices["cam"].report("cam"), reports[1]]
    assert sights.of(two, changed)["cam"].serves == "2"
    assert asked == ["cam", "other-cam", "cam"]
    assert sights.of(two, changed[:1]).keys() == {"cam"}
    sights.of(replace(two, order=3), changed)
    assert asked[3:] == ["cam", "other-cam"]


async def test_followers_version_is_known_after_a_restart(folder: Path):
    world = world_of()
    world.followers = {"pool": ""}
    rollouts = await opened(folder, world)
    id = await rollouts.start(MODEL, "2")
    await go(world, lambda: "follow 2" in world.log)
    assert (await opened(folder, world)).followed() == {MODEL: "2"}
    rollouts = await opened(folder, world)
    await rollouts.abort(id)
    assert rollouts.followed() == {}
    await rollouts.close()


async def test_look_at_ten_thousand_devices_takes_well_under_a_second(folder: Path):
    world = World({f"cam-{n:05d}": Gadget(f"site-{n % 100}") for n in range(10_000)})
    world.shelf["2"] = release("2", 2)
    world.plan = RolloutConfig(waves=("1", "1%", "10%", "100%"), soak_s=2, min_requests=1)
    rollouts = await opened(folder, world)
    id = await rollouts.start(MODEL, "2")
    took: list[float] = []
    while rollouts.view(id)["open"]:
        world.pass_second()
        began = time.process_time()
        await rollouts.tick()
        took.append(time.process_time() - began)
    assert rollouts.view(id)["devices"]["confirmed"] == 10_000
    print(
        f"{len(took)} looks, the longest {max(took) * 1000:.0f} ms, the mean {sum(took) / len(took) * 1000:.0f} ms"
    )
    assert sorted(took)[len(took) // 2] < 1.0
