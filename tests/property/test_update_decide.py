"""The plan for a device's models under any order of events, with jobs that end as they like."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.update import decide, events
from edge_agent.update.decide import LOADS, RESTORES, step
from edge_agent.update.plan import Phase, Plan, Slot, State, Target, kept, with_active

A = Target("m", "1", "sha256:" + "a" * 64, 10, "sha256:" + "e" * 64, 5, name="m/1/tflite")
B = Target("m", "2", "sha256:" + "b" * 64, 20, name="m/2/tflite")
C = Target("n", "1", "sha256:" + "c" * 64, 30, name="n/1/tflite")
D = Target("m", "3", "sha256:" + "d" * 64, 40, name="m/3/tflite")
TARGETS = (A, B, replace(A, batch_max_size=4), C, D)
NEVER = f"This model was loaded {LOADS} times on this device and never came to answer."
JOBS = (Phase.RESTORING, Phase.VERIFYING, Phase.FETCHING, Phase.TRYING)


class Device:
    """What the shell does with the commands, without doing it: at most one job a model. `disk` is what a
    restart finds, `killed` counts ends of the agent amid a load."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.disk = state
        self.jobs: dict[str, events.Command] = {}
        self.serving: dict[str, Target] = {}
        self.orders: dict[str, int] = {n: p.active.order for n, p in state.plans.items() if p.active}
        self.verified: set[Target] = set()
        self.tried: dict[str, Target] = {}
        self.committed: dict[str, set[Target]] = {
            n: {slot.target for slot in (p.active, p.previous) if slot} for n, p in state.plans.items()
        }
        self.blobs = set(kept(state))
        self.failed: set[tuple[Target, int]] = set()
        self.turn = {"m": 0, "n": 0}
        self.order = 0
        self.full = False

    def happen(self, event: events.Event) -> None:
        before = self.state
        self.state, commands = step(self.state, event)
        for command in commands:
            self.do(command)
        for model in self.turn:
            old, new = before.plans.get(model), self.state.plans.get(model)
            if (old and old.desired) != (new and new.desired):
                self.turn[model] += 1

    def do(self, command: events.Command) -> None:
        match command:
            case (
                events.Restore(target)
                | events.Verify(target)
                | events.Fetch(target)
                | events.Try(target)
                | events.Wait(target, _)
            ):
                assert target.model not in self.jobs, "two jobs for one model"
                if isinstance(command, events.Fetch | events.Try):
                    assert (target, self.turn[target.model]) not in self.failed, "tried in a loop"
                if isinstance(command, events.Fetch):
                    assert target in self.verified, "fetched unverified"
                if isinstance(command, events.Restore):
                    assert target in self.committed[target.model], "restored what never was active"
                self.jobs[target.model] = command
            case events.Cancel(model):
                self.jobs.pop(model, None)
                self.tried.pop(model, None)
            case events.Commit(target):
                assert self.tried[target.model] == target, "written down untried"
                assert target in self.verified, "written down unverified"
                if self.full:
                    self.happen(events.CommitFailed(target, "full"))
                else:
                    self.disk = with_active(self.state, target)
                    slot = self.disk.plans[target.model].active
                    assert slot is not None
                    active = self.state.plans[target.model].active
                    assert active is None or slot.order >= active.order, "a step back"
                    self.committed.setdefault(target.model, set()).add(target)
                    self.happen(events.Committed(target))
            case events.Swap(target):
                assert self.tried.pop(target.model) == target, "swapped untried"
                assert target in self.committed[target.model], "swapped without being written down"
                self.serving[target.model] = target
            case events.Discard(target):
                if self.tried.get(target.model) == target:
                    del self.tried[target.model]
            case events.Retire(model):
                self.serving.pop(model, None)
            case events.Save():
                if not self.full:
                    self.disk = self.state
            case events.Sweep():
                self.blobs &= kept(self.state)
                for target in self.serving.values():
                    assert target.digest in kept(self.state), "swept what serves"

    def finish(self, model: str, well: bool, again: bool) -> None:
        """The model's job ends, if one runs."""
        job = self.jobs.pop(model, None)
        match job:
            case events.Restore(target) if well:
                assert target.digest in self.blobs, "restored what was swept"
                self.tried[model] = target
                self.happen(events.Restored(target))
            case events.Restore(target):
                self.happen(events.RestoreFailed(target, "broken", damaged=again))
            case events.Verify(target) if well:
                # As verdict.order_of gives it: never below what is active.
                self.order += 1
                self.verified.add(target)
                self.happen(events.Verified(target, self.order))
            case events.Verify(target):
                self.happen(events.FetchFailed(target, "unsigned"))
            case events.Fetch(target) if well:
                self.blobs |= {digest for digest, _ in target.files}
                self.happen(events.Fetched(target))
            case events.Fetch(target):
                self.happen(events.FetchFailed(target, "gone", again=again))
                if not again:
                    self.failed.add((target, self.turn[model]))
            case events.Try(target) if well:
                assert target.digest in self.blobs, "tried what was swept"
                self.tried[model] = target
                self.happen(events.Tried(target))
            case events.Try(target):
                self.happen(events.TryFailed(target, "wrong"))
                self.failed.add((target, self.turn[model]))
            case events.Wait(target, seconds):
                assert 0 < seconds <= decide.LONGEST_RETRY_S
                self.happen(events.RetryDue(target))
            case _:
                pass

    def restarted(self) -> Device:
        """Another run of the agent on the same disk, before it has begun."""
        again = Device(
            State(
                {
                    n: Plan(
                        p.desired,
                        p.active,
                        p.previous,
                        proven=p.proven,
                        restores=p.restores,
                        attempts=p.attempts,
                        quarantine=p.quarantine,
                    )
                    for n, p in self.disk.plans.items()
                }
            )
        )
        again.blobs, again.full, again.order = self.blobs, self.full, self.order
        return again


moves = st.one_of(
    st.tuples(st.just("desire"), st.lists(st.sampled_from(TARGETS), max_size=3)),
    st.tuples(st.just("finish"), st.sampled_from("mn"), st.booleans(), st.booleans()),
    st.tuples(st.just("finish"), st.sampled_from("mn"), st.just(True), st.just(True)),
    st.tuples(st.just("fall"), st.sampled_from("mn")),
    st.tuples(st.just("prove"), st.sampled_from("mn")),
    st.tuples(st.just("full"), st.booleans()),
    st.tuples(st.just("restart"), st.booleans()),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(moves, max_size=60))
def test_the_invariants_hold_in_any_order(script: list[tuple]):
    device = Device(State())
    for move in script:
        match move:
            case ("desire", targets):
                device.happen(events.Desired(tuple(targets)))
                wanted = {target.model: target for target in targets}
                assert {n: p.desired for n, p in device.state.plans.items()} == wanted
                assert set(device.serving) <= set(wanted)
            case ("finish", model, well, again):
                device.finish(model, well, again)
            case ("fall", model) if model in device.serving:
                before = device.state.plans[model]
                device.happen(events.Fell(device.serving[model], "fell"))
                after = device.state.plans[model]
                if before.phase is not Phase.RESTORING and before.previous and not before.proven:
                    assert after.active == before.previous
                    assert isinstance(device.jobs[model], events.Restore)
                else:
                    assert after == before
            case ("prove", model) if model in device.serving:
                device.happen(events.Proven(device.serving[model]))
            case ("full", full):
                device.full = full
            case ("restart", orderly):
                if orderly:
                    device.happen(events.Stopping())
                device = device.restarted()
                device.happen(events.Started())
        assert device.tried == {}, "a worker left behind"
        for model, plan in device.state.plans.items():
            serving = device.serving.get(model)
            if plan.phase is not Phase.RESTORING:
                assert serving == (plan.active and plan.active.target)
            if plan.phase is Phase.SETTLED:
                assert serving == plan.desired
            if plan.quarantine and plan.phase is not Phase.RESTORING:
                assert plan.phase is Phase.FAILED
                assert model not in device.jobs
            assert plan.restores <= LOADS
            assert plan.attempts <= LOADS
            busy = plan.phase in JOBS
            assert (model in device.jobs) == (busy or (plan.phase is Phase.FAILED and plan.tries > 0))


@given(st.lists(st.booleans(), max_size=12))
def test_with_jobs_that_end_well_what_is_desired_comes_to_serve(wobbles: list[bool]):
    device = Device(State())
    device.happen(events.Desired((A, C)))
    for well in wobbles:
        device.finish("m", well or isinstance(device.jobs.get("m"), events.Try), again=True)
    for _ in range(8):
        device.finish("m", well=True, again=True)
        device.finish("n", well=True, again=True)
    assert device.serving == {"m": A, "n": C}
    assert device.blobs == {A.digest, A.golden_digest, C.digest}


def run(device: Device, *targets: Target) -> None:
    """What is desired comes to serve."""
    device.happen(events.Desired(targets))
    while device.jobs:
        for target in targets:
            device.finish(target.model, well=True, again=True)


def updated() -> Device:
    """B serves, and A served before."""
    device = Device(State())
    run(device, A)
    run(device, B)
    assert device.serving == {"m": B}
    assert device.state.plans["m"].previous == Slot(A, 1)
    assert device.blobs == {A.digest, A.golden_digest, B.digest}
    return device


def test_what_failed_is_tried_once_more_after_another_was_desired():
    device = Device(State())
    device.happen(events.Desired((A,)))
    for well in (True, True, False):
        device.finish("m", well=well, again=True)
    device.happen(events.Desired((A,)))
    assert device.jobs == {}
    device.happen(events.Desired((B,)))
    device.happen(events.Desired((A,)))
    assert device.jobs == {"m": events.Verify(A)}


def test_a_new_model_that_falls_gives_way_to_the_one_before_and_is_not_tried_again():
    device = updated()
    device.happen(events.Fell(B, "it fell"))
    device.finish("m", well=True, again=True)
    plan = device.state.plans["m"]
    assert device.serving == {"m": A}
    assert (plan.phase, plan.reason, plan.active, plan.previous) == (
        Phase.FAILED,
        "it fell",
        Slot(A, 1),
        None,
    )
    for _ in range(3):
        device.happen(events.Desired((replace(B, batch_max_size=2),)))
        device.happen(events.Desired((B,)))
        assert device.jobs == {}
        device = device.restarted()
        device.happen(events.Started())
        device.finish("m", well=True, again=True)
        assert device.serving == {"m": A}
        assert device.state.plans["m"].reason == "it fell"
    run(device, A)
    run(device, B)
    assert device.serving == {"m": B}


def test_one_that_is_proven_does_not_give_way():
    device = updated()
    device.happen(events.Proven(B))
    device.happen(events.Fell(B, "it fell"))
    assert device.jobs == {}
    device = device.restarted()
    device.happen(events.Started())
    device.finish("m", well=True, again=True)
    device.happen(events.Fell(B, "it fell"))
    assert device.serving == {"m": B}


def test_when_the_one_before_is_bad_too_nothing_serves_and_nothing_alternates():
    device = updated()
    device.happen(events.Fell(B, "it fell"))
    for _ in range(RESTORES):
        device.finish("m", well=False, again=False)
    assert device.serving == {}
    assert device.jobs == {}
    plan = device.state.plans["m"]
    assert (plan.phase, plan.reason) == (
        Phase.FAILED,
        "it fell What served before does not work either: broken",
    )
    device.happen(events.Desired((B,)))
    assert device.jobs == {}


def test_a_model_that_ends_the_agent_as_it_loads_gives_way():
    device = updated()
    for _ in range(LOADS):
        device = device.restarted()
        device.happen(events.Started())
        assert device.jobs == {"m": events.Restore(B)}
    device = device.restarted()
    device.happen(events.Started())
    assert device.jobs == {"m": events.Restore(A)}
    device.finish("m", well=True, again=True)
    assert device.serving == {"m": A}
    assert device.state.plans["m"].reason == NEVER


def test_a_model_that_ends_the_agent_as_it_is_tried_is_given_up():
    device = Device(State())
    run(device, A)
    for _ in range(LOADS):
        device.happen(events.Desired((B,)))
        for _ in range(2):
            device.finish("m", well=True, again=True)
        assert device.jobs == {"m": events.Try(B)}
        device = device.restarted()
        device.happen(events.Started())
        device.finish("m", well=True, again=True)
    for _ in range(2):
        device.finish("m", well=True, again=True)
    assert device.jobs == {}
    assert device.serving == {"m": A}
    assert device.state.plans["m"].reason == NEVER


def test_an_orderly_end_amid_a_load_blames_nobody():
    device = updated()
    for _ in range(2 * LOADS):
        device = device.restarted()
        device.happen(events.Started())
        assert device.jobs == {"m": events.Restore(B)}
        device.happen(events.Stopping())


def test_a_damaged_file_is_fetched_anew_while_the_one_before_serves():
    device = updated().restarted()
    device.happen(events.Started())
    device.finish("m", well=False, again=True)
    assert device.jobs == {"m": events.Restore(A)}
    device.finish("m", well=True, again=True)
    assert device.serving == {"m": A}
    while device.jobs:
        device.finish("m", well=True, again=True)
    assert device.serving == {"m": B}
    assert device.state.plans["m"].previous == Slot(A, 1)


def test_a_return_that_was_ordered_leaves_nothing_to_go_back_to():
    device = updated()
    run(device, A)
    plan = device.state.plans["m"]
    assert (plan.active, plan.previous) == (Slot(A, 3), None)
    assert device.blobs == {A.digest, A.golden_digest}


def test_another_batch_of_the_same_file_keeps_the_one_before():
    device = updated()
    run(device, replace(B, batch_max_size=4))
    assert device.state.plans["m"].previous == Slot(A, 1)


@pytest.mark.parametrize("tries", [0, 3, 30])
@pytest.mark.parametrize("phase", [Phase.VERIFYING, Phase.FETCHING])
def test_what_fails_again_waits_longer(tries: int, phase: Phase):
    state = State({"m": Plan(A, phase=phase, tries=tries)})
    after, commands = step(state, events.FetchFailed(A, "gone"))
    assert commands == (events.Wait(A, min(600.0, 2.0 * 2**tries)),)
    _, commands = step(after, events.RetryDue(A))
    assert commands == (events.Verify(A),)


def test_without_a_hub_it_waits_for_one():
    state, commands = step(State({"m": Plan(A)}), events.FetchFailed(A, "no hub", no_hub=True))
    assert commands == ()
    _, commands = step(state, events.Desired((A,)))
    assert events.Verify(A) in commands
