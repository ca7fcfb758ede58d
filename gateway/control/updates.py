"""Carries out updates: asks the machine of gateway.rollout.loop, writes down what it says, and does it.

An update's state is on disk before anything is done of it, and what is done may be done again, so whatever
moment control ends in, the next one reads the states and goes on. A training run or a measurement that was
under way is begun again; a release that it made is known by the update's id and not made twice, a rollout
by the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.control import update_sights
from gateway.control.gathering import gather_orders
from gateway.control.run_log import RunLogs
from gateway.control.update_ports import UpdatePorts
from gateway.control.update_runs import Runs
from gateway.control.update_views import sample_view, summary_of, view_of, watch_view
from gateway.control.update_work import Work
from gateway.control.watches import PREFIX, Watches
from gateway.core.config import Config
from gateway.core.config.updates import report_interval_s
from gateway.core.release import GatherOrder, Stage
from gateway.rollout.loop import begin, step
from gateway.rollout.loop_messages import (
    Abort,
    Cancel,
    Command,
    DriftSeen,
    Event,
    Judge,
    Measure,
    Progress,
    Resumed,
    Roll,
    RolloutSeen,
    Stop,
    Train,
)
from gateway.rollout.loop_state import Cause, Origin, Phase, Rules, Update, from_document, to_document
from gateway.store import updates as rows
from oip.errors import OipError
from oip.names import shown
from oip.reasons import Reason

logger = logging.getLogger(__name__)

WATCHED_WINDOWS = 10
"""How long the drift of a new version is waited for, in windows."""
GATHER_EVERY_S = 2.0
"""How often samples are counted while an update waits for them."""
KEPT = 200
"""So many updates that have ended are remembered."""


class Updates:
    """Every failure is an OipError; UNAVAILABLE where the database fails, and then nothing has changed.
    Call `resume_all` before anything else. For one loop."""

    def __init__(
        self,
        engine: AsyncEngine,
        config: Config,
        state_dir: Path,
        ports: UpdatePorts,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._config = config
        self._ports = ports
        self._wall = wall
        self._work = Work(config, ports)
        self.watches = Watches(engine, config.updates, ports.releases, ports.evidence, wall)
        self._logs = RunLogs(state_dir / "updates")
        self._states: dict[str, Update] = {}
        self._last = 0
        self._runs = Runs(self._logs, self._happened)
        self._gathered: dict[str, float] = {}
        self._untold = True
        self._turn = asyncio.Lock()

    async def resume_all(self) -> None:
        """Read what is on disk. What was begun and not ended goes on with the next `tick`."""
        try:
            async with self._engine.begin() as connection:
                stored = await rows.read(connection)
            watched = {row.model: row.document for row in stored if row.id == PREFIX + row.model}
            self.watches.take(watched)
            states = [from_document(row.document) for row in stored if not row.id.startswith(PREFIX)]
        except (SQLAlchemyError, ValueError, KeyError) as error:
            raise _unavailable(error) from None
        self._states = {state.id: state for state in sorted(states, key=lambda state: _number(state.id))}
        self._last = max((_number(id) for id in self._states), default=0)

    async def close(self) -> None:
        """Let go of what is under way; it is begun again by the next one."""
        await self._runs.close()

    async def tick(self) -> None:
        """Look around and go on; to be called each second. What cannot be done now is tried again by the next
        one."""
        async with self._turn:
            for model, cause in await self.watches.look(self._updating):
                if self._updates_itself(model):
                    try:
                        await self._begin(model, cause)
                    except OipError as error:
                        logger.warning("the drift of %s waits: %s", model, error.message)
            for id in [state.id for state in self._states.values() if state.open]:
                try:
                    await self._go_on(self._states[id])
                except OipError as error:
                    logger.warning("update %s waits: %s", id, error.message)
            await self._tell()

    async def trigger(self, model: str) -> dict[str, Any]:
        """Begin an update without drift; its view."""
        async with self._turn:
            return await self._update(model, Cause(Origin.OPERATOR))

    async def judge_pushed(self, model: str, version: str) -> dict[str, Any]:
        """Put a release that somebody made elsewhere through the same gate; its view. One that is being
        judged already answers the same."""
        async with self._turn:
            return await self._judge(model, version)

    async def cancel(self, id: str) -> dict[str, Any]:
        async with self._turn:
            state = self._find(id)
            if not state.open:
                raise OipError(Reason.CONFLICT, f"update {id} has ended: {state.outcome}")
            await self._happen(id, Cancel())
            await self._tell()
            return self.view(id)

    async def retry(self, id: str) -> dict[str, Any]:
        """Begin an ended update anew, for the same cause; the view of the new one."""
        async with self._turn:
            state = self._find(id)
            if state.open:
                raise OipError(Reason.CONFLICT, f"update {id} is under way: cancel it first")
            if state.cause.origin is Origin.PUSH:
                return await self._judge(state.model, state.version)
            return await self._update(state.model, state.cause)

    def views(self) -> dict[str, Any]:
        """`watches`: every model that is watched; `updates`: the newest first."""
        newest = sorted(self._states.values(), key=lambda state: -_number(state.id))
        watches = self.watches.all().items()
        return {
            "watches": [watch_view(self._work.configured(model), watch) for model, watch in watches],
            "updates": [summary_of(state) for state in newest],
        }

    def view(self, id: str) -> dict[str, Any]:
        """Raises OipError NOT_FOUND."""
        state = self._find(id)
        watch = self.watches.of(state.model)
        configured = self._work.configured(state.model)
        return {
            **view_of(state, self._runs.progress(id), self._logs.tail(id)),
            "watch": None if watch is None else watch_view(configured, watch),
        }

    async def samples(self, model: str) -> list[dict[str, Any]]:
        """What is known of each sample, but never what is in it."""
        self._known(model)
        told = await self._work.labels_of(model)
        return [sample_view(one, told) for one in await self._ports.samples.listed(model)]

    def trials(self) -> Mapping[str, tuple[tuple[str, str], ...]]:
        """What each device is to try, as model and version."""
        return update_sights.orders(list(self._states.values()))

    def gather(self) -> Mapping[str, GatherOrder]:
        """What is to be gathered of each model that is watched."""
        return gather_orders(self._config.updates, self._ports.releases)

    def report_ms(self) -> int:
        return round(report_interval_s(self._config.updates) * 1000)

    async def _update(self, model: str, cause: Cause) -> dict[str, Any]:
        """Begin what trains. Raises OipError where that cannot be now."""
        self._known(model)
        self._free(model)
        if not self._updates_itself(model):
            raise OipError(
                Reason.CONFLICT, f"the update of {shown(model)} has no trainer: add train to it in the file"
            )
        return self.view(await self._begin(model, cause))

    async def _judge(self, model: str, version: str) -> dict[str, Any]:
        """Begin what judges a pushed release, unless that is under way. Raises OipError where nothing is to
        be judged."""
        for state in self._states.values():
            if state.open and (state.model, state.version) == (model, version):
                return self.view(state.id)
        release = self._ports.releases.get(model, version)
        if release.stage is Stage.WITHDRAWN or self._ports.releases.standing().get(model) == version:
            what = "is withdrawn" if release.stage is Stage.WITHDRAWN else "stands already"
            raise OipError(Reason.CONFLICT, f"version {version} of {shown(model)} {what}")
        return self.view(await self._begin(model, Cause(Origin.PUSH), version))

    async def _begin(self, model: str, cause: Cause, version: str = "") -> str:
        state = begin(f"u{self._last + 1}", model, cause, self._wall(), version)
        await self._write(state)
        self._last += 1
        self._states[state.id] = state
        logger.info("update %s of %s began: %s", state.id, model, cause.origin)
        await self._forget_old()
        return state.id

    async def _go_on(self, state: Update) -> None:
        """Do what the phase wants, and tell the machine what is seen."""
        id, ports = state.id, self._ports
        if state.phase is Phase.GATHERING:
            if self._wall() - self._gathered.get(id, 0.0) >= GATHER_EVERY_S:
                self._gathered[id] = self._wall()
                self._runs.begin(id, state.phase, lambda: self._work.gather(state))
        elif state.phase is Phase.TRYING:
            release = ports.releases.get(state.model, state.version)
            devices = await ports.fleet()
            await self._happen(
                id, update_sights.fleet_seen(self._config, state, release, devices, ports.fits)
            )
        elif state.phase is Phase.ROLLING:
            seen = self._rollout_of(state)
            if seen.progress is not Progress.NONE:
                await self._happen(id, seen)
        elif state.phase is Phase.WATCHING:
            seen_drift = self.watches.seen(state.model, state.version)
            await self._happen(id, seen_drift or DriftSeen(None, False, "the first look at it is to come"))
        await self._carry_out(id, step(self._states[id], Resumed(), self._wall(), self._rules(state))[1])

    async def _happened(self, id: str, event: Event) -> None:
        """What work that ran beside came to."""
        async with self._turn:
            await self._happen(id, event)

    async def _happen(self, id: str, event: Event) -> None:
        """Take in an event: write, remember, do."""
        before = self._states[id]
        after, commands = step(before, event, self._wall(), self._rules(before))
        if after == before:
            return
        await self._write(after)
        self._states[id] = after
        if after.phase is not before.phase:
            logger.info("update %s of %s: %s. %s", id, after.model, after.phase.value, after.outcome)
            self._logs.add(id, f"== {after.phase.value} {after.outcome}".rstrip() + "\n")
        if after.trying != before.trying:
            self._untold = True
        await self._carry_out(id, commands)

    async def _carry_out(self, id: str, commands: tuple[Command, ...]) -> None:
        state = self._states[id]
        for command in commands:
            match command:
                case Train():
                    self._runs.begin(id, state.phase, lambda: self._work.train(state, self._runs.heard(id)))
                case Measure():
                    self._runs.begin(id, state.phase, lambda: self._work.measure(state, self._runs.heard(id)))
                case Judge():
                    await self._happen(id, await self._work.judge(state, await self._ports.fleet()))
                case Roll():
                    await self._roll(state)
                case Abort():
                    await self._abort(state)
                case Stop():
                    self._runs.stop(id)

    async def _roll(self, state: Update) -> None:
        seen = self._rollout_of(state)
        if seen.progress is Progress.NONE:
            try:
                rollout = await self._ports.rollouts.start(state.model, state.version, source=state.id)
                seen = RolloutSeen(rollout, Progress.OPEN, "")
            except OipError as error:
                seen = RolloutSeen("", Progress.NONE, error.message)
        await self._happen(state.id, seen)

    async def _abort(self, state: Update) -> None:
        seen = self._rollout_of(state)
        if seen.progress is Progress.OPEN:
            try:
                await self._ports.rollouts.abort(seen.id)
            except OipError as error:
                # It is past the point where it could be taken back, or is being taken back.
                if error.reason is not Reason.CONFLICT:
                    raise
            seen = self._rollout_of(state)
        await self._happen(state.id, seen)

    def _rollout_of(self, state: Update) -> RolloutSeen:
        releases, rollouts = self._ports.releases, self._ports.rollouts
        stands = releases.standing().get(state.model) == state.version
        release = releases.get(state.model, state.version)
        return update_sights.rollout_seen(state, rollouts.views(), release, stands)

    async def _tell(self) -> None:
        """Let the devices know what to try. A hub that is away reads everything when it is back."""
        if not self._untold:
            return
        try:
            await self._ports.changed()
            self._untold = False
        except OipError as error:
            logger.warning("the devices are not told yet: %s", error.message)

    async def _write(self, state: Update) -> None:
        row = rows.Row(state.id, state.model, state.open, self._wall(), to_document(state))
        try:
            async with self._engine.begin() as connection:
                await rows.write(connection, row)
        except SQLAlchemyError as error:
            raise _unavailable(error) from None

    async def _forget_old(self) -> None:
        ended = [id for id, state in self._states.items() if not state.open]
        for id in ended[:-KEPT]:
            try:
                async with self._engine.begin() as connection:
                    await rows.forget(connection, id)
            except SQLAlchemyError as error:
                logger.warning("an old update cannot be forgotten (%s)", type(error).__name__)
                return
            del self._states[id]
            self._gathered.pop(id, None)
            self._logs.forget(id)

    def _rules(self, state: Update) -> Rules:
        update = self._work.configured(state.model)
        waits_for = (
            0 if update.samples.collect == "none" or update.train is None else update.train.min_samples
        )
        return Rules(
            waits_for,
            update.rollout.device_timeout_s,
            WATCHED_WINDOWS * update.drift.window_s,
            update.train is not None,
        )

    def _updating(self, model: str, since: float) -> bool:
        """Whether an update of the model is under way, or was at any time since an instant."""
        mine = (s for s in self._states.values() if s.model == model and s.cause.origin is not Origin.PUSH)
        return any(state.open or state.times[-1][1] >= since for state in mine)

    def _updates_itself(self, model: str) -> bool:
        return self._work.configured(model).train is not None

    def _free(self, model: str) -> None:
        for state in self._states.values():
            if state.open and state.model == model and state.cause.origin is not Origin.PUSH:
                raise OipError(
                    Reason.CONFLICT,
                    f"update {state.id} of {shown(model)} is under way: wait for it, or cancel it",
                )

    def _known(self, model: str) -> None:
        if all(update.model != model for update in self._config.updates):
            raise OipError(
                Reason.NOT_FOUND, f"the running configuration has no update of a model {shown(model)}"
            )

    def _find(self, id: str) -> Update:
        if id not in self._states:
            raise OipError(Reason.NOT_FOUND, f"no update {shown(id)}: unknown, or too old")
        return self._states[id]


def _number(id: str) -> int:
    return int(id[1:])


def _unavailable(error: Exception) -> OipError:
    logger.error("the updates' table failed: %s", getattr(error, "orig", None) or error)
    text = f"updates cannot be read or written ({type(error).__name__}); try again"
    return OipError(Reason.UNAVAILABLE, text)
