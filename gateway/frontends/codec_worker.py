"""A process that translates large bodies, started by `codec_pool`.

It reads pickled jobs from its standard input, a function of `oip.codec` by name and its arguments,
and answers each on its standard output with a pickled `Done`, `Refused` or `Failed`. It ends with
its input, so that it does not outlive the gateway by more than the job in hand.
"""

from __future__ import annotations

import pickle
import signal
import sys
import traceback
from dataclasses import dataclass
from typing import Any

from oip import codec
from oip.errors import OipError
from oip.reasons import Reason

JOBS = {
    job.__name__: job
    for job in (codec.decode_infer, codec.encode_infer, codec.decode_generate, codec.encode_generate)
}


@dataclass(frozen=True, slots=True)
class Done:
    result: Any


@dataclass(frozen=True, slots=True)
class Refused:
    """The job raised OipError."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The job raised something else: its type and its stack, not its text, which may quote data."""

    kind: str
    stack: str


def work(job: str, arguments: tuple[Any, ...]) -> Done | Refused | Failed:
    """The outcome of one job. Never raises."""
    try:
        return Done(JOBS[job](*arguments))
    except OipError as error:
        return Refused(error.reason, error.message)
    except Exception as error:
        return Failed(type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))


def main() -> None:
    # Ctrl-C reaches the whole process group, and the gateway still finishes what runs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            job, arguments = pickle.load(jobs)
            outcome = work(job, arguments)
            del arguments
            pickle.dump(outcome, answers, protocol=5)
            answers.flush()
            del outcome
        except (EOFError, OSError, pickle.UnpicklingError):
            return
