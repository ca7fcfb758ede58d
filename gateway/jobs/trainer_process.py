"""The process that a trainer runs in: `python -m gateway.jobs.trainer_process FD PARENT MEMORY_MB`.

It reads the job, pickled, from its standard input, and writes what is to be told to the pipe FD: each a
length of eight bytes and a pickled tuple, ("progress", share, words), ("failed", fault, sentence) or
("result", TrainResult). What the trainer prints goes where standard output goes. It ends with PARENT.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gateway.core.training import Cancelled, Sample, TrainJob, TrainResult
from gateway.core.training_result import BadResult, checked

LENGTH = struct.Struct(">Q")
_PR_SET_PDEATHSIG = 1


class Outlet:
    """The pipe to whoever started this process."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor

    def tell(self, *message: object) -> None:
        """Raises BrokenPipeError when nobody listens any more."""
        packed = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        left = memoryview(LENGTH.pack(len(packed)) + packed)
        while left:
            left = left[os.write(self._descriptor, left) :]

    def progress(self, share: float, words: str) -> None:
        try:
            self.tell("progress", min(1.0, max(0.0, float(share))), str(words)[:300])
        except BrokenPipeError:
            raise Cancelled from None


class NoTrainer(Exception):
    """There is no such function; the text is one sentence."""


def main() -> None:
    descriptor, parent, memory_mb = (int(argument) for argument in sys.argv[1:4])
    _end_with(parent)
    outlet = Outlet(descriptor)
    entrypoint, job = pickle.load(sys.stdin.buffer)
    job["samples"] = [_own(sample) for sample in job["samples"]]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # A core file would hold the samples.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_mb:
        _limit(memory_mb)
    last = _outcome(entrypoint, job, outlet, memory_mb)
    sys.stdout.flush()
    sys.stderr.flush()
    outlet.tell(*last)
    # Threads that the trainer left behind do not keep the run from ending.
    os._exit(0)


def _outcome(
    entrypoint: str, job: Mapping[str, Any], outlet: Outlet, memory_mb: int
) -> tuple[str, TrainResult] | tuple[str, str, str]:
    """The last message."""
    try:
        result = _trainer(entrypoint)(TrainJob(**job, progress=outlet.progress))
        return "result", checked(result)
    except NoTrainer as missing:
        return "failed", "entrypoint", str(missing)
    except BadResult as bad:
        return "failed", "contract", str(bad)
    except MemoryError:
        return "failed", "memory", f"The trainer needs more memory than memory_mb: {memory_mb} allows."
    except BaseException as fault:
        own = fault.__traceback__.tb_next if fault.__traceback__ else None
        traceback.print_exception(type(fault), fault, own)
        return "failed", "raised", f"The trainer raised {type(fault).__name__}: {fault}"


def _own(sample: Sample) -> Sample:
    """With arrays that may be written to; from Ray's object store they may only be read."""
    return Sample(
        sample.id, {name: np.array(a) for name, a in sample.inputs.items()}, np.array(sample.labels)
    )


def _trainer(entrypoint: str) -> Callable[[TrainJob], object]:
    """Raises NoTrainer."""
    name, _, function = entrypoint.partition(":")
    try:
        module = importlib.import_module(name)
    except MemoryError:
        raise
    except BaseException as fault:
        if isinstance(fault, ModuleNotFoundError) and fault.name and f"{name}.".startswith(f"{fault.name}."):
            raise NoTrainer(f"There is no module {name!r} where the trainer runs.") from None
        traceback.print_exc()
        raise NoTrainer(f"The module {name!r} cannot be imported: {type(fault).__name__}: {fault}") from None
    found = getattr(module, function, None)
    if not callable(found):
        raise NoTrainer(f"The module {name!r} has no function {function!r}.")
    return found


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent is gone, however that went."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")
    if os.getppid() != parent:
        raise SystemExit("whoever started this process is gone")


def _limit(memory_mb: int) -> None:
    """Let the address space grow by so much and no more."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    size = pages * os.sysconf("SC_PAGE_SIZE") + memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


if __name__ == "__main__":
    main()
