"""The worker process: `python -m edge_agent.runtime.worker FD PARENT MEMORY_MB`.

Reads frames from the socket FD and answers each; ends when it closes. The first frame is `load`; what it
names is checked, loaded and tried here, stage by stage, so that the agent knows what it was at when it
ended. Then every `run` is one request.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_agent import sandbox

if TYPE_CHECKING:
    from edge_agent.runtime.engine import Engine

REFUSED_EXIT = 3


class Worker:
    """One model behind one socket."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._shown = ("", "")
        self._loaded = False

    def serve(self) -> int:
        header, _ = self._read() or ({}, {})
        if header.get("op") != "load":
            return 0
        engine = self.load(header)
        if engine is None:
            return REFUSED_EXIT
        while (frame := self._read()) is not None:
            if frame[0].get("op") == "measure":
                self._measure(engine, frame[0])
            else:
                self._answer(engine, *frame)
            # What the next caller needs new is made while none waits for it.
            engine.refresh()
        return 0

    def load(self, header: Mapping[str, Any]) -> Engine | None:
        """What runs the file that `header` names, once the agent has been told of it; None once it has been
        told why not."""
        # Imported behind the memory limit: native code belongs under it.
        from edge_agent.delegates import DelegateSpec
        from edge_agent.runtime.engine import Engine, EngineFailed, RunFailed, zeros
        from edgewire.modelfile import BadModel, read_model
        from oip.golden import GoldenFailed, check_finite, check_golden, read_golden

        chain = [DelegateSpec(**entry) for entry in header["chain"]]
        try:
            self._say("reading it")
            facts = read_model(
                Path(header["path"]).read_bytes(), any_custom=any(s.kind == "external" for s in chain)
            )
            engine = Engine(header["path"], chain, header["threads"], stateful=facts.stateful, say=self._say)
            self._say(f"trying it with {engine.delegate}")
            if header["golden"]:
                cases, tolerance = read_golden(Path(header["golden"]))
                check_golden(cases, tolerance, engine.input_specs, engine.run)
            else:
                check_finite(engine.run(zeros(engine.input_specs)))
            engine.refresh()
        except (BadModel, GoldenFailed) as fault:
            return self._refuse(str(fault))
        except EngineFailed as fault:
            return self._refuse(f"no delegate runs the model: {fault}")
        except RunFailed:
            return self._refuse(
                "the model fails on its own golden vectors"
                if header["golden"]
                else "the model fails on zeros"
            )
        except MemoryError:
            return self._refuse("the model needs more memory than a worker may take")
        except OSError:
            return self._refuse("the artifact cannot be read from the device's disk")
        self.loaded(engine, stateful=facts.stateful)
        return engine

    def loaded(self, engine: Engine, *, stateful: bool) -> None:
        """Tell the agent what was loaded."""
        self._loaded = True
        self._write(
            {
                "event": "loaded",
                "inputs": [[s.name, s.datatype, s.shape] for s in engine.input_specs],
                "outputs": [[s.name, s.datatype, s.shape] for s in engine.output_specs],
                "nodes": engine.nodes,
                "stateful": stateful,
                **self._delegate(engine),
            }
        )

    def _answer(self, engine: Engine, header: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        from edge_agent.runtime.engine import RunFailed

        try:
            outputs = engine.run(tensors)
        except RunFailed as fault:
            self._write({"event": "failed", "shape": fault.shape})
            return
        except MemoryError:
            self._write({"event": "failed", "shape": False})
            return
        self._write({"event": "ran", **self._delegate(engine)}, outputs)

    def _measure(self, engine: Engine, header: Mapping[str, Any]) -> None:
        """How long runs on the golden inputs take, one after the other; on zeros where there are none."""
        from edge_agent.runtime.engine import RunFailed, zeros
        from oip.golden import GoldenFailed, inputs_of

        took: list[float] = []
        try:
            given = inputs_of(Path(header["golden"])) if header["golden"] else [zeros(engine.input_specs)]
            until = time.perf_counter() + header["seconds"]
            while len(took) < header["runs"] and (not took or time.perf_counter() < until):
                began = time.perf_counter()
                engine.run(given[len(took) % len(given)])
                took.append(time.perf_counter() - began)
                engine.refresh()
        except (RunFailed, GoldenFailed, MemoryError, OSError):
            took = []
        self._write({"event": "measured", "seconds": took})

    def _delegate(self, engine: Engine) -> dict[str, Any]:
        """What changed of it since it was last said."""
        shown = (engine.delegate, engine.degraded)
        if shown == self._shown:
            return {}
        self._shown = shown
        return {"delegate": engine.delegate, "taken": engine.taken, "degraded": engine.degraded}

    def _refuse(self, reason: str) -> None:
        self._write({"event": "refused", "reason": reason})

    def _say(self, stage: str) -> None:
        """What is about to begin; once it is loaded, an answer is all that the agent waits for."""
        if not self._loaded:
            self._write({"event": "stage", "stage": stage})

    def _write(self, header: dict[str, Any], tensors: Mapping[str, Any] | None = None) -> None:
        from edge_agent.runtime import frames

        for piece in frames.encode(header, tensors):
            self._link.sendall(piece)

    def _read(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """None at the end."""
        from edge_agent.runtime import frames

        prefix = self._exactly(frames.PREFIX.size)
        if prefix is None:
            return None
        header, payload = frames.sizes(prefix)
        text, data = self._exactly(header), self._exactly(payload)
        if text is None or data is None:
            return None
        return frames.decode(text, data)

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            got = self._link.recv_into(view)
            if not got:
                return None
            view = view[got:]
        return bytes(data)


def main(kind: type[Worker] = Worker) -> int:
    """Be a worker of this kind, for as long as the agent wants one; the process's exit status."""
    fd, parent, memory_mb = (int(argument) for argument in sys.argv[1:4])
    sandbox.end_with(parent)
    sandbox.limit_memory(memory_mb)
    with socket.socket(fileno=fd) as link:
        return kind(link).serve()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        sys.exit(main())
