"""`tidegate demo --serve --json` as a user runs it, once for the tests of this folder."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.demo.played import Played, served

STOP_S = 90


@pytest.fixture(scope="package")
def played() -> Iterator[Played]:
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli.main", "demo", "--serve", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        else:
            pytest.fail(f"the demo ended: {process.stderr.read()[-3000:]}")
        cut = next(i for i, line in enumerate(lines) if line.startswith('{"cloud"'))
        document = json.loads("".join(lines[:cut]))
        yield Played(document, served(json.loads(lines[cut])), [t for t in lines if t.startswith("curl")])
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0, process.stderr.read()[-3000:]
    finally:
        if process.poll() is None:
            # Killed, it would leave its gateways and agents behind.
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
