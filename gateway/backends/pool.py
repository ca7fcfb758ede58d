"""A pool of this gateway's own: replicas on Ray Serve, called through handles.

At zero replicas a request waits for the first one, within its own time. What the models take and give
is known before that: each file is opened once, elsewhere, when the endpoint starts, and a request
carries the digests of the files that it was held against.

Its keeper asks Serve every second how the pool is doing, which wakes no replica, and has it try anew,
after longer and longer pauses, when it has given up on starting the pool; it looks again at files that
could not be opened, and moves the pool to other releases.

Requests to a replica that dies fail; the router may pass one on that the replica never confirmed. That
harms nobody, because what a pool runs is a function of its inputs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar

from gateway.backends._once import answered_once
from gateway.backends._pool_keeper import PoolKeeper
from gateway.backends._pool_models import PoolModels, verdict
from gateway.core.config import EndpointConfig
from gateway.core.errors import AttemptError
from gateway.core.ports import Health, ModelHealth, Permit, Surroundings
from gateway.core.release import Release
from gateway.pool.config import PoolConfig
from gateway.pool.settings import settings_of
from gateway.pool.status import down_because
from oip.codec import config_of, metadata_of, statistics_of
from oip.errors import OipError
from oip.reasons import STATUS, Reason
from oip.scan import scan_request

BEGIN_S = 5.0
"""How long a start waits for Ray Serve."""
STALE_S = 5.0
"""A look older than this says nothing any more: Serve does not answer."""
OTHER_S = 0.05
"""How soon another replica is asked while they are replaced."""


class PoolEndpoint:
    """One pool; see the module for how it keeps its promises."""

    kind: ClassVar[str] = "pool"
    params: ClassVar[type[EndpointConfig]] = PoolConfig

    def __init__(self, config: EndpointConfig, surroundings: Surroundings) -> None:
        assert isinstance(config, PoolConfig)
        self._config = config
        self._models = PoolModels(settings_of(surroundings.config, config))
        self._keeper = PoolKeeper(config, surroundings.state_dir, self._models, surroundings.shared)
        self._responses: set[Any] = set()
        self._closed = False

    async def start(self) -> None:
        """Deploy the pool, and begin to look at it and its files. Serve is waited for a little, so that the
        first health is the pool's."""
        self._keeper.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_S):
                await self._keeper.looked.wait()

    async def close(self) -> None:
        """End the calls that run, with an AttemptError."""
        self._closed = True
        for response in [*self._responses]:
            _cancel(response)
        await self._keeper.close()

    async def follow(self, model: str, release: Release, content: bytes, golden: bytes | None) -> str:
        return await self._keeper.follow(model, release, content, golden)

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
            raise verdict(error.reason, error.message, sent=False) from None
        key = self._models.key(view.model_name, view.model_version)
        began = time.monotonic()
        ends = began + timeout_s
        while True:
            accepted = self._models.accepted(key, view.model_version if not key[1] else "")
            left = ends - time.monotonic()
            answer = await self._call(left, body, key, accepted, time.time() + left)
            if len(answer) > 2 or Reason(answer[0]) is not Reason.UNKNOWN_VERSION:
                break
            # Of a replica that is being replaced, or has been a moment ago; another one is asked.
            if not self._keeper.settling:
                raise verdict(Reason.MODEL_UNAVAILABLE, answer[1], sent=False)
            await asyncio.sleep(min(OTHER_S, max(0.0, ends - time.monotonic())))
        counts = self._models.counts[key]
        if len(answer) == 2:
            reason, message = Reason(answer[0]), answer[1]
            counts.failed(time.monotonic() - began)
            if reason is Reason.MODEL_UNAVAILABLE:
                self._models.failed(key, message, time.monotonic())
            raise verdict(reason, message, sent=True)
        response, *figures = answer
        counts.answered(time.monotonic() - began, *figures)
        permit.times(*figures[:2])
        self._models.ran(key)
        return response

    def stream(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float | None, permit: Permit
    ) -> AsyncGenerator[bytes]:
        return answered_once(self, body, metadata, timeout_s, permit)

    async def health(self, models: Sequence[tuple[str, str]], timeout_s: float) -> Health:
        """Up means that a replica runs, or that a request may expect one to be started for it."""
        keeper = self._keeper
        if keeper.looked_at is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await keeper.looked.wait()
        now = time.monotonic()
        if keeper.looked_at is None or now - keeper.looked_at > STALE_S:
            return Health(up=False, detail="Ray Serve does not say how it is")
        status = keeper.status
        replicas = {"running": status.running, "starting": status.starting}
        starting_s = 0.0 if keeper.starting_since is None else now - keeper.starting_since
        down = down_because(status, starting_s, 0 if keeper.moving else self._config.replicas.min)
        if down:
            return Health(up=False, detail=down, replicas=replicas)
        detail = "; ".join(self._models.troubles(now)) or status.reason
        ready = tuple(self._model_health(model, version, now) for model, version in models)
        return Health(up=True, detail=detail, models=ready, replicas=replicas)

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
        key = self._models.key(model, version)
        told = version or self._models.variant(key).version
        return metadata_of(key[0], told, self._config.runtime, self._models.signature(key))

    async def model_config(self, model: str, version: str, timeout_s: float) -> bytes:
        key = self._models.key(model, version)
        batching = self._models.variant(key).batching
        delay_us = None if batching is None else round(batching.delay_ms * 1000)
        return config_of(key[0], self._config.runtime, self._models.signature(key), delay_us)

    async def statistics(self, model: str, version: str, timeout_s: float) -> bytes:
        """What passed through this gateway, of every release of a model: the replicas' own counts would end
        with them."""
        key = self._models.key(model, version)
        told = self._models.variant(key).version
        return statistics_of(key[0], told, self._models.counts[key].counters())

    def _model_health(self, model: str, version: str, now: float) -> ModelHealth:
        try:
            key = self._models.key(model, version)
        except AttemptError:
            return ModelHealth(model, version, False)
        return ModelHealth(model, version, not self._models.trouble(key, now), self._models.versions(key))

    async def _call(self, timeout_s: float, *args: Any) -> Any:
        """One call of a replica. Raises AttemptError, and nothing else but cancellation."""
        from ray.exceptions import RayActorError, RayError, TaskCancelledError, WorkerCrashedError
        from ray.serve.exceptions import (
            BackPressureError,
            DeploymentUnavailableError,
            RayServeException,
            RequestCancelledError,
        )

        if self._keeper.handle is None:
            raise self._failed(Reason.UNAVAILABLE, "is not deployed yet", sent=False, retryable=True)
        response: Any = None
        try:
            response = self._keeper.handle.infer.remote(*args)
            self._responses.add(response)
            async with asyncio.timeout(timeout_s):
                answer = await response
            self._responses.discard(response)
            response = None
            return answer
        except TimeoutError:
            words = (
                "did not answer in time" if self._keeper.status.running else "had no replica running in time"
            )
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

    def _failed(self, reason: Reason, words: str, *, sent: bool, retryable: bool) -> AttemptError:
        return AttemptError(
            reason,
            f"Endpoint {self._config.name} {words}.",
            grpc_status=STATUS[reason].grpc,
            sent=sent,
            retryable=retryable,
        )


def _cancel(response: Any) -> None:
    """Take a call back. Serve raises here what the call itself ended with."""
    with contextlib.suppress(Exception):
        response.cancel()
