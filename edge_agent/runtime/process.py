"""The agent's end of one worker process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_agent import sandbox
from edge_agent.delegates import DelegateSpec
from edge_agent.runtime import frames
from edge_agent.runtime.settings import RuntimeSettings
from oip.signature import TensorSpec

Array = frames.Array

_STOP_S = 2.0


class WorkerEnded(Exception):
    """The worker is gone; the text is one clause that says how, and what it was at."""


class LoadRefused(Exception):
    """The worker lives and refuses the artifact; the text is one clause that says why."""


class RunRefused(Exception):
    """The model could not compute a request; `shape` when it cannot take its inputs' shapes."""

    def __init__(self, shape: bool) -> None:
        super().__init__()
        self.shape = shape


@dataclass(slots=True)
class Loaded:
    """What a worker said of the model that it loaded; the delegate's part may change while it runs."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: int
    delegate: str
    taken: int
    degraded: str
    stateful: bool
    """Each run takes a new interpreter."""


class Worker:
    """One process with one interpreter. One call at a time; `ended` is set when the process is gone."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._stage = "starting"
        self.loaded: Loaded | None = None
        self.ended = asyncio.Event()
        self.how = ""
        self.on_end: Callable[[], None] | None = None
        """Called when the process is gone, while the worker is not closed."""
        self._watch = asyncio.create_task(self._wait(), name="tidegate worker watch")

    @classmethod
    async def start(cls, settings: RuntimeSettings) -> Worker:
        """Raises WorkerEnded when no process can be started."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-m", settings.worker),
                    *(str(theirs.fileno()), str(os.getpid()), str(settings.memory_mb)),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    env=sandbox.environment(),
                )
        except BaseException as fault:
            ours.close()
            if isinstance(fault, OSError):
                raise WorkerEnded("no worker process could be started") from fault
            raise
        try:
            ours.setblocking(False)
            reader, writer = await asyncio.open_connection(sock=ours, limit=2**20)
        except BaseException:
            ours.close()
            process.kill()
            await asyncio.shield(process.wait())
            raise
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stage(self) -> str:
        """What it said last that it is at."""
        return self._stage

    async def load(
        self, path: Path, golden: Path | None, chain: Sequence[DelegateSpec], threads: int
    ) -> Loaded:
        """Check, load and try an artifact. Raises LoadRefused, WorkerEnded."""
        order = {
            "op": "load",
            "path": str(path),
            "golden": "" if golden is None else str(golden),
            "chain": [spec.to_dict() for spec in chain],
            "threads": threads,
        }
        await self._send(order, {})
        while True:
            header, _ = await self._receive()
            match header:
                case {"event": "stage", "stage": str(stage)}:
                    self._stage = stage
                case {"event": "refused", "reason": str(reason)}:
                    raise LoadRefused(reason)
                case {"event": "loaded"}:
                    try:
                        self.loaded = _loaded(header)
                    except (KeyError, TypeError, ValueError):
                        raise await self._broken() from None
                    self._stage = "answering"
                    return self.loaded
                case _:
                    raise await self._broken()

    async def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, read-only. Raises RunRefused, WorkerEnded.

        When the call is cancelled, the worker's answer is still due: the worker must not be asked again.
        """
        await self._send({"op": "run"}, inputs)
        header, outputs = await self._receive()
        match header:
            case {"event": "failed", "shape": bool(shape)}:
                raise RunRefused(shape)
            case {"event": "ran"}:
                pass
            case _:
                raise await self._broken()
        if "delegate" in header and self.loaded is not None:
            try:
                self.loaded.delegate = str(header["delegate"])
                self.loaded.taken = int(header["taken"])
                self.loaded.degraded = str(header["degraded"])
            except (KeyError, TypeError, ValueError):
                raise await self._broken() from None
        return outputs

    async def measure(self, golden: Path | None, runs: int, seconds: float) -> list[float]:
        """How long each of so many runs on the golden inputs took, in seconds; fewer where they take longer
        than `seconds` together, none where the model fails. Raises WorkerEnded."""
        order = {"op": "measure", "golden": str(golden or ""), "runs": runs, "seconds": seconds}
        await self._send(order, {})
        match (await self._receive())[0]:
            case {"event": "measured", "seconds": list(took)} if all(isinstance(s, float) for s in took):
                return took
            case _:
                raise await self._broken()

    async def close(self) -> None:
        """End the process and all that it started. Never raises."""
        self.on_end = None
        self._writer.close()
        try:
            # Not wait_for, which may lose a cancellation that comes with the end.
            async with asyncio.timeout(0 if self.loaded is None else _STOP_S):
                await self.ended.wait()
        except TimeoutError:
            self.kill()
        finally:
            if not self.ended.is_set():
                self.kill()
            await asyncio.shield(self._watch)

    def kill(self) -> None:
        """Its process group, at once."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _wait(self) -> None:
        code = await self._process.wait()
        self.how = _ending(code)
        self._writer.close()
        self.ended.set()
        if self.on_end is not None:
            self.on_end()

    async def _send(self, header: frames.Header, tensors: Mapping[str, Array]) -> None:
        try:
            for piece in frames.encode(header, tensors):
                self._writer.write(piece)
            await self._writer.drain()
        except (OSError, RuntimeError):
            raise await self._gone() from None

    async def _receive(self) -> tuple[frames.Header, dict[str, Array]]:
        try:
            header, payload = frames.sizes(await self._reader.readexactly(frames.PREFIX.size))
            text = await self._reader.readexactly(header)
            return frames.decode(text, await self._reader.readexactly(payload) if payload else b"")
        except (asyncio.IncompleteReadError, OSError):
            raise await self._gone() from None
        except frames.BrokenFrame:
            raise await self._broken() from None

    async def _gone(self) -> WorkerEnded:
        """How it ended, which the kernel says a moment after its socket closed."""
        self.kill()
        await self.ended.wait()
        return WorkerEnded(f"its worker {self.how} while {self._stage}")

    async def _broken(self) -> WorkerEnded:
        """It does not keep to the frames: whatever runs in it is not to be trusted any longer."""
        self.kill()
        await self.ended.wait()
        return WorkerEnded(f"its worker answered nonsense while {self._stage}")


def _loaded(header: Mapping[str, Any]) -> Loaded:
    def specs(entries: Any) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(str(name), str(kind), tuple(shape)) for name, kind, shape in entries)

    return Loaded(
        specs(header["inputs"]),
        specs(header["outputs"]),
        int(header["nodes"]),
        str(header["delegate"]),
        int(header["taken"]),
        str(header["degraded"]),
        bool(header["stateful"]),
    )


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
