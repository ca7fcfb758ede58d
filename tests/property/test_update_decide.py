"""The plan for a device's models under any order of events, with jobs that end as they like."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.update import decide
from edge_agent.update.decide import Phase, Plan, State, Target, kept, step

A = Target("m", "1", "sha256:" + "a" * 64, 10, "sha256:" + "e" * 64, 5)
B = Target("m", "2", "sha256:" + "b" * 64, 20)
C = Target("n", "1", "sha256:" + "c" * 64, 30)
TARGETS = (A, B, replace(A, batch_max_size=4), C)
JOBS = (decide.Restore, decide.Fetch, decide.Try, decide.Wait)


class Device:
    """What the shell does with the commands, without doing it: at most one job a model."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.disk = state
        self.jobs: dict[str, decide.Command] = {}
        self.serving: dict[str, Target] = {}
        self.tried: dict[str, Target] = {}
        self.blobs = set(kept(state))
        self.failed: set[tuple[Target, int]] = set()
        self.turn = {"m": 0, "n": 0}
        self.full = False

    def happen(self, event: decide.Event) -> None:
        before = self.state
        self.state, commands = step(self.state, event)
        for command in commands:
            self.do(command)
        for model in self.turn:
            old, new = before.plans.get(model), self.state.plans.get(model)
            if (old and old.desired) != (new and new.desired):
                self.turn[model] += 1

    def do(self, command: decide.Command) -> None:
        match command:
            case decide.Restore(target) | decide.Fetch(target) | decide.Try(target) | decide.Wait(target, _):
                assert target.model not in self.jobs, "two jobs for one model"
                if isinstance(command, decide.Fetch | decide.Try):
                    assert (target, self.turn[target.model]) not in self.failed, "tried in a loop"
                self.jobs[target.model] = command
            case decide.Cancel(model):
                self.jobs.pop(model, None)
                self.tried.pop(model, None)
            case decide.Commit(target):
                assert self.tried[target.model] == target, "written down untried"
                if self.full:
                    self.happen(decide.CommitFailed(target, "full"))
                else:
                    self.disk = decide.with_active(self.state, target)
                    self.happen(decide.Committed(target))
            case decide.Swap(target):
                assert self.tried.pop(target.model) == target, "swapped untried"
                written = self.disk.plans[target.model].active
                assert written == target, "swapped without being written down"
                self.serving[target.model] = target
            case decide.Discard(target):
                if self.tried.get(target.model) == target:
                    del self.tried[target.model]
            case decide.Retire(model):
                self.serving.pop(model, None)
            case decide.Save():
                self.disk = self.state
            case decide.Sweep(keep):
                self.blobs &= keep
                for target in self.serving.values():
                    assert target.digest in keep, "swept what serves"

    def finish(self, model: str, well: bool, again: bool) -> None:
        """The model's job ends, if one runs."""
        job = self.jobs.pop(model, None)
        match job:
            case decide.Restore(target) if well:
                self.tried[model] = target
                self.happen(decide.Restored(target))
            case decide.Restore(target):
                self.happen(decide.RestoreFailed(target, "broken", damaged=again))
            case decide.Fetch(target) if well:
                self.blobs |= {target.digest, target.golden_digest} - {""}
                self.happen(decide.Fetched(target))
            case decide.Fetch(target):
                self.happen(decide.FetchFailed(target, "gone", again=again))
                if not again:
                    self.failed.add((target, self.turn[model]))
            case decide.Try(target) if well:
                assert target.digest in self.blobs, "tried what was swept"
                self.tried[model] = target
                self.happen(decide.Tried(target))
            case decide.Try(target):
                self.happen(decide.TryFailed(target, "wrong"))
                self.failed.add((target, self.turn[model]))
            case decide.Wait(target, seconds):
                assert 0 < seconds <= decide.LONGEST_RETRY_S
                self.happen(decide.RetryDue(target))
            case _:
                pass


moves = st.one_of(
    st.tuples(st.just("desire"), st.lists(st.sampled_from(TARGETS), max_size=3)),
    st.tuples(st.just("finish"), st.sampled_from("mn"), st.booleans(), st.booleans()),
    st.tuples(st.just("full"), st.booleans()),
    st.tuples(st.just("restart")),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(moves, max_size=40))
def test_the_invariants_hold_in_any_order(script: list[tuple]):
    device = Device(State())
    for move in script:
        match move:
            case ("desire", targets):
                device.happen(decide.Desired(tuple(targets)))
                wanted = {target.model: target for target in targets}
                assert {n: p.desired for n, p in device.state.plans.items()} == wanted
                assert set(device.serving) <= set(wanted)
            case ("finish", model, well, again):
                device.finish(model, well, again)
            case ("full", full):
                device.full = full
            case ("restart",):
                blobs, full = device.blobs, device.full
                device = Device(State({n: Plan(p.desired, p.active) for n, p in device.disk.plans.items()}))
                device.blobs, device.full = blobs, full
                device.happen(decide.Started())
        assert device.tried == {}, "a worker left behind"
        for model, plan in device.state.plans.items():
            serving = device.serving.get(model)
            if plan.phase is not Phase.RESTORING:
                assert serving == plan.active
            if plan.phase is Phase.SETTLED:
                assert serving == plan.desired
            busy = plan.phase in (Phase.RESTORING, Phase.FETCHING, Phase.TRYING)
            assert (model in device.jobs) == (busy or (plan.phase is Phase.FAILED and plan.tries > 0))


@given(st.lists(st.booleans(), max_size=12))
def test_with_jobs_that_end_well_what_is_desired_comes_to_serve(wobbles: list[bool]):
    device = Device(State())
    device.happen(decide.Desired((A, C)))
    for well in wobbles:
        device.finish("m", well or isinstance(device.jobs.get("m"), decide.Try), again=True)
    for _ in range(6):
        device.finish("m", well=True, again=True)
        device.finish("n", well=True, again=True)
    assert device.serving == {"m": A, "n": C}
    assert device.blobs == {A.digest, A.golden_digest, C.digest}


def test_what_failed_is_tried_once_more_after_another_was_desired():
    device = Device(State())
    device.happen(decide.Desired((A,)))
    device.finish("m", well=True, again=True)
    device.finish("m", well=False, again=True)
    device.happen(decide.Desired((A,)))
    assert device.jobs == {}
    device.happen(decide.Desired((B,)))
    device.happen(decide.Desired((A,)))
    assert device.jobs == {"m": decide.Fetch(A)}


@pytest.mark.parametrize("tries", [0, 3, 30])
def test_a_fetch_that_fails_again_waits_longer(tries: int):
    state = State({"m": Plan(A, tries=tries)})
    _, commands = step(state, decide.FetchFailed(A, "gone"))
    assert commands == (decide.Wait(A, min(600.0, 2.0 * 2**tries)),)


def test_without_a_hub_it_waits_for_one():
    state, commands = step(State({"m": Plan(A)}), decide.FetchFailed(A, "no hub", no_hub=True))
    assert commands == ()
    _, commands = step(state, decide.Desired((A,)))
    assert decide.Fetch(A) in commands
