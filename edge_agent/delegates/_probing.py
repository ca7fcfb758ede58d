"""How each delegate does on this machine, tried on a small bundled model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from edge_agent import sandbox
from edge_agent.delegates._interface import DEFAULT_CHAIN, DelegateFailed, DelegateSpec

PROBE_MODEL = Path(__file__).with_name("probe.tflite")
"""Convolutions, pooling, dense layers and softmax in FP32, and a running sum, which few delegates take."""
MEMORY_MB = 2048


def probe(specs: Sequence[DelegateSpec] = DEFAULT_CHAIN, timeout_s: float = 30.0) -> list[dict[str, Any]]:
    """One entry for each delegate, in order: `delegate` (its name), `kind`, `available`, `library` (its
    file's name, "" for none), `version` ("" when it does not say), `reason` (why it is not available,
    one sentence), `nodes_taken` of `nodes` of the bundled model. Blocks; each is tried in a process
    of its own, which gets `timeout_s`."""
    return [_probe(spec, timeout_s) for spec in specs]


def _probe(spec: DelegateSpec, timeout_s: float) -> dict[str, Any]:
    found: dict[str, Any] = {
        "delegate": spec.name,
        "kind": spec.kind,
        "available": False,
        "library": PurePath(spec.library).name,
        "version": "",
        "reason": "",
        "nodes_taken": 0,
        "nodes": 0,
    }
    command = [sys.executable, "-m", "edge_agent.delegates._probing", str(os.getpid())]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(spec.to_dict()).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            env=sandbox.environment(),
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {**found, "reason": f"Delegate {spec.name} did not answer within {timeout_s:g} s."}
    try:
        # A library may have printed before.
        return {**found, **json.loads(done.stdout.splitlines()[-1])}
    except (ValueError, IndexError):
        return {**found, "reason": f"Delegate {spec.name} ended its process, with status {done.returncode}."}


def _tried(spec: DelegateSpec) -> dict[str, Any]:
    from edge_agent.delegates._discovery import kinds
    from edge_agent.delegates._nodes import count_taken

    delegate = kinds()[spec.kind](spec)
    found: dict[str, Any] = {"version": delegate.version()}
    try:
        interpreter = delegate.interpreter(str(PROBE_MODEL), 1)
        taken, nodes = count_taken(interpreter)
        interpreter.invoke()
    except DelegateFailed as fault:
        return {**found, "reason": f"Delegate {spec.name}: {fault}."}
    except (RuntimeError, ValueError):
        return {**found, "reason": f"Delegate {spec.name} failed while running the bundled model."}
    return {**found, "available": True, "nodes_taken": taken, "nodes": nodes}


def _main() -> None:
    sandbox.end_with(int(sys.argv[1]))
    sandbox.limit_memory(MEMORY_MB)
    spec = DelegateSpec(**json.loads(sys.stdin.read()))
    sys.stdout.write(f"\n{json.dumps(_tried(spec))}\n")
    sys.stdout.flush()
    # A library's own end must not spoil what it was asked.
    os._exit(0)


if __name__ == "__main__":
    _main()
