"""Carries out rollouts: looks around, asks the machine, writes down what it says, and does it.

A rollout's state is on disk before anything is done of it. What is done may be done again, so whatever
moment control ends in, the next one reads the states and goes on.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, delete, insert, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from edgewire.signals import CONFIDENCE
from gateway.control.ports import Outside
from gateway.control.sights import Sights
from gateway.core.fleet import DeviceReport
from gateway.core.release import Release, Stage
from gateway.rollout.halting import figures_of
from gateway.rollout.machine import begin, has_followed, moved, step
from gateway.rollout.messages import (
    Abort,
    Announce,
    Command,
    Event,
    Fleet,
    Follow,
    Followed,
    Move,
    MoveBack,
    NotNow,
    Order,
    Ordered,
    Pause,
    Resume,
    Seen,
    Stand,
    Stood,
    Withdraw,
    Withdrawn,
)
from gateway.rollout.state import RUNNING, State, from_document, to_document
from gateway.rollout.turning import outstanding
from gateway.rollout.view import view_of
from gateway.store.tables import rollouts
from oip.errors import OipError
from oip.names import shown
from oip.reasons import Reason

logger = logging.getLogger(__name__)

OPERATOR = "operator"
BEFORE_S = 3600.0
"""How much of the time before a rollout is looked at for how the old version did."""
WRITE_EVERY_S = 10.0
"""What was seen, where nothing came of it."""
KEPT = 100
"""So many rollouts that have ended are remembered."""


class Rollouts:
    """Every failure is an OipError; UNAVAILABLE where the database fails, and then nothing has changed.
    Call `resume_all` before anything else. For one loop."""

    def __init__(
        self,
        engine: AsyncEngine,
        outside: Outside,
        wall: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: f"ro-{secrets.token_hex(5)}",
    ) -> None:
        self._engine = engine
        self._outside = outside
        self._wall = wall
        self._new_id = new_id
        self._open: dict[str, State] = {}
        self._ended: dict[str, dict[str, Any]] = {}
        self._written: dict[str, float] = {}
        self._sights: dict[str, Sights] = {}
        self._trouble: dict[str, str] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._untold = False
        self._turn = asyncio.Lock()

    async def resume_all(self) -> None:
        """Read what is on disk. What was begun and not ended goes on with the next `tick`."""
        newest = rollouts.c.changed_at.desc()
        try:
            async with self._engine.begin() as connection:
                going = await connection.execute(select(rollouts.c.document).where(rollouts.c.open))
                ended = select(rollouts.c.document).where(~rollouts.c.open).order_by(newest).limit(KEPT)
                states = [from_document(row.document) for row in going]
                past = [from_document(row.document) for row in await connection.execute(ended)]
        except (SQLAlchemyError, ValueError) as error:
            raise _unavailable(error) from None
        self._open = {state.id: state for state in states}
        self._ended = {state.id: view_of(state) for state in reversed(past)}
        self._untold = bool(states)

    async def close(self) -> None:
        """Let go of what is under way; it is begun again by the next one."""
        tasks = list(self._following.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def start(self, model: str, version: str, *, force: bool = False, source: str = OPERATOR) -> str:
        """Begin a rollout of a release that passed its gate, or by `force` of one that did not; its id.
        Asked again by the same source (other than operators), it answers the same."""
        async with self._turn:
            if source != OPERATOR and (known := self._of_source(model, version, source)):
                return known
            release = self._outside.releases.get(model, version)
            old = self._outside.releases.standing().get(model, "")
            self._may_start(release, old, force)
            fleet = Sights(self._outside.fits).of(release, await self._outside.fleet())
            self._has_takers(release, fleet)
            if release.stage is Stage.CANDIDATE:
                await self._outside.releases.judged(model, version, passed=False)
            state, commands = begin(
                self._new_id(), model, old, version, self._outside.plan_of(model), fleet, self._wall(),
                source=source, forced=release.stage is not Stage.PASSED,
            )  # fmt: skip
            await self._write(state)
            self._open[state.id] = state
            await self._carry_out(state.id, commands)
            return state.id

    async def pause(self, id: str) -> dict[str, Any]:
        """Move nobody until `resume`; what has moved is watched on. Answers the view, as the others do."""
        return await self._tell(id, Pause())

    async def resume(self, id: str) -> dict[str, Any]:
        return await self._tell(id, Resume())

    async def abort(self, id: str) -> dict[str, Any]:
        """Move everything back; the release is withdrawn."""
        return await self._tell(id, Abort())

    def views(self) -> list[dict[str, Any]]:
        """Every rollout as `gateway.rollout.view` tells it, the newest first."""
        found = [*self._ended.values(), *(self.view(id) for id in self._open)]
        return sorted(found, key=lambda view: view["began_at"], reverse=True)

    def view(self, id: str) -> dict[str, Any]:
        if id in self._open:
            view, trouble = view_of(self._open[id]), self._trouble.get(id)
            return view if trouble is None else {**view, "waits_for": trouble}
        if id in self._ended:
            return self._ended[id]
        raise OipError(Reason.NOT_FOUND, f"no rollout {shown(id)}: unknown, or too old")

    def moved(self) -> Mapping[str, Mapping[str, str]]:
        """By model: device -> the version that it is told instead of the one that stands."""
        return {state.model: moved(state) for state in self._open.values()}

    def followed(self) -> Mapping[str, str]:
        """By model: the version that its followers were asked for, where that is not the one that stands."""
        return {state.model: state.new for state in self._open.values() if has_followed(state)}

    async def tick(self) -> None:
        """Look around and go on; to be called each second. What cannot be done now is tried again by the
        next one."""
        async with self._turn:
            if self._untold:
                await self._spread()
            try:
                devices = await self._outside.fleet() if self._open else ()
            except OipError as error:
                for id in self._open:
                    self._waits(id, error.message)
                return
            for id in list(self._open):
                trouble = self._trouble.pop(id, None)
                await self._carry_out(id, outstanding(self._open[id]))
                try:
                    if id in self._open:
                        await self._happen(id, await self._look(self._open[id], devices))
                except OipError as error:
                    self._waits(id, error.message)
                if self._trouble.get(id) != trouble:
                    logger.warning("rollout %s: %s", id, self._trouble.get(id, "goes on"))

    async def _look(self, state: State, devices: Sequence[DeviceReport]) -> Seen:
        releases, evidence = self._outside.releases, self._outside.evidence
        release = releases.get(state.model, state.new)
        sights = self._sights.setdefault(state.id, Sights(self._outside.fits))
        fleet = sights.of(release, devices)
        if state.phase not in RUNNING:
            return Seen(fleet)
        now, since = self._wall(), state.wave_began
        new = figures_of(await evidence(state.model, state.new, since, now), release.edges(CONFIDENCE))
        if not state.old:
            return Seen(fleet, new)
        edges = releases.get(state.model, state.old).edges(CONFIDENCE)
        old = await evidence(state.model, state.old, since, now)
        before = await evidence(state.model, state.old, state.began - BEFORE_S, state.began)
        return Seen(fleet, new, figures_of(old, edges), figures_of(before, edges))

    async def _tell(self, id: str, event: Pause | Resume | Abort) -> dict[str, Any]:
        async with self._turn:
            view = self.view(id)
            if id not in self._open:
                raise OipError(Reason.CONFLICT, f"the rollout has ended: {view['outcome']}")
            try:
                await self._happen(id, event)
            except NotNow as error:
                raise OipError(Reason.CONFLICT, str(error)) from None
            return self.view(id)

    async def _happen(self, id: str, event: Event) -> None:
        before, now = self._open[id], self._wall()
        after, commands = step(before, event, now)
        if (
            commands
            or replace(after, look=before.look) != before
            or now - self._written.get(id, 0.0) >= WRITE_EVERY_S
        ):
            await self._write(after)
        self._open[id] = after
        if not after.open:
            del self._open[id]
            self._ended[id] = view_of(after)
            for old in list(self._ended)[:-KEPT]:
                del self._ended[old]
            self._trouble.pop(id, None)
            self._written.pop(id, None)
            self._sights.pop(id, None)
            self._untold = True
        await self._carry_out(id, commands)

    async def _carry_out(self, id: str, commands: Sequence[Command]) -> None:
        """Stops at the first that cannot be done now: `outstanding` tells it again."""
        try:
            for command in commands:
                await self._do(id, command)
        except OipError as error:
            self._waits(id, error.message)
        if self._untold:
            await self._spread()

    async def _do(self, id: str, command: Command) -> None:
        releases = self._outside.releases
        match command:
            case Announce(text):
                logger.info("rollout %s: %s", id, text)
            case Move() | MoveBack():
                self._untold = True
            case Follow(version):
                self._begin_to_follow(id, version)
            case Order(version):
                await releases.order_back(self._open[id].model, version)
                await self._done(id, Ordered(version))
            case Withdraw(version):
                await releases.withdraw(self._open[id].model, version)
                await self._done(id, Withdrawn())
            case Stand(version):
                await releases.stand(self._open[id].model, version)
                await self._done(id, Stood())

    async def _done(self, id: str, answer: Ordered | Withdrawn | Stood) -> None:
        """What devices are told differs by it."""
        self._untold = True
        await self._happen(id, answer)

    def _begin_to_follow(self, id: str, version: str) -> None:
        """One at a time: what is under way for another version ends first."""
        if id not in self._following:
            follow = self._follow(id, self._open[id].model, version)
            self._following[id] = asyncio.create_task(follow, name=f"follow {id}")

    async def _follow(self, id: str, model: str, version: str) -> None:
        try:
            try:
                outcomes = await self._outside.follow(model, version)
            except OipError as error:
                outcomes = {"followers": error.message}
            async with self._turn:
                if id in self._open:
                    await self._happen(id, Followed(version, outcomes))
        except OipError as error:
            self._waits(id, error.message)
        finally:
            del self._following[id]

    async def _spread(self) -> None:
        """Let the devices know. A hub that is away reads everything when it is back."""
        try:
            await self._outside.changed()
            self._untold = False
        except OipError as error:
            logger.debug("the devices are not told yet: %s", error.message)

    def _waits(self, id: str, why: str) -> None:
        """Told with the rollout's view until the next look that goes well."""
        self._trouble[id] = why

    async def _write(self, state: State) -> None:
        row = {
            "id": state.id,
            "model": state.model,
            "open": state.open,
            "changed_at": state.look.at,
            "document": to_document(state),
        }
        try:
            async with self._engine.begin() as connection:
                await connection.execute(delete(rollouts).where(rollouts.c.id == state.id))
                await connection.execute(insert(rollouts).values(row))
                if not state.open:
                    await connection.execute(delete(rollouts).where(_is_too_old()))
        except SQLAlchemyError as error:
            raise _unavailable(error) from None
        self._written[state.id] = state.look.at

    def _of_source(self, model: str, version: str, source: str) -> str | None:
        wanted = (model, version, source)
        return next(
            (v["id"] for v in self.views() if (v["model"], v["to"], v["source"]) == wanted),
            None,
        )

    def _may_start(self, release: Release, old: str, force: bool) -> None:
        """Raises OipError where it may not."""
        model, what = release.model, f"version {release.version} of {release.model}"
        other = next((state for state in self._open.values() if state.model == model), None)
        if other is not None:
            raise OipError(
                Reason.CONFLICT,
                f"rollout {other.id} of {model} to version {other.new} is under way: wait for it, or abort it",
            )
        if old == release.version:
            raise OipError(Reason.CONFLICT, f"{what} stands already")
        if release.stage is Stage.WITHDRAWN:
            raise OipError(Reason.CONFLICT, f"{what} was rolled back: release its files as a new version")
        if release.stage is not Stage.PASSED and not force:
            raise OipError(Reason.CONFLICT, f"{what} {_gate(release)}; only by force is it rolled out")

    def _has_takers(self, release: Release, fleet: Fleet) -> None:
        """Raises OipError where nothing can take the release."""
        followers = self._outside.followers(release)
        if any(not sight.unfit for sight in fleet.values()) or "" in followers.values():
            return
        whys = [f"{name}: {sight.unfit}" for name, sight in sorted(fleet.items())]
        whys += [f"{name}: {why}" for name, why in sorted(followers.items())]
        more = f"; and {len(whys) - 3} more" if len(whys) > 3 else ""
        why = "; ".join(whys[:3]) + more if whys else "no device is in its groups and no endpoint follows it"
        raise OipError(
            Reason.CONFLICT, f"nothing can take version {release.version} of {release.model}: {why}"
        )


def _is_too_old() -> ColumnElement[bool]:
    newest = select(rollouts.c.id).where(~rollouts.c.open).order_by(rollouts.c.changed_at.desc()).limit(KEPT)
    return ~rollouts.c.open & rollouts.c.id.not_in(newest)


def _gate(release: Release) -> str:
    figures = ", ".join(f"{name} {value:.4g}" for name, value in sorted(release.metrics.items())[:6])
    word = "was refused by its gate" if release.stage is Stage.REFUSED else "has not passed a gate"
    return f"{word} ({figures})" if figures else word


def _unavailable(error: Exception) -> OipError:
    logger.error("the rollouts' table failed: %s", getattr(error, "orig", None) or error)
    text = f"rollouts cannot be read or written ({type(error).__name__}); try again"
    return OipError(Reason.UNAVAILABLE, text)
