"""Runs an update's trainer as a Ray task.

The task starts a process of the trainer's own (trainer_process), which its memory is bounded in and which
goes when the task goes. Nothing here imports Ray before a run begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import aclosing

from gateway.core.training import TrainResult
from gateway.core.training_run import (
    Fault,
    RunEvent,
    RunKind,
    TrainFailed,
    TrainSpec,
    may_retry,
    one_sentence,
)
from gateway.jobs.streamed import NoSuchResources, TaskLost, TaskTimedOut, streamed
from gateway.jobs.trainer_task import Message, shepherd

Heard = Callable[[RunEvent], None]


async def train(spec: TrainSpec, heard: Heard, attempt: int = 1) -> TrainResult:
    """Run the trainer until it gives a result, again after what may pass, as often as configured. `attempt`:
    the number of the first one, where those before it failed in another process.

    Cancelled, it ends the trainer's process before it returns. Ray must be started. Raises TrainFailed.
    """
    for number in itertools.count(attempt):
        try:
            return await _attempt(spec, heard, number)
        except TrainFailed as failed:
            if not may_retry(failed.fault, number, spec.train.retries):
                raise
            heard(RunEvent(RunKind.RETRYING, failed.sentence, attempt=number))
    raise AssertionError("attempts are counted without end")


async def _attempt(spec: TrainSpec, heard: Heard, attempt: int) -> TrainResult:
    config = spec.train
    job = {
        "model": spec.model,
        "version": spec.version,
        "current": dict(spec.files),
        "samples": [placed.sample for placed in spec.samples],
        "data": config.data,
    }
    stream = streamed(
        shepherd,
        config.entrypoint,
        job,
        config.memory_mb,
        resources=config.resources,
        timeout_s=config.timeout_s,
        waiting=lambda words: heard(RunEvent(RunKind.WAITING, words, attempt=attempt)),
    )
    last: Message = ()
    try:
        async with aclosing(stream) as batches:
            async for batch in batches:
                for last in batch:
                    _tell(last, heard, attempt)
    except NoSuchResources as fault:
        raise TrainFailed(Fault.RESOURCES, one_sentence(str(fault))) from None
    except TaskTimedOut:
        raise TrainFailed(
            Fault.TIMED_OUT, f"The trainer took longer than timeout_s: {config.timeout_s:g} allows."
        ) from None
    except TaskLost as lost:
        raise TrainFailed(Fault.MEMORY if lost.memory else Fault.LOST, one_sentence(str(lost))) from lost
    return _result(last)


def _tell(message: Message, heard: Heard, attempt: int) -> None:
    match message:
        case ("began",):
            heard(RunEvent(RunKind.BEGAN, attempt=attempt))
        case ("progress", share, words):
            heard(RunEvent(RunKind.PROGRESS, one_sentence(words), share, attempt))
        case ("log", text):
            heard(RunEvent(RunKind.LOG, text, attempt=attempt))
        case _:
            pass  # what came of it is told by how the run ends


def _result(last: Message) -> TrainResult:
    """Of the last message. Raises TrainFailed."""
    match last:
        case ("result", result):
            return result
        case ("failed", fault, sentence):
            raise TrainFailed(Fault(fault), one_sentence(sentence))
        case ("crashed", sentence):
            raise TrainFailed(Fault.CRASHED, sentence)
        case _:
            raise TrainFailed(Fault.LOST, "The run ended without a word of what came of it.")
