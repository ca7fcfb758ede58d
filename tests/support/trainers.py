"""Trainers that do one thing each, for runs in real Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from edgewire.signals import CONFIDENCE
from gateway.core.release import Reference
from gateway.core.training import Golden, TrainedFile, TrainJob, TrainResult

GOLDEN = Golden([({"x": np.ones((1, 2), np.float32)}, {"y": np.ones((1, 2), np.float32)})], 0.1)


def result(**changes: object) -> TrainResult:
    fields: dict[str, object] = {
        "files": {"onnx": TrainedFile(b"a model", GOLDEN)},
        "reference": {CONFIDENCE: Reference((0.5,), (1, 2))},
        "metrics": {"accuracy": 0.5},
    }
    return TrainResult(**{**fields, **changes})  # type: ignore[arg-type]


def echoing(job: TrainJob) -> TrainResult:
    """What it was given comes back: the samples as golden vectors, the rest as the file."""
    for done in (1, 2):
        job.progress(done / 2, f"half {done}")
    print("given", len(job.samples))
    print("to standard error", file=sys.stderr)
    cases = [(dict(sample.inputs), {"label": sample.labels}) for sample in job.samples]
    told = "|".join(
        [job.model, job.version, str(job.data), *(s.id for s in job.samples), *sorted(job.current)]
    )
    content = told.encode() + b"|" + b"".join(job.current.values())
    job.samples[0].inputs["x"][:] = 0  # they are the trainer's own
    return result(
        files={"onnx": TrainedFile(content, Golden(cases, 0.1))}, metrics={"pid": float(os.getpid())}
    )


def noting(job: TrainJob) -> TrainResult:
    """Each attempt leaves a line in the file that `data` names; the third one succeeds."""
    assert job.data is not None
    with Path(job.data).open("a") as file:
        file.write(f"{os.getpid()}\n")
    tries = len(Path(job.data).read_text().splitlines())
    if tries == 1:
        os._exit(3)
    if tries == 2:
        raise RuntimeError("not\nyet\x1b[0m " + "x" * 1000)
    return result()


def staying(job: TrainJob) -> TrainResult:
    """Stays for ever, deaf to SIGTERM and SIGINT, with a child of its own; both leave their numbers."""
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert job.data is not None
    child = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(1)"])
    with Path(job.data).open("a") as file:
        file.write(f"{os.getpid()} {child.pid}\n")
    job.progress(0.5, "staying")
    while True:
        time.sleep(1)


def idle(job: TrainJob) -> TrainResult:
    """Leaves its number and stays for ever."""
    job.progress(0.5, str(os.getpid()))
    while True:
        time.sleep(1)


def greedy(job: TrainJob) -> TrainResult:
    """Takes memory by pieces, more than it may."""
    kept = [np.ones(4 * 2**20, np.uint8) for _ in range(int(job.data or 0) // 4)]
    return result(metrics={"pieces": float(len(kept))})


def killed(job: TrainJob) -> TrainResult:
    os.kill(os.getpid(), 9)
    return result()


def chatty(job: TrainJob) -> TrainResult:
    for number in range(100_000):
        print(f"line {number} " + "x" * 20)
    return result()


def empty(job: TrainJob) -> TrainResult:
    return result(files={})


def staying_first(job: TrainJob) -> TrainResult:
    """Each attempt leaves its number in the file that `data` names. The second one gives a model, every
    other stays for ever."""
    from edgewire.signals import default_edges
    from tests.support.tflite_models import logarithm

    assert job.data is not None
    with Path(job.data).open("a") as file:
        file.write(f"{os.getpid()}\n")
    while len(Path(job.data).read_text().splitlines()) != 2:
        time.sleep(0.1)
    a = np.array([1, 2], np.float32)
    edges = default_edges(CONFIDENCE)
    return result(
        files={"tflite": TrainedFile(logarithm(), Golden([({"x": a}, {"y": np.log(a)})], 0.1))},
        reference={CONFIDENCE: Reference(edges, (1,) * (len(edges) + 1))},
    )
