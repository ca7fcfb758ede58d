"""The device's folder: the credential, the lock, and what a full disk or a damaged file does."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from edge_agent import checks
from edge_agent.state import DeviceState, Enrolment, StateError, read_enrolment
from tests.support.signed import Repository


def test_a_credential_is_made_before_enrolment_and_kept(tmp_path: Path):
    with DeviceState(tmp_path / "new") as state:
        made = state.credential
        assert len(bytes.fromhex(made)) == 32
        assert state.enrolment is None
        assert state.credential_sha256 == hashlib.sha256(made.encode()).digest()
    mode = stat.S_IMODE((tmp_path / "new" / "credential").stat().st_mode)
    assert mode == 0o600
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    with DeviceState(tmp_path / "new") as again, DeviceState(tmp_path / "other") as other:
        assert again.credential == made
        assert other.credential != made


def test_who_it_is_survives(tmp_path: Path):
    enrolment = Enrolment("cam-7a", "plant-7", {"soc": "imx8mp"})
    with DeviceState(tmp_path) as state:
        state.enrol(enrolment)
    with DeviceState(tmp_path) as state:
        assert state.enrolment == enrolment


def test_the_first_root_of_trust_is_kept(tmp_path: Path):
    with DeviceState(tmp_path) as state:
        state.pin(b"before it has enrolled")
        state.enrol(Enrolment("cam-7a", "plant-7", {"soc": "imx8mp"}))
        state.pin(b"first")
        state.pin(b"second")
    with DeviceState(tmp_path) as state:
        assert state.enrolment == Enrolment("cam-7a", "plant-7", {"soc": "imx8mp"}, b"first")


def test_an_enrolment_from_before_there_was_a_root(tmp_path: Path):
    (tmp_path / "enrolment.json").write_bytes(b'{"device": "cam-7a", "site": "plant-7", "labels": {}}')
    assert read_enrolment(tmp_path) == Enrolment("cam-7a", "plant-7")


def test_two_agents_cannot_share_a_folder(tmp_path: Path):
    with DeviceState(tmp_path), pytest.raises(StateError, match="another agent runs on this state folder"):
        DeviceState(tmp_path)
    DeviceState(tmp_path).close()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("credential", b""),
        ("credential", b"\xff\xfe"),
        ("credential", b"0" * 63),
        ("enrolment.json", b""),
        ("enrolment.json", b'{"device": "cam-7a"}'),
        ("enrolment.json", b'{"device": "a b", "site": "s", "labels": {}}'),
        ("enrolment.json", b'{"device": "a", "site": 7, "labels": {}}'),
        ("enrolment.json", b'{"device": "a", "site": "s", "labels": {"k": 1}}'),
        ("enrolment.json", b'{"device": "a", "site": "s", "labels": {}, "root": "*"}'),
        ("enrolment.json", b'{"device": "a", "site": "s", "labels": {}, "root": 1}'),
        ("enrolment.json", b"[]"),
    ],
)
def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path, name: str, content: bytes):
    with DeviceState(tmp_path) as state:
        state.enrol(Enrolment("cam-7a", "plant-7"))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StateError, match=f"{name} in the state folder is damaged"):
        DeviceState(tmp_path)
    assert (tmp_path / name).read_bytes() == content


def test_a_lost_credential_of_an_enrolled_device_is_not_made_anew(tmp_path: Path):
    with DeviceState(tmp_path) as state:
        state.enrol(Enrolment("cam-7a", "plant-7"))
    (tmp_path / "credential").unlink()
    with pytest.raises(StateError, match="credential is missing"):
        DeviceState(tmp_path)
    assert not (tmp_path / "credential").exists()


def test_a_full_disk_leaves_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with DeviceState(tmp_path) as state:
        state.enrol(Enrolment("cam-7a", "plant-7"))
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

        def full(number: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StateError, match=r"enrolment\.json cannot be written .* No space left"):
            state.enrol(Enrolment("other", "plant-9"))
        assert state.enrolment == Enrolment("cam-7a", "plant-7")
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_a_power_cut_left_is_removed(tmp_path: Path):
    (tmp_path / ".x.part").write_bytes(b"half")
    DeviceState(tmp_path).close()
    assert not (tmp_path / ".x.part").exists()


def test_doctor_sees_the_folder(tmp_path: Path):
    def found() -> dict[str, tuple[bool, str]]:
        return {check.name: (check.ok, check.detail) for check in checks.state(tmp_path / "s")}

    assert found() == {"state": (False, "the folder is not there: tidegate-agent run --state makes it")}
    with DeviceState(tmp_path / "s") as state:
        assert found()["state"] == (True, "the folder can be written, and an agent runs on it")
        assert found()["enrolment"][0] is False
        state.enrol(Enrolment("cam-7a", "plant-7"))
    assert found()["state"][1].endswith("no agent runs on it")
    assert found()["enrolment"] == (True, "device cam-7a at site plant-7")
    (tmp_path / "s" / "credential").chmod(0o644)
    assert found()["credential"] == (False, "other users can read it: chmod 600, and revoke it if they did")


def test_doctor_says_how_trust_stands(tmp_path: Path):
    def found() -> tuple[bool, str]:
        (check,) = checks.trust(tmp_path)
        return check.ok, check.detail

    assert list(checks.trust(tmp_path / "missing")) == []
    repo = Repository(expires={"root": datetime(2099, 1, 2, tzinfo=UTC)})
    repo.add("digits", "1", b"one")
    with DeviceState(tmp_path) as state:
        assert list(checks.trust(tmp_path)) == []
        state.enrol(Enrolment("cam-7a", "plant-7"))
        assert found() == (True, "no root of trust yet: the hub's first update brings it")
        state.pin(repo.root)
        assert found() == (True, "root version 1, good until 2099-01-02; no signed metadata has come yet")
        folder = tmp_path / "models" / "trust"
        folder.mkdir(parents=True)
        (folder / "timestamp.json").write_bytes(repo.files["timestamp.json"])
        assert found()[1].startswith("root version 1, good until 2099-01-02; signed metadata good until 20")
        repo.expires["timestamp"] = datetime(2020, 1, 2, 3, 4, tzinfo=UTC)
        repo.stamp()
        (folder / "timestamp.json").write_bytes(repo.files["timestamp.json"])
        ends = "signed metadata good until 2020-01-02 03:04 UTC, so the next update has to bring newer"
        assert found() == (True, f"root version 1, good until 2099-01-02; {ends}")
        repo.expires["root"] = datetime(2020, 1, 2, tzinfo=UTC)
        repo.publish_root()
        (folder / "root.json").write_bytes(repo.files["2.root.json"])
        ok, detail = found()
        assert not ok
        assert detail.startswith("root version 2, good until 2020-01-02, has expired by this device's clock")
        (folder / "root.json").write_bytes(b"{")
        assert found() == (False, "the root of trust cannot be read: enrol anew, with another --state")


def test_doctor_tells_of_a_numpy_that_the_runtime_cannot_use(monkeypatch: pytest.MonkeyPatch):
    assert checks.runtime().ok
    monkeypatch.setattr(checks.metadata, "version", lambda name: "2.1.0")
    assert checks.runtime() == (
        "runtime",
        False,
        "numpy 2.1.0 is installed, and tflite-runtime needs pip install 'numpy<2'",
    )
