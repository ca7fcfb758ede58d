"""Putting requests together for one run of a model, and taking its answer apart again. Pure.

`batch_key` says which requests may share a run, `join` and `split` are the way there and back.
`Batcher` decides when: it holds what waits, and a shell with a clock asks it when the next batch is
due and takes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from oip.errors import OipError
from oip.infer import InferWork
from oip.names import shown
from oip.reasons import Reason

Item = TypeVar("Item")
Array = np.ndarray[Any, np.dtype[Any]]


def batch_key(work: InferWork) -> Hashable | None:
    """What requests must have in common to share a run: their inputs' names, element types and
    dimensions beyond the first, and their parameters. None for a request that runs alone: its
    signature knows no batch, or it has no rows."""
    if not work.rows:
        return None
    inputs = tuple((name, array.dtype.str, array.shape[1:]) for name, array in sorted(work.inputs.items()))
    return work.model, work.version, inputs, tuple(sorted(work.parameters.items(), key=_by_key))


def join(works: Sequence[InferWork]) -> dict[str, Array]:
    """The inputs of requests with one `batch_key`, row upon row in the order given."""
    first = works[0]
    if len(works) == 1:
        return dict(first.inputs)
    return {name: np.concatenate([work.inputs[name] for work in works]) for name in first.inputs}


def split(outputs: Mapping[str, Array], rows: Sequence[int]) -> list[dict[str, Array]]:
    """Each request's share of a joint answer, as views; `rows` are the requests' in the order of `join`.

    Raises OipError ENDPOINT_FAILED for an output that has not one row for each row that went in.
    """
    total = sum(rows)
    for name, array in outputs.items():
        if not array.ndim or len(array) != total:
            found = len(array) if array.ndim else "no"
            raise OipError(
                Reason.ENDPOINT_FAILED,
                f"The model gave {found} rows of output {shown(name)} for a batch of {total}.",
            )
    shares: list[dict[str, Array]] = []
    at = 0
    for count in rows:
        shares.append({name: array[at : at + count] for name, array in outputs.items()})
        at += count
    return shares


class Batcher(Generic[Item]):
    """What waits for a run, in order of arrival, one queue for each key.

    A batch is due when its rows reach `max_size` or when its oldest item has waited `delay_s`. It is
    the longest beginning of its queue of at most `max_size` rows, at least one item: an item that is
    larger by itself runs alone. Instants are seconds of whichever clock the caller reads, which must
    not run backwards.
    """

    def __init__(self, max_size: int, delay_s: float) -> None:
        if max_size < 1 or delay_s < 0:
            raise ValueError("a batch has at least one row, and a delay is not negative")
        self._max_size = max_size
        self._delay_s = delay_s
        self._queues: dict[Hashable, _Queue[Item]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Items waiting."""
        return self._count

    def push(self, item: Item, rows: int, now: float, key: Hashable | None = "") -> None:
        """Let `item` of so many rows wait; with the key None it shares its run with none, and waits for
        none."""
        if key is None:
            queue = self._queues[object()] = _Queue()
            queue.alone = True
        else:
            queue = self._queues.setdefault(key, _Queue())
        queue.items.append((item, rows, now))
        queue.rows += rows
        self._count += 1

    def due(self, now: float) -> float | None:
        """The instant from which `take` gives something, `now` if it would already; None while nothing
        waits."""
        instants = [self._due(queue) for queue in self._queues.values()]
        return max(now, min(instants)) if instants else None

    def take(self, now: float) -> list[Item]:
        """The batch that has been due longest, [] when none is."""
        if not self._queues:
            return []
        key, queue = min(self._queues.items(), key=lambda entry: self._due(entry[1]))
        if self._due(queue) > now:
            return []
        batch: list[Item] = []
        rows = 0
        while queue.items and (not batch or rows + queue.items[0][1] <= self._max_size):
            item, size, _ = queue.items.popleft()
            batch.append(item)
            rows += size
        self._leave(key, queue, rows, len(batch))
        return batch

    def discard(self, item: Item) -> bool:
        """Take out an item whose caller has left; whether it was waiting."""
        for key, queue in self._queues.items():
            for at, (waiting, rows, _) in enumerate(queue.items):
                if waiting is item:
                    del queue.items[at]
                    self._leave(key, queue, rows, 1)
                    return True
        return False

    def _due(self, queue: _Queue[Item]) -> float:
        arrived = queue.items[0][2]
        return arrived if queue.alone or queue.rows >= self._max_size else arrived + self._delay_s

    def _leave(self, key: Hashable, queue: _Queue[Item], rows: int, count: int) -> None:
        queue.rows -= rows
        self._count -= count
        if not queue.items:
            del self._queues[key]


class _Queue(Generic[Item]):
    """Items that may share a run: item, rows, instant of arrival."""

    __slots__ = ("alone", "items", "rows")

    def __init__(self) -> None:
        self.items: deque[tuple[Item, int, float]] = deque()
        self.rows = 0
        self.alone = False


def _by_key(parameter: tuple[str, object]) -> str:
    return parameter[0]
