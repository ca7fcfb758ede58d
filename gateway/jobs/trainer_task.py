"""What Ray runs for a training run: it starts the trainer's own process, tells what is heard of it, and
ends it with all its children."""

from __future__ import annotations

import codecs
import contextlib
import os
import pickle
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.core.training_run import RunLog
from gateway.jobs import trainer_process
from gateway.jobs.trainer_process import LENGTH

TELL_S = 0.2
"""How often what was heard is told."""
Message = tuple[Any, ...]
"""As trainer_process has them, and ("began",), ("log", text) and ("crashed", sentence)."""


def shepherd(entrypoint: str, job: Mapping[str, Any], memory_mb: int | None) -> Iterator[list[Message]]:
    """`job`: TrainJob's fields but `progress`. The last message is ("result", TrainResult), ("failed", fault,
    sentence) or ("crashed", sentence)."""
    yield [("began",)]
    ear, mouth = os.pipe()
    # A folder that was added to the path by hand is on the trainer's, too.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    process = subprocess.Popen(
        [sys.executable, "-m", trainer_process.__name__, str(mouth), str(os.getpid()), str(memory_mb or 0)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(mouth,),
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
    )
    os.close(mouth)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError), process.stdin:
            pickle.dump((entrypoint, dict(job)), process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
        yield from _heard(process, ear, process.stdout.fileno())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        os.close(ear)
        process.wait()


def _heard(process: subprocess.Popen[bytes], ear: int, printed: int) -> Iterator[list[Message]]:
    log, decoder = RunLog(), codecs.getincrementaldecoder("utf-8")("replace")
    told: list[Message] = []
    frames = bytearray()
    last: Message | None = None
    for descriptor in (ear, printed):
        os.set_blocking(descriptor, False)
    with selectors.DefaultSelector() as selector:
        selector.register(ear, selectors.EVENT_READ)
        selector.register(printed, selectors.EVENT_READ)
        tell_at = time.monotonic() + TELL_S
        listening = True
        while listening:
            ready = {key.fd for key, _ in selector.select(max(0.0, tell_at - time.monotonic()))}
            if printed in ready:
                data = _read(printed)
                log.add(decoder.decode(data or b""))
                if data == b"":
                    selector.unregister(printed)
            if ear in ready:
                data = _read(ear)
                frames += data or b""
                listening = data != b""
                for message in _unpacked(frames):
                    if message[0] == "progress":
                        told = [one for one in told if one[0] != "progress"]
                        told.append(message)
                    else:
                        last = message
            if time.monotonic() >= tell_at:
                tell_at = time.monotonic() + TELL_S
                if told or log.size:
                    yield [*_taken(log), *told]
                    told, log = [], RunLog()
    # Not reaped yet: until then nobody else can get the number that its group is ended by.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    while data := _read(printed):
        log.add(decoder.decode(data))
    yield [*_taken(log), *told, last or ("crashed", _ending(process))]


def _taken(log: RunLog) -> list[Message]:
    return [("log", log.text())] if log.size else []


def _read(descriptor: int) -> bytes | None:
    """None: nothing now; b"": nothing any more."""
    try:
        return os.read(descriptor, 2**16)
    except BlockingIOError:
        return None


def _unpacked(frames: bytearray) -> Iterator[Message]:
    """Take every whole message off the beginning."""
    while len(frames) >= LENGTH.size:
        end = LENGTH.size + LENGTH.unpack_from(frames)[0]
        if len(frames) < end:
            return
        message = pickle.loads(bytes(frames[LENGTH.size : end]))
        del frames[:end]
        yield message


def _ending(process: subprocess.Popen[bytes]) -> str:
    """How a process ended that said nothing of it."""
    code = process.wait()
    if code >= 0:
        return f"The trainer's process ended by itself with exit code {code}."
    name = signal.Signals(-code).name
    memory = ": the machine may have run out of memory" if name == "SIGKILL" else ""
    return f"The trainer's process was ended by {name}{memory}."
