"""Asks one endpoint, again and again, whether it and its models are ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gateway.core.ports import Endpoint, Health

INTERVAL_S = 1.0
TIMEOUT_S = 1.0


class Monitor:
    """One endpoint's health, asked every `INTERVAL_S` and at once when `look_now` is called.

    A look ends after `TIMEOUT_S`, so a stopped endpoint is found out within two seconds.
    """

    def __init__(
        self, endpoint: Endpoint, models: Sequence[tuple[str, str]], report: Callable[[Health], None]
    ) -> None:
        self._endpoint = endpoint
        self._models = models
        self._report = report
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="monitor")

    def look_now(self) -> None:
        self._wanted.set()

    async def look(self) -> None:
        """One look, reported."""
        try:
            async with asyncio.timeout(2 * TIMEOUT_S):
                health = await self._endpoint.health(self._models, TIMEOUT_S)
        except TimeoutError:
            health = Health(up=False, detail="did not answer a health check in time")
        except Exception as error:  # a monitor that ends would leave the last verdict standing for ever
            health = Health(up=False, detail=f"could not be asked ({type(error).__name__})")
        self._report(health)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._wanted.clear()
            await self.look()
            try:
                async with asyncio.timeout(INTERVAL_S):
                    await self._wanted.wait()
                # A burst of failures asks once: the next look waits a little for the endpoint to settle.
                await asyncio.sleep(INTERVAL_S / 10)
            except TimeoutError:
                pass
