"""Updates carried out, over a database and a world that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from edgewire.places import Place, Tier
from edgewire.signals import CONFIDENCE
from gateway.control.updates import Updates
from gateway.core.training_run import Fault, TrainFailed
from gateway.store.database import migrate, open_database
from oip.errors import OipError
from oip.reasons import Reason
from tests.support.update_world import TEXT, World, config

TEACHER, FILE = "labels: {teacher: large}", "labels: {file: LABELS}"


class Desk:
    """Updates over a world whose time goes on a second with every tick."""

    def __init__(self, folder: Path, world: World, text: str = TEXT) -> None:
        self.folder = folder
        self.world = world
        self.text = text
        self.held = False
        """Whether work is kept from its end, and so not waited for."""
        migrate(folder)
        self.engine = open_database(folder)
        self.updates = self._new()

    def _new(self) -> Updates:
        return Updates(
            self.engine, config(self.text), self.folder, self.world.ports(), lambda: self.world.now
        )

    async def again(self) -> None:
        """Another control, over the same database and world."""
        await self.updates.close()
        self.updates = self._new()
        await self.updates.resume_all()

    async def tick(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.world.now += 1
            await self.updates.tick()
            while not self.held and (running := _running()):
                await asyncio.wait(running)
            await asyncio.sleep(0)

    async def until(self, wanted: Callable[[], bool], most: int = 120) -> None:
        for _ in range(most if not self.held else 100 * most):
            if wanted():
                return
            await self.tick()
            if self.held:
                await asyncio.sleep(0.001)
        raise AssertionError(f"it never came: {self.updates.views()['updates']}")

    def newest(self) -> dict[str, Any]:
        views = self.updates.views()["updates"]
        return views[0] if views else {"phase": None}

    def came_to(self, *phases: str) -> Callable[[], bool]:
        return lambda: self.newest()["phase"] in phases


def _running() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("update ")]


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    found = Desk(tmp_path, World())
    await found.updates.resume_all()
    yield found
    await found.updates.close()
    await found.engine.dispose()


def raised(reason: Reason = Reason.UNAVAILABLE, text: str = "the store is away") -> OipError:
    return OipError(reason, text)


async def test_drift_leads_to_a_recovered_model_without_a_hand(desk: Desk) -> None:
    world = desk.world
    await desk.until(desk.came_to("rolling"))
    world.drifts = {"1"}
    await desk.tick(3)
    assert desk.newest()["waits_for"] == "its rollout is moving"
    world.rollouts.go_on()
    await desk.until(desk.came_to("recovered"))

    view = desk.updates.view("u1")
    assert view["cause"]["origin"] == "drift"
    assert view["cause"]["sites"] == ["plant-7"]
    assert view["cause"]["score"] > view["cause"]["threshold"] == 0.2
    assert [stage["phase"] for stage in view["stages"]] == [
        "gathering", "training", "measuring", "trying", "deciding", "rolling", "watching", "recovered",
    ]  # fmt: skip
    assert view["stages"][-1]["s"] is None
    # From the first look that was over the threshold to the look that confirmed it.
    assert view["loop_s"] == view["stages"][-1]["at"] - view["cause"]["since"]
    assert view["score_after"] < 0.1
    assert (view["version"], view["rollout"]) == ("2", "ro-1")
    assert [rule["passed"] for rule in view["rules"]].count(False) == 0
    assert view["trials"][0]["outcome"] == "passed"
    assert "epoch 1" in view["log"]
    assert "== recovered Version 2 is out" in view["log"]
    assert [line["source"] for line in world.ledger.of("release")] == ["u1"]
    assert world.ledger.of("release")[0]["golden"] == [True]
    assert world.ledger.of("judged")[-1]["passed"] is True
    # Quiet afterwards: the model is in touch again.
    await desk.tick(30)
    assert len(desk.updates.views()["updates"]) == 1


async def test_nothing_of_a_sample_goes_where_it_may_not_and_held_out_ones_are_not_trained_on(
    desk: Desk,
) -> None:
    desk.world.samples = 30
    await desk.until(desk.came_to("rolling"))
    (spec,), (measured,) = desk.world.specs, desk.world.measured
    trained = {placed.sample.id for placed in spec.samples}
    held = {placed.sample.id for placed in measured.samples}
    assert trained
    assert held
    assert not trained & held
    assert spec.place == measured.place == Place(Tier.SITE, site="plant-7")
    assert spec.files == {"tflite": b"sha256:1"}
    assert {places for _, places in desk.world.taught} == {"site=plant-7"}
    assert desk.world.ledger.of("release")[0]["places"] == "site=plant-7"


async def test_it_waits_for_labels_and_says_so(desk: Desk) -> None:
    desk.world.faults["teach"] = [raised(text="large is not reachable")] * 3
    await desk.until(desk.came_to("gathering"))
    await desk.tick(2)
    assert desk.newest()["waits_for"] == (
        "0 of 4 labelled samples are there, of 8 that are kept; large gives no label: large is not reachable"
    )
    await desk.until(desk.came_to("training", "rolling"))


async def test_a_sample_that_the_teacher_cannot_answer_holds_up_no_other(desk: Desk) -> None:
    desk.world.faults["teach"] = [raised(Reason.MALFORMED, "input x has another shape")]
    desk.world.samples = 5
    await desk.until(desk.came_to("rolling"))
    assert len(desk.world.labelled) == 4
    desk.world.samples = 40
    assert "0" * 64 not in desk.world.labelled


async def test_the_operators_labels_come_from_the_file(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    desk = Desk(tmp_path, World(), TEXT.replace(TEACHER, FILE.replace("LABELS", str(labels))))
    await desk.updates.resume_all()
    await desk.until(desk.came_to("gathering"))
    await desk.tick(5)
    assert "labels.csv: the labels cannot be read: no such file" in desk.newest()["waits_for"]
    rows = [f"{n:064x},{n % 3}" for n in range(6)]
    labels.write_text("\n".join(["sample,label", "nonsense,1", *rows]) + "\n")
    seen = await desk.updates.samples("digits")
    assert [one["labelled"] for one in seen] == ["file"] * 6 + [None] * 2
    assert set(seen[0]) == {"id", "site", "version", "confidence", "rows", "taken_at", "labelled"}
    await desk.until(desk.came_to("rolling"))
    assert len(desk.world.specs[0].samples) + len(desk.world.measured[0].samples) == 6
    await desk.updates.close()
    await desk.engine.dispose()


@pytest.mark.parametrize(
    ("script", "phase", "outcome"),
    [
        (lambda w: w.training.append(TrainFailed(Fault.ENTRYPOINT, "There is no such function.")), "failed",
         "There is no such function."),
        (lambda w: w.right.update({"2": 4}), "refused",
         "Accuracy 40 % of tflite is worse than 50 % of the current tflite."),
        (lambda w: setattr(w, "trial", w.trial.__class__("", "failed", "the golden vectors differ")), "refused",
         "did not get it to work: the golden vectors differ. No device has timed it."),
        (lambda w: setattr(w, "unfit", "it lacks CONV_2D@9"), "refused", "No device can run it: cam-1 (it lacks"),
        (lambda w: setattr(w.rollouts, "ends", "halted"), "rolled back", "Wave 1 fails too often."),
        (lambda w: w.drifts.add("2"), "not recovered", "Version 2 is out, and the drift goes on with a score of"),
    ],
)  # fmt: skip
async def test_every_way_that_it_can_go_wrong(
    desk: Desk, script: Callable[[World], Any], phase: str, outcome: str
) -> None:
    script(desk.world)

    def over() -> bool:
        desk.world.rollouts.go_on()
        return desk.came_to(phase)()

    await desk.until(over)
    assert outcome in desk.newest()["outcome"]
    refused = [word["passed"] for word in desk.world.ledger.of("judged")]
    assert refused == {"refused": [False], "failed": []}.get(phase, [True])
    assert bool(desk.world.ledger.of("rollout")) == (phase in ("rolled back", "not recovered"))
    # It drifts on, and is left in peace for six windows.
    desk.world.now += 1
    began = desk.world.now
    await desk.until(lambda: len(desk.updates.views()["updates"]) == 2)
    assert 50 <= desk.world.now - began <= 80


async def test_a_worse_model_is_refused_before_any_device_is_asked(desk: Desk) -> None:
    desk.world.right["2"] = 4
    await desk.until(desk.came_to("refused"))
    assert desk.updates.view("u1")["trials"] == []
    assert [stage["phase"] for stage in desk.updates.view("u1")["stages"]][-2:] == ["measuring", "refused"]


async def test_attempts_that_failed_are_kept_and_the_next_control_goes_on_with_the_same(desk: Desk) -> None:
    world, held = desk.world, asyncio.Event()
    world.training = [TrainFailed(Fault.RAISED, "It raised ValueError.")]

    async def wait(heard: Any) -> None:
        if len(world.ledger.of("train")) == 2:
            await held.wait()

    world.before_result = None
    await desk.until(desk.came_to("measuring", "trying", "deciding", "rolling"))
    assert desk.updates.view("u1")["failures"] == ["It raised ValueError."]
    assert desk.updates.view("u1")["attempt"] == 2

    world.before_result, desk.held = wait, True
    await desk.updates.cancel("u1")
    await desk.updates.retry("u1")
    world.training = [TrainFailed(Fault.RAISED, "It raised KeyError.")]
    await desk.until(lambda: len(world.ledger.of("train")) == 2)
    held.set()
    desk.held = False
    await desk.until(lambda: desk.updates.view("u2")["attempt"] == 2)
    assert desk.updates.view("u2")["failures"] == ["It raised KeyError."]


async def test_a_run_that_is_lost_with_control_begins_again_with_its_number(desk: Desk) -> None:
    world, held = desk.world, asyncio.Event()
    world.training = [TrainFailed(Fault.RAISED, "It raised.")]

    async def wait(heard: Any) -> None:
        if len(world.ledger.of("train")) == 1:
            from gateway.core.training_run import RunEvent, RunKind

            heard(RunEvent(RunKind.RETRYING, "It raised.", attempt=1))
            await held.wait()

    world.before_result, desk.held = wait, True
    await desk.until(lambda: desk.newest()["phase"] == "training")
    await desk.until(lambda: desk.updates.view("u1")["attempt"] == 2)
    assert desk.updates.view("u1")["progress"]["kind"] == "retrying"
    await desk.again()
    world.training, desk.held = [], False
    await desk.until(desk.came_to("rolling"))
    assert [line["attempt"] for line in world.ledger.of("train")] == [1, 2]
    assert len(world.ledger.of("release")) == 1


async def test_a_store_that_is_away_loses_no_run_and_a_version_taken_meanwhile_no_model(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.control.update_work.AGAIN_S", 0.0)
    await desk.again()
    desk.updates._work._again_s = 0.0
    taken = raised(Reason.CONFLICT, "version 2 of 'digits' is there with other files")
    desk.world.faults["add"] = [raised(), taken, raised()]
    await desk.until(desk.came_to("rolling"))
    assert len(desk.world.specs) == 1
    assert len(desk.world.ledger.of("release")) == 1


async def test_the_gates_word_is_asked_again_until_it_is_written(desk: Desk) -> None:
    desk.world.faults["judged"] = [raised(), raised()]
    await desk.until(desk.came_to("rolling"))
    assert [word["passed"] for word in desk.world.ledger.of("judged")] == [True]

    desk.world.faults["judged"] = [raised(Reason.CONFLICT, "version 3 is withdrawn")]
    await desk.updates.cancel("u1")
    await desk.until(desk.came_to("cancelled"))
    await desk.updates.retry("u1")
    await desk.until(desk.came_to("failed"))
    assert desk.newest()["outcome"] == "version 3 is withdrawn"


async def test_a_rollout_that_may_not_start_yet_is_waited_for(desk: Desk) -> None:
    busy = raised(
        Reason.CONFLICT, "rollout ro-9 of digits to version 7 is under way: wait for it, or abort it"
    )
    desk.world.faults["start"] = [busy] * 2
    await desk.until(desk.came_to("rolling"))
    assert desk.newest()["waits_for"] == busy.message
    await desk.until(lambda: desk.newest()["rollout"] == "ro-1")


async def test_cancelling_takes_a_rollout_back_first(desk: Desk) -> None:
    await desk.until(lambda: desk.newest().get("rollout") == "ro-1")
    desk.world.faults["abort"] = [raised()]
    with pytest.raises(OipError, match="the store is away"):
        await desk.updates.cancel("u1")
    assert desk.newest()["phase"] == "rolling"
    await desk.until(desk.came_to("cancelled"))
    assert [line["outcome"] for line in desk.world.ledger.of("ended")] == ["aborted"]
    with pytest.raises(OipError, match="update u1 has ended: Cancelled by the operator"):
        await desk.updates.cancel("u1")


async def test_cancelling_ends_the_run_that_is_under_way(desk: Desk) -> None:
    ended, held = asyncio.Event(), asyncio.Event()

    async def wait(heard: Any) -> None:
        try:
            await held.wait()
        finally:
            ended.set()

    desk.world.before_result, desk.held = wait, True
    await desk.until(desk.came_to("training"))
    await desk.until(lambda: desk.updates.view("u1")["progress"] is not None)
    assert desk.updates.view("u1")["progress"] == {
        "kind": "progress",
        "share": 0.5,
        "words": "half",
        "attempt": 1,
    }
    view = await desk.updates.cancel("u1")
    assert (view["phase"], view["outcome"]) == ("cancelled", "Cancelled by the operator.")
    await asyncio.wait_for(ended.wait(), 10)
    assert not desk.world.ledger.of("release")


async def test_a_pushed_release_is_judged_and_not_rolled_out(desk: Desk) -> None:
    world = desk.world
    world.drifts = set()
    world.ledger.add(
        "release", model="digits", version="2", source="push", places="", reference={}, golden=[]
    )
    view = await desk.updates.judge_pushed("digits", "2")
    assert (view["phase"], view["cause"]["origin"]) == ("measuring", "push")
    assert (await desk.updates.judge_pushed("digits", "2"))["id"] == view["id"]
    await desk.until(desk.came_to("passed"))
    assert world.ledger.of("judged")[-1]["passed"] is True
    assert not world.ledger.of("rollout")
    with pytest.raises(OipError, match="version 1 of 'digits' stands already"):
        await desk.updates.judge_pushed("digits", "1")
    with pytest.raises(OipError, match="no release 9"):
        await desk.updates.judge_pushed("digits", "9")


async def test_a_push_is_judged_again_only_where_there_is_something_to_judge(desk: Desk) -> None:
    desk.world.drifts = set()
    desk.world.ledger.add(
        "release", model="digits", version="2", source="push", places="", reference={}, golden=[]
    )
    await desk.updates.judge_pushed("digits", "2")
    await desk.until(desk.came_to("passed"))
    again = await desk.updates.retry("u1")
    assert (again["id"], again["version"]) == ("u2", "2")
    assert (await desk.updates.retry("u1"))["id"] == "u2", "one at a time"
    await desk.until(desk.came_to("passed"))
    await desk.world.rollouts.start("digits", "2", source="operator")
    desk.world.rollouts.go_on()
    with pytest.raises(OipError, match="version 2 of 'digits' stands already") as caught:
        await desk.updates.retry("u1")
    assert caught.value.reason is Reason.CONFLICT


async def test_an_update_that_is_not_configured_any_more_is_not_begun_again(desk: Desk) -> None:
    await desk.updates.trigger("digits")
    await desk.updates.cancel("u1")
    ours, others = desk.text.index("  - model: digits"), desk.text.index("  - model: gauges")
    desk.text = desk.text[:ours] + desk.text[others:]
    await desk.again()
    with pytest.raises(OipError, match="the running configuration has no update of a model 'digits'"):
        await desk.updates.retry("u1")


async def test_a_push_does_not_wait_for_an_update_nor_an_update_for_a_push(desk: Desk) -> None:
    desk.world.ledger.add(
        "release", model="digits", version="2", source="push", places="", reference={}, golden=[]
    )
    desk.world.trial, desk.world.drifts = None, set()
    await desk.updates.judge_pushed("digits", "2")
    await desk.tick(2)
    await desk.updates.trigger("digits")
    desk.world.right["3"] = 9
    await desk.until(lambda: {v["phase"] for v in desk.updates.views()["updates"]} == {"trying"})
    await desk.tick()
    asked = sorted(pair for pairs in desk.updates.trials().values() for pair in pairs)
    assert asked == [("digits", "2"), ("digits", "3")]


async def test_what_devices_are_to_try_is_told_once_it_changes(desk: Desk) -> None:
    desk.world.trial = None
    desk.world.faults["changed"] = [raised()] * 3
    await desk.until(desk.came_to("trying"))
    await desk.tick(4)
    (device,) = desk.updates.trials()
    assert device in desk.world.connected
    assert desk.updates.trials() == {device: (("digits", "2"),)}
    told = desk.world.told
    assert told >= 1
    await desk.tick(1)
    assert desk.world.told == told


async def test_what_is_to_be_gathered(desk: Desk) -> None:
    orders = desk.updates.gather()
    assert set(orders) == {"digits", "gauges"}
    digits, gauges = orders["digits"], orders["gauges"]
    assert digits.signals == gauges.signals == (CONFIDENCE,)
    assert (digits.training, digits.max_per_day, digits.confidence_below) == (
        Place(Tier.SITE, site="plant-7"), 500, 0.8,
    )  # fmt: skip
    assert (gauges.training, gauges.max_per_day) == (None, 0)
    assert desk.updates.report_ms() == 1000


async def test_a_model_without_a_trainer_is_watched_and_no_more(desk: Desk) -> None:
    await desk.tick(40)
    watches = {watch["model"]: watch for watch in desk.updates.views()["watches"]}
    assert watches["gauges"]["phase"] == "drifting"
    assert watches["gauges"]["score"] > 0.2
    assert watches["gauges"]["sites"]["plant-7"] > 0.2
    assert len(watches["gauges"]["history"]) >= 30
    assert all(view["model"] == "digits" for view in desk.updates.views()["updates"])
    with pytest.raises(OipError, match="the update of 'gauges' has no trainer: add train to it in the file"):
        await desk.updates.trigger("gauges")


async def test_operators_mistakes_are_told(desk: Desk) -> None:
    for wrong, text in (
        (desk.updates.trigger("faces"), "the running configuration has no update of a model 'faces'"),
        (desk.updates.samples("faces"), "the running configuration has no update of a model 'faces'"),
        (desk.updates.cancel("u7"), "no update 'u7': unknown, or too old"),
        (desk.updates.retry("../u7"), "no update '../u7': unknown, or too old"),
    ):
        with pytest.raises(OipError) as caught:
            await wrong
        assert (caught.value.reason, caught.value.message) == (Reason.NOT_FOUND, text)
    view = await desk.updates.trigger("digits")
    for second in (desk.updates.trigger("digits"), desk.updates.retry(view["id"])):
        with pytest.raises(OipError, match="update u1") as caught:
            await second
        assert caught.value.reason is Reason.CONFLICT


async def test_another_control_knows_everything_and_goes_on(desk: Desk) -> None:
    seen: list[str] = []
    for _ in range(200):
        desk.world.rollouts.go_on()
        await desk.tick()
        before = desk.updates.views()
        await desk.again()
        assert desk.updates.views() == before
        phase = desk.newest()["phase"]
        if phase and (not seen or seen[-1] != phase):
            seen.append(phase)
        if phase == "recovered":
            break
    assert seen[-1] == "recovered"
    assert len(desk.world.ledger.of("release")) == 1
    assert len(desk.world.ledger.of("rollout")) == 1


async def test_a_database_that_fails_changes_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.exc import OperationalError

    async def broken(*_: Any) -> None:
        raise OperationalError("INSERT", {}, Exception("disk I/O error"))

    monkeypatch.setattr("gateway.store.updates.write", broken)
    with pytest.raises(OipError, match=r"updates cannot be read or written \(OperationalError\); try again"):
        await desk.updates.trigger("digits")
    assert desk.updates.views()["updates"] == []
    await desk.tick(20)
    monkeypatch.undo()
    await desk.until(lambda: desk.newest().get("id") == "u1")


async def test_only_so_many_are_remembered(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.control.updates.KEPT", 2)
    for _ in range(4):
        view = await desk.updates.trigger("digits")
        await desk.updates.cancel(view["id"])
    await desk.updates.trigger("digits")
    await desk.again()
    assert [view["id"] for view in desk.updates.views()["updates"]] == ["u5", "u4", "u3"]
    assert not (desk.folder / "updates" / "u1.log").exists()
