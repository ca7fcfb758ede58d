"""`tidegate-agent` with the worker that also answers for placeholders: `python -m tests.conformance.device_agent`."""

from __future__ import annotations

from functools import partial

from edge_agent import cli, runtime

if __name__ == "__main__":
    runtime.RuntimeSettings = partial(  # type: ignore[misc, assignment]
        runtime.RuntimeSettings, worker="tests.conformance.device_worker"
    )
    cli.main()
