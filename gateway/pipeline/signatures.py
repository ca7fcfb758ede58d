"""Requests held against what their model takes, before anything is sent.

The monitors learn the signatures from the endpoints. One that refuses a request may be older than the
model: the endpoint is asked again, once, before the request is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from gateway.core.decision import VariantKey
from gateway.core.ports import Endpoint, Permit, Relay
from gateway.pipeline.state import ReplicaState
from oip import wording
from oip.codec import signature_of
from oip.errors import OipError
from oip.reasons import Reason
from oip.signature import Signature
from oip.validate import check_request, checks_fast

TIMEOUT_S = 1.0
"""How long an endpoint may take over each of the two questions that make a signature."""
FRESH_S = 1.0
"""A signature learnt so short a time ago is believed."""


async def ask_signature(endpoint: Endpoint, model: str, version: str) -> Signature | None:
    """What the endpoint says that its model takes and gives; None where it says nothing that can be
    read. Ends within twice `TIMEOUT_S`."""
    try:
        metadata = await endpoint.model_metadata(model, version, TIMEOUT_S)
        return signature_of(metadata, await _config(endpoint, model, version))
    except OipError:
        return None


async def _config(endpoint: Endpoint, model: str, version: str) -> bytes | None:
    """None from an endpoint that has no configurations. Any other failure is raised: half of what the
    endpoint would say is no signature."""
    try:
        return await endpoint.model_config(model, version, TIMEOUT_S)
    except OipError as error:
        if error.reason is Reason.NOT_SERVED:
            return None
        raise


class Signatures:
    """Holds requests against the signatures in `state`. Everything runs on one loop."""

    def __init__(
        self, state: ReplicaState, endpoints: Mapping[str, Endpoint], clock: Callable[[], float]
    ) -> None:
        self._state = state
        self._endpoints = endpoints
        self._clock = clock
        self._asking: dict[VariantKey, asyncio.Task[None]] = {}
        self._slow = asyncio.Semaphore(1)
        """Checks of megabytes of BYTES are made beside the loop, one at a time: they share its processor."""

    async def of(self, key: VariantKey, version: str = "", permit: Permit | None = None) -> Signature | None:
        """What the variant takes, asked for where it is not known; None where its endpoint does not say.
        `version` and `permit` as for `check`."""
        if version:
            return await self._ask(key, version, permit)
        if self._known(key) is None:
            await self._learn_again(key)
        return self._known(key)

    async def renewed(self, key: VariantKey) -> Signature | None:
        """As `of`, from the endpoint's own mouth unless it was asked a moment ago."""
        learnt_at = self._state.learnt_at(key)
        if learnt_at is None or self._clock() - learnt_at > FRESH_S:
            await self._learn_again(key)
        return self._known(key)

    async def check(
        self,
        key: VariantKey,
        body: bytes,
        model: str,
        version: str = "",
        permit: Permit | None = None,
        *,
        streamed: bool = False,
    ) -> int:
        """The rows of a scanned ModelInferRequest's batch, 1 where none is known. Raises OipError MALFORMED
        for one that the variant cannot take; words name the model as `model`. A variant whose endpoint says
        nothing takes everything. NOT_SERVED for a decoupled model, unless the answer is `streamed`.

        `version` is one that the caller asks for and the variant leaves to its endpoint: nothing is
        refused before that has said what this version takes. Such a question carries the caller's word, so
        an endpoint that passes it on is asked under `permit`, which it needs for that.
        """
        found = await self._held(self._known(key), body, model, streamed)
        if isinstance(found, int):
            return found
        if version:
            found = await self._held(await self._ask(key, version, permit), body, model, streamed)
        elif (learnt_at := self._state.learnt_at(key)) is None or self._clock() - learnt_at > FRESH_S:
            await self._learn_again(key)
            found = await self._held(self._known(key), body, model, streamed)
        if isinstance(found, OipError):
            raise found
        return found

    async def _ask(self, key: VariantKey, version: str, permit: Permit | None) -> Signature | None:
        endpoint = self._endpoints[key.endpoint]
        if isinstance(endpoint, Relay):
            if permit is None:
                return None
            try:
                endpoint = endpoint.under(permit)
            except OipError:
                return None
        return await ask_signature(endpoint, key.model, version)

    async def close(self) -> None:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _known(self, key: VariantKey) -> Signature | None:
        return self._state.variant(key).signature

    async def _held(
        self, signature: Signature | None, body: bytes, model: str, streamed: bool
    ) -> int | OipError:
        """The request's rows, or why the model cannot take it."""
        if signature is None:
            return 1
        if signature.decoupled and not streamed:
            return wording.decoupled()
        try:
            if checks_fast(body, signature):
                return check_request(body, signature, model)
            async with self._slow:
                return await asyncio.to_thread(check_request, body, signature, model)
        except OipError as error:
            # Without its frames, which hold the body.
            return error.with_traceback(None)

    async def _learn_again(self, key: VariantKey) -> None:
        """Requests that are refused at the same time share one question; it goes on without those of
        them that leave."""
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._learn(key), name="learn a signature")
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        await asyncio.shield(task)

    async def _learn(self, key: VariantKey) -> None:
        signature = await ask_signature(self._endpoints[key.endpoint], key.model, key.version)
        self._state.learnt(key, signature, self._clock())
