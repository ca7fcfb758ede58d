"""schemathesis, in its own environment, over an HTTP address: what it found wrong.

Its check is ours (tests/support/foreign/schemathesis_hooks.py): whatever fails is told as the project tells it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.environments import environ_of, python_of

LONGEST_S = 900


def faults(
    description: str | Path,
    url: str,
    *,
    checks: Sequence[str] = ("told_in_a_sentence",),
    names: Mapping[str, Sequence[str]] | None = None,
    examples: int = 20,
    seed: int | None = None,
) -> tuple[int, str]:
    """Exit status and output of a run over the OpenAPI document at a path or address, with `examples` requests
    for each of its operations. `names`: path parameter -> values that exist. Raises EnvironmentMissing."""
    program = python_of("schemathesis").with_name("schemathesis")
    command = [str(program), "run", str(description), "--url", url, "--checks", ",".join(checks)]
    command += ["--phases", "examples,coverage,fuzzing", "-n", str(examples), "--continue-on-failure"]
    command += ["--warnings", "off", "--request-timeout", "60"]
    command += [] if seed is None else ["--seed", str(seed)]
    environ = {"SCHEMATHESIS_HOOKS": "schemathesis_hooks", "TIDEGATE_NAMES": json.dumps(names or {})}
    done = subprocess.run(
        command,
        env=environ_of() | environ,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
        cwd=python_of("schemathesis").parent,
    )
    return done.returncode, done.stdout + done.stderr
