"""A generator that runs as a Ray task, and what it yields as it comes.

While no machine has the resources free it waits, for as long as it takes; its time begins with its first
item. Whoever stops listening ends it: first by an interrupt, so that it can end what it started itself,
then by killing its worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any, TypeVar

from gateway.pool.niceness import step_aside

Item = TypeVar("Item")

LOOK_S = 2.0
"""How often it is asked what a task that has not begun waits for."""
STOP_S = 3.0
"""For a task that is interrupted; one that stays longer is killed."""


class TaskFailed(Exception):
    """The task came to no end of its own. The text is one sentence."""


class NoSuchResources(TaskFailed):
    """Ray takes no task with them."""


class TaskTimedOut(TaskFailed):
    """It took longer than it may."""


class TaskLost(TaskFailed):
    """Its worker or machine ended, or the task itself raised. `memory`: Ray ended it, for want of it."""

    def __init__(self, sentence: str, *, memory: bool) -> None:
        super().__init__(sentence)
        self.memory = memory


def _aside(function: Callable[..., Iterator[Item]], *arguments: Any) -> Iterator[Item]:
    step_aside()
    yield from function(*arguments)


async def streamed(
    function: Callable[..., Iterator[Item]],
    *arguments: Any,
    resources: Mapping[str, float],
    timeout_s: float,
    waiting: Callable[[str], None],
) -> AsyncGenerator[Item, None]:
    """What `function(*arguments)` yields in a Ray task; the arguments go through Ray's object store. It
    should yield something as soon as it begins. `waiting` is told for which resources it waits, once for each
    change. Raises TaskFailed. Close it (contextlib.aclosing), or cancel who awaits it, to end the task.
    """
    import ray

    from gateway.pool.deploy import actor_options

    try:
        task = ray.remote(_aside).options(num_returns="streaming", max_retries=0, **actor_options(resources))
        carried = [await asyncio.to_thread(ray.put, argument) for argument in arguments]
        stream = _Stream(task.remote(function, *carried))
    except ValueError as error:
        why = "".join(str(part) for part in error.args)
        raise NoSuchResources(f"Ray takes no task with resources {_listed(resources)}: {why}") from None
    try:
        looks, told = 0, ""
        while not await stream.wait(LOOK_S):
            looks += 1
            words = await asyncio.to_thread(_lacking, resources, looks)
            if words and words != told:
                waiting(words)
                told = words
        until = time.monotonic() + timeout_s
        while True:
            if not await stream.wait(until - time.monotonic()):
                raise TaskTimedOut(f"It took longer than {timeout_s:g} s.")
            item = stream.taken()
            if item is None:
                return
            yield item
    finally:
        await stream.end()


class _Stream:
    """Ray's stream of results, with at most one of them awaited at a time."""

    def __init__(self, refs: Any) -> None:
        self._refs = refs
        self._next: asyncio.Task[Any] | None = None
        self._over = False

    async def wait(self, timeout_s: float) -> bool:
        """Whether the next one, or the end, has come by then."""
        if self._next is None:
            self._next = asyncio.create_task(self._fetch())
        done, _ = await asyncio.wait({self._next}, timeout=max(0.0, timeout_s))
        return bool(done)

    def taken(self) -> Any:
        """What has come; None at the end. Raises TaskLost."""
        from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

        assert self._next is not None
        found, self._next = self._next, None
        self._over = True
        try:
            item = found.result()
        except RayTaskError as error:
            raise TaskLost(f"The task failed: {type(error.cause).__name__}.", memory=False) from error
        except OutOfMemoryError:
            raise TaskLost("Ray ended it: its machine ran out of memory.", memory=True) from None
        except RayError as error:
            raise TaskLost(f"Ray lost it ({type(error).__name__}).", memory=False) from None
        self._over = item is None
        return item

    async def end(self) -> None:
        """End the task, if it has not ended, and see it gone."""
        import ray

        if self._over:
            return
        ray.cancel(self._refs, force=False)
        try:
            await self._drain()
        finally:
            if not self._over:
                ray.cancel(self._refs, force=True)
        await self._drain()

    async def _drain(self) -> None:
        """Let pass what still comes until the end, for STOP_S at most."""
        until = time.monotonic() + STOP_S
        while not self._over and await self.wait(until - time.monotonic()):
            with contextlib.suppress(TaskLost):
                self.taken()

    async def _fetch(self) -> Any:
        """The next item; None at the end."""
        try:
            ref = await anext(self._refs)
        except StopAsyncIteration:
            return None
        return await ref


def _listed(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in resources.items())


def _lacking(resources: Mapping[str, float], looks: int) -> str:
    """What a task that has not begun waits for; "" when its process may only be starting."""
    import ray

    free, there = ray.available_resources(), ray.cluster_resources()
    short = [
        f"{name} {amount:g} ({free.get(name, 0):g} of {there[name]:g} free)"
        if name in there
        else f"{name} {amount:g} (there is none)"
        for name, amount in resources.items()
        if free.get(name, 0) < amount
    ]
    if short:
        return f"waits for {', '.join(short)}"
    return f"waits to begin on a machine with {_listed(resources)} free" if looks > 2 else ""
