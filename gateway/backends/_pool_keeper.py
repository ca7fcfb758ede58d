"""One pool on Ray Serve, kept as it is to be: deployed, started again, and moved to other releases.

A pool is moved by deploying it again with settings that name the new file: Serve replaces the replicas one
after the other, and each finishes what it has. Where there is room for it, one more is started first, so that no
request waits for a replica. Before that the new file is opened elsewhere; one that cannot be opened, takes or
gives something else, or fails on its golden vectors changes nothing. Where its replicas do not start, the pool is deployed as
it was.

Of several data plane replicas one leads: it alone deploys and moves the pool. The others read from disk what it
serves, and accept that beside what they accepted before, for longer than a move takes to begin. When the one that
leads has ended, another one goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from gateway.backends._pool_models import Pause, PoolModels
from gateway.core.release import Release
from gateway.policy.signature import changed
from gateway.pool.config import PoolConfig
from gateway.pool.kept import Kept
from gateway.pool.settings import DEPLOYMENT, Key, app_name
from gateway.pool.status import PoolStatus, read_status
from gateway.store.turns import Lead

logger = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_S = 1.0
"""How often the pool is looked at."""
MOVING_LOOK_S = 0.2
CLOSE_S = 2.0
"""How long the end of a closed handle is waited for."""
ROOM_S = 30.0
"""How long one replica more may take to start before a move does without."""
ASK_S = 5.0
BOTH_S = 30.0
"""How long a replica that does not lead accepts what was served before, at least."""
MOVE_S = 300.0
"""How long the replicas of a move may take to be replaced."""


class PoolKeeper:
    """Keeps one pool, with those in other replicas that have the folder `shared` too. Everything runs on the
    loop of `start`."""

    def __init__(
        self, config: PoolConfig, state_dir: Path, models: PoolModels, shared: Path | None = None
    ) -> None:
        self._config = config
        self._models = models
        self._kept = Kept(state_dir, config.name)
        self._lead = Lead(shared, f"pool-{config.name}")
        self._leads = False
        self._seen: object = None
        """What was served when it was read last, by a replica that does not lead."""
        self._both_until = 0.0
        self._restart = Pause()
        self._attempt = 0
        self._turn = asyncio.Lock()
        """Held by what changes the deployment."""
        self._begun = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._deployed: tuple[PoolConfig, str] | None = None
        """The replicas that were asked for last, and the settings' fingerprint."""
        # Serve's client blocks; on a thread of its own it holds up nothing else when Serve is gone.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"pool-{config.name}")
        self.moving = False
        """Whether replicas are being replaced, and may all be gone for a moment."""
        self.handle: Any = None
        self.status = PoolStatus(deployed=False)
        self.looked = asyncio.Event()
        self.looked_at: float | None = None
        """When the pool's status was last had."""
        self.starting_since: float | None = None
        """Since when replicas start and none runs."""

    @property
    def settling(self) -> bool:
        """Whether replicas of two kinds may run; of another one's moves one hears late."""
        return self.moving or not self.status.settled or not self._leads

    def start(self) -> None:
        """Begin to deploy the pool and to look at it and its files."""
        self._task = asyncio.create_task(self._keep(), name=f"keep {self._config.name}")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        handle, self.handle = self.handle, None
        if handle is not None:
            # Its router would go on telling Serve of its load for as long as this process lives.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_S):
                    await handle.shutdown_async()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._lead.leave()

    async def follow(self, model: str, release: Release, content: bytes, golden: bytes | None) -> str:
        """See `Follower`."""
        if not self._models.follows(model):
            return f"no variant of {model} on it follows releases"
        await self._begun.wait()
        async with self._turn:
            self.moving = True
            try:
                if not self._leads:
                    await self._catch_up()
                    return ""
                return await self._follow((model, ""), release.version, content, golden)
            except OSError as error:
                return f"its file cannot be kept ({error.strerror or type(error).__name__})"
            except Exception as error:  # Ray raises what it likes when it is gone; the next call goes on
                return f"Ray Serve cannot be asked ({type(error).__name__})"
            finally:
                self.moving = False

    async def _follow(self, key: Key, version: str, content: bytes, golden: bytes | None) -> str:
        from gateway.pool.inspection import inspect

        path, digest = await asyncio.to_thread(self._kept.file, content)
        now = self._models.variant(key)
        new = replace(now, version=version, artifact=str(path), digest=digest)
        if (now.version, now.digest) == (version, digest):
            if now != new:
                # What runs is the same; what is started from now on reads the kept file.
                self._models.settings = self._models.settings.with_variant(new)
            await asyncio.to_thread(self._kept.serve, new)
            if now != new or not self._is_deployed:
                await self._deploy(self._config)
            return await self._finish(key)
        found = await inspect(self._models.settings, new, golden)
        if found.failure or found.signature is None:
            return f"it cannot be served: {found.failure}"
        known = self._models.known_signature(key)
        differs = None if known is None else changed(known, found.signature)
        if differs is not None:
            return f"it is not the same model: {differs}"
        room = await self._make_room()
        await asyncio.to_thread(self._kept.serve, new)
        self._models.move(new, found)
        await self._deploy(room)
        return await self._finish(key)

    async def _finish(self, key: Key) -> str:
        """Wait until a move has ended. Where it fails, what was before is deployed again."""
        fault = await self._replaced(key)
        if fault and (before := self._models.move_back(key)) is not None:
            await asyncio.to_thread(self._kept.serve, before)
        if not self._is_deployed:
            await self._deploy(self._config)
        return fault

    @property
    def _is_deployed(self) -> bool:
        return self._deployed == (self._config, self._models.settings.fingerprint)

    async def _make_room(self) -> PoolConfig:
        """The pool with one replica more than run, once that runs too; as it is where none runs, or there is
        no room for one."""
        running = (await self._read()).running
        if not running:
            return self._config
        most = max(running + 1, self._config.replicas.max)
        replicas = self._config.replicas.model_copy(update={"min": running + 1, "max": most})
        room = self._config.model_copy(update={"replicas": replicas})
        await self._deploy(room)
        until = time.monotonic() + ROOM_S
        while (await self._read()).running <= running:
            if time.monotonic() > until:
                return self._config
            await asyncio.sleep(MOVING_LOOK_S)
        return room

    async def _replaced(self, key: Key) -> str:
        """Wait until nothing but what was deployed last runs; "", or why that does not come about."""
        until = time.monotonic() + MOVE_S
        status = await self._read()
        while not status.settled:
            if status.failed:
                return f"its replicas do not start: {status.reason or 'Ray Serve gave up'}"
            if time.monotonic() > until:
                return f"its replicas were not replaced within {MOVE_S:.0f} s"
            await asyncio.sleep(MOVING_LOOK_S)
            status = await self._read()
        fault = await self._fault(key) if status.running else ""
        if fault:
            return f"a replica cannot run it: {fault}"
        self._models.moved()
        await asyncio.to_thread(self._kept.sweep, self._models.settings.variants)
        return ""

    async def _fault(self, key: Key) -> str:
        """A replica's word on a model. One that cannot be asked just then is no fault of the model's."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(ASK_S):
                return await self.handle.fault.remote(key)
        return ""

    async def _keep(self) -> None:
        while not self._begun.is_set():
            try:
                served = await asyncio.to_thread(self._kept.served, self._models.settings)
                self._models.settings = served
                self._seen = self._kept.change_token
                self._attempt = self._kept.attempt(served.fingerprint)
                self._leads = self._lead.held()
                if self._leads:
                    await self._deploy(self._config)
                self._begun.set()
            except Exception as error:
                logger.debug("pool %s: %s", self._config.name, type(error).__name__)
                await asyncio.sleep(LOOK_S)
        await asyncio.gather(*map(self._again, (self._look, self._inspect, self._go_along)))

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it every LOOK_S. Serve may be gone or not there yet: `looked_at` is old then."""
        while True:
            try:
                await work()
            except Exception as error:
                logger.debug("pool %s: %s", self._config.name, type(error).__name__)
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        status = await self._read()
        if self.handle is None and status.deployed:
            from ray import serve

            self.handle = await self._blocking(
                serve.get_deployment_handle, DEPLOYMENT, app_name(self._config.name)
            )
        self.looked.set()
        if self._turn.locked():
            return
        async with self._turn:
            await self._tend(status)

    async def _tend(self, status: PoolStatus) -> None:
        if not self._leads:
            if status.settled and time.monotonic() > self._both_until:
                self._models.moved()
            return
        if not self._is_deployed:
            # A move was given up before it ended, or the one that led has ended.
            await self._deploy(self._config)
        elif status.settled:
            self._models.moved()
        await self._start_again(status)

    async def _go_along(self) -> None:
        """By one that does not lead: with the one that does, and in its place once that has ended. Not part of a
        look, because to open a file takes longer than a look may."""
        if self._leads or self._turn.locked():
            return
        async with self._turn:
            await self._catch_up()
            self._leads = self._lead.held()
            self._attempt = self._kept.attempt(self._models.settings.fingerprint)

    async def _catch_up(self) -> None:
        """Serve what the one that leads has the pool serve. Tried again with the next look where its file
        cannot be opened."""
        from gateway.pool.inspection import inspect

        token = self._kept.change_token
        if token == self._seen:
            return
        served = await asyncio.to_thread(self._kept.served, self._models.settings)
        for new in served.variants:
            now = self._models.variant(new.key)
            if (now.version, now.digest) == (new.version, new.digest):
                continue
            found = await inspect(self._models.settings, new)
            if found.failure:
                logger.warning(
                    "pool %s: %s cannot be served: %s", self._config.name, new.model, found.failure
                )
                return
            self._models.move(new, found)
            self._both_until = time.monotonic() + BOTH_S
        self._seen = token

    async def _read(self) -> PoolStatus:
        self.status = status = await self._blocking(read_status, self._config.name)
        self.looked_at = now = time.monotonic()
        if status.running or not status.starting:
            self.starting_since = None
        elif self.starting_since is None:
            self.starting_since = now
        if status.running:
            self._restart.end()
        return status

    async def _start_again(self, status: PoolStatus) -> None:
        now = time.monotonic()
        if status.failed and not status.running and self._restart.over(now):
            if self._restart.until:
                self._attempt += 1
                await self._deploy(self._config)
            self._restart.begin(now)

    async def _inspect(self) -> None:
        from gateway.pool.inspection import inspect

        for variant in self._models.due(time.monotonic()):
            found = await inspect(self._models.settings, variant)
            if self._models.variant(variant.key) == variant:
                self._models.seen(variant, found, time.monotonic())
                if self._deployed is not None:
                    # A file that was mended is opened by the replicas that run.
                    self._deployed = self._config, self._models.settings.fingerprint

    async def _deploy(self, pool: PoolConfig) -> None:
        """Deploy the models' settings, with the replicas of `pool`."""
        from gateway.pool.deploy import deploy

        settings = self._models.settings
        await asyncio.to_thread(self._kept.deployed, settings.fingerprint, self._attempt)
        await self._blocking(deploy, pool, settings, self._attempt)
        self._deployed = pool, settings.fingerprint

    async def _blocking(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)
