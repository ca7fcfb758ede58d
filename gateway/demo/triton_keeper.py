"""The process between a launcher and its tritonserver: it outlives neither.

Run as a script with the standard library alone. The first line of stdin is a JSON object
`{command, env, log, work, shm_prefix}`; the lines after it are `stop SECONDS` or `kill`. The end of
stdin means that the launcher is gone, however it died, and kills the server. Prints `{"pid": N}` and
at the end `{"exit": CODE, "tail": "the end of the log"}`, after removing the work folder and the
shared memory of this server.

A death signal set on the server itself would follow the launching *thread*, which may end long
before its process does; a pipe follows the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

TAIL_BYTES = 16384


def main() -> int:
    spec = json.loads(_line())
    log = Path(spec["log"])
    with log.open("ab") as sink:
        begin = sink.tell()
        server = subprocess.Popen(
            spec["command"],
            env=spec["env"],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    print(json.dumps({"pid": server.pid}), flush=True)
    _watch(server)
    _kill_group(server)
    code = server.wait()
    with log.open("rb") as written:
        written.seek(max(begin, log.stat().st_size - TAIL_BYTES))
        tail = written.read().decode(errors="replace")
    shutil.rmtree(spec["work"], ignore_errors=True)
    for region in Path("/dev/shm").glob(spec["shm_prefix"] + "*"):
        region.unlink(missing_ok=True)
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps({"exit": code, "tail": tail}), flush=True)
    return 0


def _watch(server: subprocess.Popen[bytes]) -> None:
    """Return when the server has ended or is to be killed."""
    ended = os.pidfd_open(server.pid)
    while True:
        ready, _, _ = select.select([0, ended], [], [])
        if ended in ready:
            return
        order = _line().split()
        if not order or order[0] == "kill":
            return
        server.terminate()
        select.select([ended], [], [], float(order[1]))
        return


def _kill_group(server: subprocess.Popen[bytes]) -> None:
    """End the server, if it has not ended, and the model processes that it left behind.

    The server is not reaped yet, so its group's number cannot belong to anyone else.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)


def _line() -> str:
    """One line of stdin, unbuffered so that select sees the rest; "" at its end."""
    line = bytearray()
    while byte := os.read(0, 1):
        if byte == b"\n":
            break
        line += byte
    return line.decode()


if __name__ == "__main__":
    sys.exit(main())
