"""What `doctor` looks at, and what `run` will not start without."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from edge_agent.delegates import DelegateSpec, probe
from edge_agent.state import MODELS, StateError, read_credential, read_enrolment

MIN_FREE_MB = 200
"""A model, its predecessor and a download in progress have to fit."""
_DIAL_TIMEOUT_S = 2.0


class Check(NamedTuple):
    """One thing that was looked at. `detail` is a sentence; where it is not `ok`, it says what to do."""

    name: str
    ok: bool
    detail: str


def runtime() -> Check:
    """Whether tflite-runtime can work here. With numpy 2 it imports, and then fails at its first model."""
    name = "runtime"
    try:
        numpy = metadata.version("numpy")
        tflite = metadata.version("tflite-runtime")
    except metadata.PackageNotFoundError as missing:
        return Check(name, False, f"{missing.name} is not installed: pip install 'tidegate[agent]'")
    if not numpy.split(".")[0].isdigit() or int(numpy.split(".")[0]) >= 2:
        return Check(
            name, False, f"numpy {numpy} is installed, and tflite-runtime needs pip install 'numpy<2'"
        )
    try:
        import tflite_runtime.interpreter  # pyright: ignore[reportUnusedImport] # noqa: F401
    except (ImportError, OSError, AttributeError, SystemError) as error:
        what = type(error).__name__
        return Check(
            name, False, f"tflite-runtime {tflite} does not load ({what}): pip install 'tidegate[agent]' anew"
        )
    return Check(name, True, f"tflite-runtime {tflite} with numpy {numpy}")


def state(folder: Path) -> Iterator[Check]:
    """The device's folder: that it can be written, its credential, who the device is."""
    if not folder.is_dir():
        yield Check("state", False, "the folder is not there: tidegate-agent run --state makes it")
        return
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield Check("state", False, "the folder cannot be written by this user")
        return
    running = "an agent runs on it" if _locked(folder / "agent.lock") else "no agent runs on it"
    yield Check("state", True, f"the folder can be written, and {running}")
    try:
        made = read_credential(folder) is not None
        open_to_others = made and (folder / "credential").stat().st_mode & 0o077
    except StateError as error:
        yield Check("credential", False, str(error))
    else:
        if open_to_others:
            yield Check("credential", False, "other users can read it: chmod 600, and revoke it if they did")
        else:
            yield Check("credential", True, "made" if made else "made at the first run")
    try:
        enrolment = read_enrolment(folder)
    except StateError as error:
        yield Check("enrolment", False, str(error))
        return
    if enrolment is None:
        yield Check("enrolment", False, "not enrolled: run once with --token, from tidegate devices token")
    else:
        yield Check("enrolment", True, f"device {enrolment.device} at site {enrolment.site}")


def trust(folder: Path) -> Iterator[Check]:
    """How the device's trust in signed updates stands, once it has enrolled."""
    from edge_agent.update.device import TRUST
    from edge_agent.update.trust import standing

    try:
        enrolment = read_enrolment(folder) if folder.is_dir() else None
    except StateError:
        return
    if enrolment is None:
        return
    try:
        found = standing(folder / MODELS / TRUST, enrolment.root)
    except ValueError:
        yield Check("trust", False, "the root of trust cannot be read: enrol anew, with another --state")
        return
    if found is None:
        yield Check("trust", True, "no root of trust yet: the hub's first update brings it")
        return
    now = datetime.now(UTC)
    root = f"root version {found.root}, good until {found.root_until:%Y-%m-%d}"
    if found.root_until <= now:
        what = f"{root}, has expired by this device's clock, which says {now:%Y-%m-%d %H:%M} UTC"
        yield Check("trust", False, f"{what}: set the clock, or have the gateway sign a new root")
    elif found.signed_until is None:
        yield Check("trust", True, f"{root}; no signed metadata has come yet")
    else:
        over = "" if found.signed_until > now else ", so the next update has to bring newer"
        yield Check(
            "trust", True, f"{root}; signed metadata good until {found.signed_until:%Y-%m-%d %H:%M} UTC{over}"
        )


def disk(folder: Path) -> Check:
    """Room for models where the folder is, or will be."""
    at = next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/"))
    free = shutil.disk_usage(at).free // 2**20
    if free < MIN_FREE_MB:
        return Check("disk", False, f"{free} MiB are free, and updates need {MIN_FREE_MB}: make room")
    return Check("disk", True, f"{free} MiB are free")


def hubs(addresses: Sequence[str]) -> Iterator[Check]:
    """Whether something listens at each hub's address."""
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _DIAL_TIMEOUT_S).close()
        except OSError as error:
            why = error.strerror or "no answer"
            yield Check(
                "hub", False, f"{address} cannot be reached ({why}): is the gateway up, is a tunnel needed?"
            )
        else:
            yield Check("hub", True, f"{address} can be reached")


def delegates(specs: Sequence[DelegateSpec]) -> Iterator[Check]:
    """Whether each delegate works. One that does not is no fault where a later one does, but it was
    wanted."""
    for entry in probe(specs):
        name = f"delegate {entry['delegate']}"
        if entry["available"]:
            yield Check(name, True, "it works")
        else:
            yield Check(name, False, f"{entry['reason']} Install it, or take it out of agent.yaml")


def _locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
