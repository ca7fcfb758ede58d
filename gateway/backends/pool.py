"""A pool of this gateway's own: replicas on Ray Serve, called through handles.

At zero replicas a request waits for the first one, within its own time. What the models take and give
is known before that: each file is opened once, elsewhere, when the endpoint starts, and a request
carries the digest of the file that it was held against.

Two tasks keep it: one asks Serve every second how the pool is doing, which wakes no replica, and has it
try anew, after longer and longer pauses, when it has given up on starting the pool; the other looks
again at files that could not be opened.

Requests to a replica that dies fail; the router may pass one on that the replica never confirmed. That
harms nobody, because what a pool runs is a function of its inputs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from gateway.backends._pool_counts import PoolCounts
from gateway.core.config import EndpointConfig
from gateway.core.errors import AttemptError
from gateway.core.ports import Health, ModelHealth, Permit, Surroundings
from gateway.pool.config import PoolConfig
from gateway.pool.settings import DEPLOYMENT, app_name, settings_of
from gateway.pool.status import PoolStatus, down_because, read_status
from oip.codec import config_of, metadata_of, statistics_of
from oip.errors import OipError
from oip.reasons import STATUS, Reason
from oip.scan import scan_request

if TYPE_CHECKING:
    from gateway.pool.inspection import Inspected

logger = logging.getLogger(__name__)
T = TypeVar("T")
Key = tuple[str, str]

LOOK_S = 1.0
"""How often the keeper looks at the pool."""
CLOSE_S = 2.0
"""How long the end of a closed handle is waited for."""
STALE_S = 5.0
"""A look older than this says nothing any more: Serve does not answer."""
FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0
_ELSEWHERE = frozenset(
    {Reason.UNAVAILABLE, Reason.MODEL_UNAVAILABLE, Reason.OVERLOADED, Reason.UNKNOWN_MODEL}
)
"""Reasons of a replica that another place need not share."""


class _Pause:
    """Longer and longer pauses between tries."""

    def __init__(self) -> None:
        self._length = FIRST_PAUSE_S
        self.until = 0.0

    def over(self, now: float) -> bool:
        return now >= self.until

    def begin(self, now: float) -> None:
        self.until = now + self._length
        self._length = min(2 * self._length, LONGEST_PAUSE_S)

    def end(self) -> None:
        self._length, self.until = FIRST_PAUSE_S, 0.0


class PoolEndpoint:
    """One pool; see the module for how it keeps its promises."""

    kind: ClassVar[str] = "pool"
    params: ClassVar[type[EndpointConfig]] = PoolConfig

    def __init__(self, config: EndpointConfig, surroundings: Surroundings) -> None:
        assert isinstance(config, PoolConfig)
        self._config = config
        self._settings = settings_of(surroundings.config, config)
        self._variants = {(v.model, v.version): v for v in self._settings.variants}
        self._found: dict[Key, Inspected] = {}
        self._broken: dict[Key, str] = {}
        """Why a replica could not run a variant, until one can."""
        self._pauses = {key: _Pause() for key in self._variants}
        self._restart = _Pause()
        self._counts = {key: PoolCounts() for key in self._variants}
        self._status = PoolStatus(deployed=False)
        self._looked_at: float | None = None
        """When the pool's status was last had."""
        self._starting_since: float | None = None
        """Since when replicas start and none runs."""
        self._handle: Any = None
        self._keepers: list[asyncio.Task[None]] = []
        self._responses: set[Any] = set()
        self._looked = asyncio.Event()
        self._closed = False
        # Serve's client blocks; on a thread of its own it holds up nothing else when Serve is gone.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"pool-{config.name}")

    async def start(self) -> None:
        """Begin to look at the pool and its files."""
        self._keepers = [
            asyncio.create_task(self._again(work), name=f"keep {self._config.name}")
            for work in (self._look, self._inspect)
        ]

    async def close(self) -> None:
        """End the calls that run, with an AttemptError."""
        self._closed = True
        for response in [*self._responses]:
            _cancel(response)
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        handle, self._handle = self._handle, None
        if handle is not None:
            # Its router would go on telling Serve of its load for as long as this process lives.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_S):
                    await handle.shutdown_async()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def infer(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float, permit: Permit
    ) -> bytes:
        if self._closed:
            raise self._failed(Reason.UNAVAILABLE, "is closed", sent=False, retryable=True)
        if timeout_s <= 0:
            raise self._failed(Reason.DEADLINE, "was given no time", sent=False, retryable=False)
        try:
            view = scan_request(body)
        except OipError as error:
            raise _verdict(error.reason, error.message, sent=False) from None
        key = self._key(view.model_name, view.model_version)
        found = self._signed(key)
        began = time.monotonic()
        answer = await self._call(timeout_s, body, *key, found.digest, time.time() + timeout_s)
        counts = self._counts[key]
        if len(answer) == 2:
            reason, message = Reason(answer[0]), answer[1]
            counts.failed(time.monotonic() - began)
            if reason is Reason.MODEL_UNAVAILABLE:
                self._broken[key] = message
                self._pauses[key].begin(time.monotonic())
            raise _verdict(reason, message, sent=True)
        response, *figures = answer
        counts.answered(time.monotonic() - began, *figures)
        if self._broken.pop(key, None) is not None:
            self._pauses[key].end()
        return response

    async def health(self, models: Sequence[tuple[str, str]], timeout_s: float) -> Health:
        """Up means that a replica runs, or that a request may expect one to be started for it."""
        if self._looked_at is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._looked.wait()
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at > STALE_S:
            return Health(up=False, detail="Ray Serve does not say how it is")
        replicas = {"running": self._status.running, "starting": self._status.starting}
        starting_s = 0.0 if self._starting_since is None else now - self._starting_since
        down = down_because(self._status, starting_s, self._config.replicas.min)
        if down:
            return Health(up=False, detail=down, replicas=replicas)
        troubles = [f"{key[0]}: {why}" for key in self._variants if (why := self._trouble(key, now))]
        ready = tuple(
            ModelHealth(model, version, self._ready(model, version, now)) for model, version in models
        )
        detail = "; ".join(troubles) or self._status.reason
        return Health(up=True, detail=detail, models=ready, replicas=replicas)

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
        key = self._key(model, version)
        found = self._signed(key)
        return metadata_of(*key, self._config.runtime, found.signature)

    async def model_config(self, model: str, version: str, timeout_s: float) -> bytes:
        key = self._key(model, version)
        found = self._signed(key)
        batching = self._variants[key].batching
        delay_us = None if batching is None else round(batching.delay_ms * 1000)
        return config_of(key[0], self._config.runtime, found.signature, delay_us)

    async def statistics(self, model: str, version: str, timeout_s: float) -> bytes:
        """What passed through this gateway: the replicas' own counts would end with them."""
        key = self._key(model, version)
        return statistics_of(*key, self._counts[key].counters())

    def _key(self, model: str, version: str) -> Key:
        """The variant that is meant; without a version the highest. Raises AttemptError."""
        if version and (model, version) in self._variants:
            return model, version
        versions = [key for key in self._variants if key[0] == model]
        if version or not versions:
            which = f"'{model}' version '{version}'" if versions else f"'{model}'"
            message = f"Request for unknown model: {which} is not found"
            raise _verdict(Reason.UNKNOWN_MODEL, message, sent=False)
        return max(versions, key=lambda key: int(key[1]))

    def _signed(self, key: Key) -> Any:
        """What was found in a variant's file, its signature for one. Raises AttemptError."""
        found = self._found.get(key)
        if found is None or found.signature is None:
            why = "has not been looked at yet" if found is None else f"cannot be served: {found.failure}"
            raise _verdict(
                Reason.MODEL_UNAVAILABLE, f"Model {key[0]} on endpoint {self._config.name} {why}.", sent=False
            )
        return found

    def _ready(self, model: str, version: str, now: float) -> bool:
        try:
            return not self._trouble(self._key(model, version), now)
        except AttemptError:
            return False

    def _trouble(self, key: Key, now: float) -> str:
        """Why a variant is not to be asked now, "" for one that is."""
        found = self._found.get(key)
        if found is None:
            return "not looked at yet"
        if found.failure:
            return found.failure
        return "" if self._pauses[key].over(now) else self._broken.get(key, "")

    async def _call(self, timeout_s: float, *args: Any) -> Any:
        """One call of a replica. Raises AttemptError, and nothing else but cancellation."""
        from ray.exceptions import RayActorError, RayError, TaskCancelledError, WorkerCrashedError
        from ray.serve.exceptions import (
            BackPressureError,
            DeploymentUnavailableError,
            RayServeException,
            RequestCancelledError,
        )

        if self._handle is None:
            raise self._failed(Reason.UNAVAILABLE, "is not deployed yet", sent=False, retryable=True)
        response: Any = None
        try:
            response = self._handle.infer.remote(*args)
            self._responses.add(response)
            async with asyncio.timeout(timeout_s):
                answer = await response
            self._responses.discard(response)
            response = None
            return answer
        except TimeoutError:
            words = "did not answer in time" if self._status.running else "had no replica running in time"
            raise self._failed(Reason.DEADLINE, words, sent=True, retryable=False) from None
        except BackPressureError:
            raise self._failed(
                Reason.OVERLOADED, "has as many requests waiting as it takes", sent=False, retryable=True
            ) from None
        except DeploymentUnavailableError:
            raise self._failed(Reason.UNAVAILABLE, "does not start", sent=False, retryable=True) from None
        except (RequestCancelledError, TaskCancelledError):
            words = "was closed" if self._closed else "dropped the request"
            raise self._failed(Reason.UNAVAILABLE, words, sent=True, retryable=True) from None
        except (RayActorError, WorkerCrashedError):
            # The pool is still there, and Serve is starting another replica: not UNAVAILABLE, which would
            # have it passed over until it is looked at again.
            raise self._failed(
                Reason.MODEL_UNAVAILABLE, "lost the replica before it answered", sent=True, retryable=True
            ) from None
        except (RayError, RayServeException) as error:
            raise self._failed(
                Reason.ENDPOINT_FAILED, f"failed ({type(error).__name__})", sent=True, retryable=True
            ) from None
        finally:
            if response is not None:
                self._responses.discard(response)
                _cancel(response)

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it every LOOK_S. Serve may be gone or not there yet: `health` says so once the last look is
        old."""
        while True:
            try:
                await work()
            except Exception as error:
                logger.debug("pool %s: %s", self._config.name, type(error).__name__)
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        self._status = status = await self._blocking(read_status, self._config.name)
        self._looked_at = now = time.monotonic()
        if self._handle is None and status.deployed:
            from ray import serve

            self._handle = await self._blocking(
                serve.get_deployment_handle, DEPLOYMENT, app_name(self._config.name)
            )
        if status.running or not status.starting:
            self._starting_since = None
        elif self._starting_since is None:
            self._starting_since = now
        if status.running:
            self._restart.end()
        self._looked.set()
        await self._start_again()

    async def _inspect(self) -> None:
        from gateway.pool.inspection import inspect

        for key, variant in self._variants.items():
            found, now = self._found.get(key), time.monotonic()
            if (found is None or found.failure) and self._pauses[key].over(now):
                self._found[key] = seen = await inspect(self._settings, variant)
                if seen.failure:
                    self._pauses[key].begin(time.monotonic())
                else:
                    self._pauses[key].end()

    async def _start_again(self) -> None:
        from gateway.pool.deploy import deploy_again

        now = time.monotonic()
        if self._status.failed and not self._status.running and self._restart.over(now):
            if self._restart.until:
                await self._blocking(deploy_again, self._config, self._settings)
            self._restart.begin(now)

    async def _blocking(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    def _failed(self, reason: Reason, words: str, *, sent: bool, retryable: bool) -> AttemptError:
        return AttemptError(
            reason,
            f"Endpoint {self._config.name} {words}.",
            grpc_status=STATUS[reason].grpc,
            sent=sent,
            retryable=retryable,
        )


def _verdict(reason: Reason, message: str, *, sent: bool) -> AttemptError:
    """A replica's word on a request, or one that needs no replica."""
    return AttemptError(
        reason, message, grpc_status=STATUS[reason].grpc, sent=sent, retryable=reason in _ELSEWHERE
    )


def _cancel(response: Any) -> None:
    """Take a call back. Serve raises here what the call itself ended with."""
    with contextlib.suppress(Exception):
        response.cancel()
