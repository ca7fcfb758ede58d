"""Asks one endpoint, again and again, whether it and its models are ready and what these take."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from gateway.core.ports import Endpoint, Health, ModelHealth
from gateway.pipeline.signatures import ask_signature
from oip.signature import Signature

INTERVAL_S = 1.0
TIMEOUT_S = 1.0
SIGNATURES_S = 30.0
"""How often a model that stays ready is asked for its signature."""

ASKED_AT_ONCE = 8
"""Models whose signatures are asked for at the same time: an endpoint may have a thousand."""

Learn = Callable[[str, str, Signature | None], None]
"""Takes model, version and signature; None where the endpoint says nothing."""
Discover = Callable[[float], Awaitable[tuple[ModelHealth, ...]]]
"""Takes seconds; the models that the endpoint has ready besides those that are asked for."""


class Monitor:
    """One endpoint's health, asked every `INTERVAL_S` and at once when `look_now` is called.

    `models` are asked for one by one; `discover`, where it is given, finds the others. A look ends after `TIMEOUT_S`, so a stopped endpoint is found out within two seconds. Signatures are
    asked for beside the looks: when a model becomes ready, or its endpoint comes back, and every
    `SIGNATURES_S`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        models: Sequence[tuple[str, str]],
        report: Callable[[Health], None],
        learn: Learn,
        discover: Discover | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._discover = discover
        self._models = models
        self._report = report
        self._learn = learn
        self._asked_at: dict[tuple[str, str], float] = {}
        """When each model that is ready was asked for its signature."""
        self._wanted = asyncio.Event()
        self._begun = 0
        self._awaited: list[tuple[int, asyncio.Future[None]]] = []
        """Who waits for which look to be reported."""
        self._task: asyncio.Task[None] | None = None
        self._learning: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="monitor")

    def look_now(self) -> None:
        self._wanted.set()

    async def look_anew(self) -> None:
        """Returns when a look that begins after this call is reported."""
        told = asyncio.get_running_loop().create_future()
        self._awaited.append((self._begun + 1, told))
        self._wanted.set()
        await told

    async def look(self) -> None:
        """One look, reported, and what it makes known of signatures."""
        await self._look()
        if self._learning is not None:
            await self._learning

    async def close(self) -> None:
        tasks = [task for task in (self._task, self._learning) if task is not None]
        for ending in (*tasks, *(told for _, told in self._awaited)):
            ending.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._wanted.clear()
            self._begun += 1
            await self._look()
            for told in [told for number, told in self._awaited if number <= self._begun and not told.done()]:
                told.set_result(None)
            self._awaited = [(number, told) for number, told in self._awaited if not told.done()]
            try:
                async with asyncio.timeout(INTERVAL_S):
                    await self._wanted.wait()
                # A burst of failures asks once: the next look waits a little for the endpoint to settle.
                await asyncio.sleep(INTERVAL_S / 10)
            except TimeoutError:
                pass

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(2 * TIMEOUT_S):
                health = await self._endpoint.health(self._models, TIMEOUT_S)
                if self._discover is not None and health.up:
                    health = replace(health, models=(*health.models, *await self._discover(TIMEOUT_S)))
        except TimeoutError:
            health = Health(up=False, detail="did not answer a health check in time")
        except Exception as error:  # a monitor that ends would leave the last verdict standing for ever
            health = Health(up=False, detail=f"could not be asked ({type(error).__name__})")
        self._report(health)
        self._ask_signatures(health)

    def _ask_signatures(self, health: Health) -> None:
        """Begin to ask for those that are due, unless the last round is still under way."""
        if self._learning is not None and not self._learning.done():
            return
        now = asyncio.get_running_loop().time()
        ready = {(model.model, model.version) for model in health.models if health.up and model.ready}
        self._asked_at = {model: at for model, at in self._asked_at.items() if model in ready}
        due = [model for model in ready if now - self._asked_at.get(model, -math.inf) >= SIGNATURES_S]
        if due:
            self._asked_at.update(dict.fromkeys(due, now))
            self._learning = asyncio.create_task(self._ask(due), name="learn signatures")

    async def _ask(self, due: Sequence[tuple[str, str]]) -> None:
        turns = asyncio.Semaphore(ASKED_AT_ONCE)

        async def one(model: str, version: str) -> None:
            async with turns:
                try:
                    signature = await ask_signature(self._endpoint, model, version)
                except Exception:  # of an endpoint that breaks its promise: as one that says nothing
                    signature = None
            self._learn(model, version, signature)

        await asyncio.gather(*(one(*model) for model in due))
