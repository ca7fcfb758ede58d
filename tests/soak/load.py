"""Many callers at once, each of whom knows what belongs to it, and of whom a third leave before they are answered."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field

import grpc.aio
import numpy as np

from tests.soak.stage import COLUMNS, ON_DEVICE, POOLED, Stage
from tests.soak.wires import Array, Failed, HttpCaller, message, over_grpc, over_stream

LEAVING = 1 / 3
LEAVES_WITHIN_S = 0.04
"""As long as most answers take: some leave before, some after, some in the moment that the answer comes."""
SLOWEST_S = 0.03
"""Of slow_identity."""
AWAY = frozenset({"UNAVAILABLE", "503"})
AWAY_WORDS = ("went away before it answered", "(health): the endpoint is down", "t cannot be reached")
"""What is told of a place that is down; within a stream in words alone."""
PAUSE_S = 0.1
"""After a failure: callers of a place that is down would ask nothing else."""
CHANNELS = 4
LOOK_S = 0.1
KEPT_FAULTS = 20


@dataclass
class Tally:
    """What came of the requests. `away` were told that the Triton is, `faults` says what must not be: answers that
    belong elsewhere, are wrong or are missing, and failures that nothing excuses."""

    asked: int = 0
    right: int = 0
    left: int = 0
    away: int = 0
    wrong: int = 0
    faults: list[str] = field(default_factory=list)
    by_way: Counter[str] = field(default_factory=Counter)

    def fault(self, text: str) -> None:
        self.wrong += 1
        if len(self.faults) < KEPT_FAULTS:
            self.faults.append(text)


class Load:
    """`callers` of them until `enough` says so or `stop` is called. Every value is one that nobody else sends."""

    def __init__(self, stage: Stage, callers: int, seed: int = 7) -> None:
        self.tally = Tally()
        self._stage = stage
        self._callers = callers
        self._seed = seed
        self._over = False

    def stop(self) -> None:
        self._over = True

    async def run(self) -> None:
        """Until it is stopped; what is under way is waited for. Raises what no request may raise."""
        async with AsyncExitStack() as stack:
            channels = [
                await stack.enter_async_context(
                    grpc.aio.insecure_channel(
                        self._stage.gateway.grpc, options=[("grpc.use_local_subchannel_pool", 1)]
                    )
                )
                for _ in range(min(CHANNELS, self._callers))
            ]
            async with asyncio.TaskGroup() as group:
                for number in range(self._callers):
                    caller = _Caller(
                        number,
                        random.Random(self._seed * 100_003 + number),
                        channels[number % len(channels)],
                        HttpCaller(self._stage.gateway.http),
                        self.tally,
                    )
                    group.create_task(self._ask_until_over(caller))

    async def _ask_until_over(self, caller: _Caller) -> None:
        try:
            while not self._over:
                if not await caller.ask():
                    await asyncio.sleep(PAUSE_S)
        finally:
            await caller.close()


class _Caller:
    """`_asks_triton` and `_last` are of the request that is under way."""

    def __init__(
        self, number: int, rng: random.Random, channel: grpc.aio.Channel, http: HttpCaller, tally: Tally
    ) -> None:
        self._number = number
        self._rng = rng
        self._channel = channel
        self._http = http
        self._tally = tally
        self._count = 0
        self._asks_triton = False
        self._last = ""

    async def close(self) -> None:
        await self._http.close()

    async def ask(self) -> bool:
        """One call or stream; False where it failed."""
        way = self._rng.choice((*("grpc", "json", "binary") * 2, "stream", "events"))
        self._tally.by_way[way] += 1
        if way == "events":
            return await self._left_or_done(self._events(), 1)
        if way == "stream":
            count = self._rng.randint(1, 4)
            return await self._left_or_done(self._stream(count), count)
        return await self._left_or_done(self._unary(way), 1)

    async def _left_or_done(self, call: Awaitable[None], count: int) -> bool:
        """`count` requests; each is right, left or away, or a fault."""
        self._tally.asked += count
        limit = self._rng.uniform(0, LEAVES_WITHIN_S) if self._rng.random() < LEAVING else None
        bound = asyncio.timeout(limit)
        try:
            async with bound:
                await call
        except TimeoutError:
            if not bound.expired():
                raise
            self._tally.left += count
            return True
        except Failed as failed:
            if failed.status in AWAY and self._asks_triton:
                self._tally.away += count
            else:
                self._tally.fault(f"{self._last}: {failed}")
            return False
        self._tally.right += count
        return True

    def _next(self) -> tuple[str, str, dict[str, Array], dict[str, str], Array]:
        """Model, id, inputs and parameters of a request of its own, and the output that belongs to it."""
        self._count += 1
        id = f"{self._number}-{self._count}"
        model = self._rng.choice(("id2d_fp32", "id2d_fp32", "slow_identity", POOLED, ON_DEVICE))
        self._asks_triton = model not in (POOLED, ON_DEVICE)
        self._last = f"{model} {id}"
        drawn = [self._rng.randrange(2**24) for _ in range(COLUMNS * self._rng.randint(1, 6) - 2)]
        values = np.array([self._number, self._count, *drawn], np.int32)
        parameters: dict[str, str] = {}
        if model == "slow_identity":
            parameters["seconds"] = f"{self._rng.uniform(0, SLOWEST_S):.4f}"
        else:
            values = values.astype(np.float32).reshape(-1, COLUMNS)
        return model, id, {"INPUT0": values}, parameters, values

    async def _unary(self, way: str) -> None:
        model, id, inputs, parameters, wanted = self._next()
        if way == "grpc":
            told, outputs = await over_grpc(self._channel, message(model, id, inputs, parameters))
        else:
            told, outputs = await self._http.infer(model, id, inputs, parameters, binary=way == "binary")
        self._check(f"{way} {model} {id}", told == id and _same(outputs, "OUTPUT0", wanted), told, outputs)

    async def _stream(self, count: int) -> None:
        """Requests of several models, whose responses interleave."""
        bodies: list[bytes] = []
        waiting: dict[str, list[Array]] = {}
        of_triton = False
        for _ in range(count):
            if self._rng.random() < 0.5:
                id, values = self._repeated()
                inputs = {"IN": values, **_pauses(self._delays(len(values)))}
                bodies.append(message("repeat_int32", id, inputs, {}))
                waiting[id] = [value[None] for value in values]
                of_triton = True
            else:
                model, id, inputs, parameters, wanted = self._next()
                bodies.append(message(model, id, inputs, parameters))
                waiting[id] = [wanted]
                of_triton = of_triton or self._asks_triton
        self._asks_triton, self._last = of_triton, f"stream of {count}, {self._last}"
        away = ""
        async with aclosing(over_stream(self._channel, bodies)) as responses:
            async for id, outputs, error in responses:
                if error:
                    away = error
                    waiting.pop(id, None)
                    continue
                due = waiting.get(id)
                name = "OUT" if "OUT" in outputs else "OUTPUT0"
                right = bool(due) and _same(outputs, name, due[0])
                self._check(f"stream {id}", right, id, outputs)
                if due:
                    del due[0]
        if away:
            raise _failed(away)
        missing = {id: len(due) for id, due in waiting.items() if due}
        self._check(f"stream {sorted(waiting)}", not missing, f"no answers for {missing}", {})

    async def _events(self) -> None:
        id, values = self._repeated()
        document = {"id": id, "IN": values.tolist(), "WAIT": 0, "DELAY": self._delays(len(values)).tolist()}
        due = values.tolist()
        async with aclosing(self._http.generate("repeat_int32", document)) as events:
            async for event in events:
                if "error" in event:
                    raise _failed(event["error"])
                right = event.get("id") == id and bool(due) and event["OUT"] == due.pop(0)
                self._check(f"events {id}", right, event, {})
        self._check(f"events {id}", not due, f"{len(due)} events are missing", {})

    def _repeated(self) -> tuple[str, Array]:
        self._count += 1
        id = f"{self._number}-{self._count}"
        self._asks_triton, self._last = True, f"repeat_int32 {id}"
        drawn = [self._rng.randrange(2**24) for _ in range(self._rng.randint(0, 3))]
        return id, np.array([self._number * 2**24 + self._count, *drawn], np.int32)

    def _delays(self, count: int) -> Array:
        return np.array([self._rng.choice((0, 0, 5, 20)) for _ in range(count)], np.uint32)

    def _check(self, what: str, right: bool, told: object, outputs: dict[str, Array]) -> None:
        if not right:
            said = {name: value.tolist() for name, value in outputs.items()}
            self._tally.fault(f"{what} got {told} {said}")


def _failed(words: str) -> Failed:
    return Failed("UNAVAILABLE" if any(known in words for known in AWAY_WORDS) else "error", words)


def _pauses(delays: Array) -> dict[str, Array]:
    return {"DELAY": delays, "WAIT": np.zeros(1, np.uint32)}


def _same(outputs: dict[str, Array], name: str, wanted: Array) -> bool:
    found = outputs.get(name)
    return found is not None and found.shape == wanted.shape and found.tobytes() == wanted.tobytes()


async def until_enough(load: Load, enough: Callable[[], bool], limit_s: float) -> None:
    """Run a load until it is enough, at the latest for `limit_s`, and wait for what is under way."""
    running = asyncio.create_task(load.run())
    until = time.monotonic() + limit_s
    try:
        while not enough() and time.monotonic() < until:
            done, _ = await asyncio.wait([running], timeout=LOOK_S)
            if done:
                break
    finally:
        load.stop()
    await running
