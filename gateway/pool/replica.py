"""One replica of a pool: a Ray Serve deployment that holds the models and runs them."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from gateway.core.plugins import discover
from gateway.pool.lane import Lane
from gateway.pool.loopback import bind_replica_to_loopback
from gateway.pool.runtimes._interface import LoadError, Runtime
from gateway.pool.settings import Key, PoolSettings, VariantSettings
from oip.errors import OipError
from oip.infer import build_response, parse_request, select
from oip.reasons import Reason
from oip.signature import Signature

REOPEN_S = 2.0
"""How long a file that was not the one asked for is left alone."""
Answer = tuple[str, str] | tuple[bytes, float, float, int, int, int]
"""(reason, message), or (response, seconds queued, seconds in the model, rows, rows of its run, requests
of that)."""


class PoolStartError(RuntimeError):
    """Why a replica does not start; the message is one sentence without paths."""


class Opened:
    """A file that was opened: its digest, signature, and what runs it."""

    def __init__(self, digest: str, signature: Signature, lane: Lane) -> None:
        self.digest = digest
        self.signature = signature
        self.lane = lane


def open_variant(runtime: Runtime, variant: VariantSettings, resources: Any) -> tuple[str, Signature, Any]:
    """Digest ("sha256:..."), signature and session of a variant's file. Raises LoadError."""
    try:
        model = Path(variant.artifact).read_bytes()
    except OSError as error:
        raise LoadError(f"its artifact cannot be read ({error.strerror})") from None
    digest = f"sha256:{hashlib.sha256(model).hexdigest()}"
    session = runtime.load(model, resources)
    return digest, batched(session.signature, variant), session


def batched(signature: Signature, variant: VariantSettings) -> Signature:
    """The signature as it is served: with a batch dimension where requests are put together. Raises
    LoadError for a model that has none."""
    if variant.batching is None:
        return signature
    for tensor in (*signature.inputs, *signature.outputs):
        if not tensor.shape or tensor.shape[0] != -1:
            raise LoadError(
                f"batching needs a free first dimension and {tensor.name!r} has the shape "
                f"{list(tensor.shape)}: leave batching out"
            )
    return Signature(signature.inputs, signature.outputs, variant.batching.max_size)


def runtime_of(settings: PoolSettings) -> Runtime:
    return cast("Callable[[], Runtime]", discover("gateway.pool.runtimes")[settings.runtime])()


class Pool:
    """One replica.

    A file that cannot be opened fails the requests for it and nothing else; a replica that can open
    none of its files does not start. Calls name the digest that their request was validated against,
    so an answer never comes from another file than the caller was told of.
    """

    def __init__(self, settings: PoolSettings) -> None:
        bind_replica_to_loopback()
        self._settings = settings
        self._runtime = runtime_of(settings)
        self._variants = {variant.key: variant for variant in settings.variants}
        self._opened: dict[Key, Opened] = {}
        self._failed: dict[Key, str] = {}
        self._looked: dict[Key, float] = {}
        self._opening = asyncio.Lock()
        for key in self._variants:
            self._open(key)
        if self._failed and not self._opened:
            raise PoolStartError("; ".join(f"{key[0]}: {why}" for key, why in self._failed.items()))

    async def infer(self, body: bytes, key: Key, accepted: Mapping[str, str], ends_at: float) -> Answer:
        """One inference. `accepted`: the versions that may answer, with their files' digests. `ends_at` is in
        seconds since the epoch, for clocks of other processes."""
        until = time.monotonic() + ends_at - time.time()
        variant = self._variants[key]
        try:
            digest = accepted.get(variant.version)
            if digest is None:
                text = f"Model {key[0]} is at version {variant.version} on this replica."
                raise OipError(Reason.UNKNOWN_VERSION, text)
            opened = await self._current(key, digest)
            work = parse_request(body, opened.signature)
            ran = await opened.lane.run(work, until)
            outputs = select(work, ran.outputs)
            response = build_response(key[0], variant.version, work.id, outputs, opened.signature)
            return response, ran.queued_s, ran.ran_s, work.rows or 1, ran.rows, ran.together
        except OipError as error:
            return error.reason.value, error.message

    async def fault(self, key: Key) -> str:
        """Why it cannot run a model, as a few words; "" where it can."""
        return self._failed.get(key, "")

    async def __del__(self) -> None:
        """Awaited by Serve when it stops the replica."""
        for opened in self._opened.values():
            await opened.lane.close()

    async def _current(self, key: Key, digest: str) -> Opened:
        """The variant with this digest, opened anew where it is another one by now. Raises OipError
        MODEL_UNAVAILABLE."""
        opened = self._opened.get(key)
        if opened is not None and opened.digest == digest:
            return opened
        async with self._opening:
            opened = self._opened.get(key)
            if (opened is None or opened.digest != digest) and time.monotonic() - self._looked[
                key
            ] >= REOPEN_S:
                await asyncio.to_thread(self._open, key)
                if opened is not None and self._opened.get(key) is not opened:
                    await opened.lane.close()
                opened = self._opened.get(key)
        if opened is None or opened.digest != digest:
            why = self._failed.get(key) or "its artifact has changed since it was looked at"
            raise OipError(Reason.MODEL_UNAVAILABLE, f"Model {key[0]} cannot be run: {why}.")
        return opened

    def _open(self, key: Key) -> None:
        variant = self._variants[key]
        self._looked[key] = time.monotonic()
        try:
            digest, signature, session = open_variant(self._runtime, variant, self._settings.resources)
        except LoadError as error:
            self._failed[key] = str(error)
            return
        self._failed.pop(key, None)
        self._opened[key] = Opened(digest, signature, Lane(session, variant.batching, variant.model))
