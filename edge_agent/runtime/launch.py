"""From an artifact on disk to a worker that has it loaded and tried."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_agent.delegates import DelegateSpec
from edge_agent.runtime.process import LoadRefused, Worker, WorkerEnded
from edge_agent.runtime.settings import RuntimeSettings
from oip.signature import Signature


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model's file, already verified, and how it is to be served. `batch_max_size` 0: no batching."""

    model: str
    version: str
    path: Path
    golden: Path | None = None
    batch_max_size: int = 0
    batch_delay_s: float = 0.0


class TrialFailed(Exception):
    """The artifact does not work on this device; the text is one clause that says why."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A worker that answers. `chain` is what is left of the delegates, `skipped` says of each of the
    others why its process did not live."""

    worker: Worker
    chain: tuple[DelegateSpec, ...]
    skipped: tuple[str, ...]


async def launch(artifact: Artifact, settings: RuntimeSettings, chain: Sequence[DelegateSpec]) -> Launched:
    """Start a worker, check, load and try the artifact in it. Raises TrialFailed.

    A delegate that ends its process is left out, and the rest of the chain tried in a new one.
    """
    left, skipped = list(chain), list[str]()
    while True:
        try:
            worker = await _attempt(artifact, settings, left)
        except _Ended as fault:
            guilty = [spec for spec in left if fault.stage.endswith(f"with {spec.name}")]
            if not guilty or guilty[0].kind == "builtin" or len(left) == 1:
                raise TrialFailed(str(fault)) from None
            left.remove(guilty[0])
            skipped.append(f"{guilty[0].name}: {fault}")
            continue
        return Launched(worker, tuple(left), tuple(skipped))


def signature_of(artifact: Artifact, worker: Worker) -> Signature:
    """What the loaded model takes. Raises TrialFailed when it cannot be batched as it is to be."""
    loaded = worker.loaded
    assert loaded is not None
    if artifact.batch_max_size > 1:
        for spec in (*loaded.inputs, *loaded.outputs):
            if spec.shape[:1] != (-1,):
                raise TrialFailed(
                    f"batching is asked for, and tensor {spec.name!r} of the model has no free first dimension"
                )
        return Signature(loaded.inputs, loaded.outputs, artifact.batch_max_size)
    return Signature(loaded.inputs, loaded.outputs)


class _Ended(Exception):
    def __init__(self, text: str, stage: str) -> None:
        super().__init__(text)
        self.stage = stage


async def _attempt(artifact: Artifact, settings: RuntimeSettings, chain: Sequence[DelegateSpec]) -> Worker:
    try:
        worker = await Worker.start(settings)
    except WorkerEnded as fault:
        raise TrialFailed(str(fault)) from None
    try:
        async with asyncio.timeout(settings.trial_timeout_s):
            await worker.load(artifact.path, artifact.golden, chain, settings.threads)
    except TimeoutError:
        await worker.close()
        raise TrialFailed(
            f"it was not ready within {settings.trial_timeout_s:g} s, and was still {worker.stage}"
        ) from None
    except LoadRefused as fault:
        await worker.close()
        raise TrialFailed(str(fault)) from None
    except WorkerEnded as fault:
        await worker.close()
        raise _Ended(str(fault), worker.stage) from None
    except BaseException:
        await worker.close()
        raise
    return worker
