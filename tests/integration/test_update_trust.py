"""What a device trusts: the root that it was given or found first, its rotation, and its own files."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio
from securesystemslib.signer import CryptoSigner

from edge_agent.ports import Hub
from edge_agent.update.trust import Trust, Unverified, standing
from oip.errors import OipError
from oip.reasons import Reason
from tests.support.signed import HERE, Repository
from tests.support.waiting import until

NAME = "digits/1/tflite"


@pytest.fixture
def repo() -> Repository:
    made = Repository()
    made.add("digits", "1", b"one")
    return made


@pytest_asyncio.fixture
async def trust(tmp_path: Path) -> AsyncIterator[Trust]:
    made = Trust(tmp_path / "trust", lambda: datetime(1970, 1, 2, 3, 4, tzinfo=UTC))
    yield made
    await made.close()


async def nothing(digest: str, offset: int) -> AsyncGenerator[bytes, None]:
    raise AssertionError("nothing is fetched")
    yield b""


def port(repo: Repository, root: bytes | None = None, pinned: list[bytes] | None = None) -> Hub:
    keep = (lambda root: None) if pinned is None else pinned.append
    return Hub(nothing, repo.metadata, HERE, None, repo.root if root is None else root, keep)


async def order(trust: Trust, hub: Hub, name: str = NAME) -> int:
    found = (await trust.look_up([name], hub))[name]
    assert found is not None
    return found.custom["order"]


async def test_what_is_signed_is_told_and_nothing_else(trust: Trust, repo: Repository):
    repo.add("digits", "2", b"twice", places="none")
    found = await trust.look_up([NAME, "digits/2/tflite", "digits/3/tflite"], port(repo))
    assert found[NAME] is not None
    assert found["digits/3/tflite"] is None
    two = found["digits/2/tflite"]
    assert two is not None
    assert (two.digest, two.size) == (f"sha256:{hashlib.sha256(b'twice').hexdigest()}", 5)
    assert two.custom == {
        "model": "digits",
        "version": "2",
        "format": "tflite",
        "order": 2,
        "places": "none",
    }


async def test_the_first_root_that_is_found_is_kept_and_no_other_is_taken(trust: Trust, repo: Repository):
    pinned: list[bytes] = []
    assert await order(trust, port(repo, b"", pinned)) == 1
    assert pinned == [repo.root]
    stranger = Repository()
    stranger.add("digits", "1", b"evil")
    for root in (b"", repo.root):
        with pytest.raises(Unverified, match=r"^'timestamp.json' of the signed metadata is not signed by"):
            await trust.look_up([NAME], port(stranger, root, pinned))
    assert pinned == [repo.root]


async def test_a_first_root_that_cannot_be_kept_is_not_trusted(trust: Trust, repo: Repository):
    def full(root: bytes) -> None:
        raise OSError("no room")

    hub = Hub(nothing, repo.metadata, HERE, None, b"", full)
    for _ in range(2):
        with pytest.raises(Unverified, match="its root of trust is not kept"):
            await trust.look_up([NAME], hub)


@pytest.mark.parametrize("first", [b"", b"{}", b"null"])
async def test_a_first_root_that_is_none_is_not_kept(trust: Trust, repo: Repository, first: bytes):
    pinned: list[bytes] = []
    repo.files["1.root.json"] = first
    with pytest.raises(Unverified, match=r"^The root of trust of this device cannot be read: enrol it anew"):
        await trust.look_up([NAME], port(repo, b"", pinned))
    assert pinned == []


async def test_roots_rotate_one_after_the_other(trust: Trust, repo: Repository):
    assert await order(trust, port(repo)) == 1
    first = dict(repo.signers)
    for _ in range(3):
        before = repo.signers["root"]
        repo.signers = {role: CryptoSigner.generate_ed25519() for role in repo.signers}
        repo.publish_root(before)
    repo.add("digits", "2", b"two")
    assert await order(trust, port(repo), "digits/2/tflite") == 2
    # The keys of before sign nothing any more.
    repo.signers = first
    repo.add("digits", "3", b"three")
    with pytest.raises(Unverified, match="is not signed by a key that this device trusts"):
        await trust.look_up(["digits/3/tflite"], port(repo))


async def test_a_device_that_missed_rotations_catches_up_from_its_first_root(
    repo: Repository, tmp_path: Path
):
    before = repo.signers["root"]
    repo.signers["root"] = CryptoSigner.generate_ed25519()
    repo.publish_root(before)
    repo.publish()
    trust = Trust(tmp_path / "trust")
    assert await order(trust, port(repo)) == 1
    await trust.close()
    found = standing(tmp_path / "trust", b"")
    assert found is not None
    assert (found.root, found.signed_until) == (2, found.root_until)


@pytest.mark.parametrize(
    "damage",
    [
        "a file in its place",
        "no history but a file",
        "a folder for the timestamp",
        "a folder for a root",
        "a folder for root.json",
        "nonsense in every file",
        "empty files",
        "files of another gateway",
        "what a kill left",
    ],
)
async def test_a_damaged_folder_locks_no_device_out(repo: Repository, tmp_path: Path, damage: str):
    folder = tmp_path / "trust"
    trust = Trust(folder)
    assert await order(trust, port(repo)) == 1
    match damage:
        case "a file in its place":
            emptied(folder)
            folder.rmdir()
            folder.write_bytes(b"x")
        case "no history but a file":
            emptied(folder)
            (folder / "root_history").write_bytes(b"x")
        case "a folder for the timestamp":
            (folder / "timestamp.json").unlink()
            (folder / "timestamp.json" / "x").mkdir(parents=True)
        case "a folder for a root":
            (folder / "root_history" / "2.root.json").mkdir()
        case "a folder for root.json":
            (folder / "root.json").unlink()
            (folder / "root.json").mkdir()
        case "nonsense in every file" | "empty files":
            for path in (*folder.glob("*.json"), *folder.glob("root_history/*")):
                path.write_bytes(b"\xff[[[" if "nonsense" in damage else b"")
        case "files of another gateway":
            stranger = Repository()
            stranger.add("digits", "1", b"evil")
            before = stranger.signers["root"]
            stranger.publish_root(before)
            for name in ("timestamp", "1.snapshot", "1.targets"):
                path = folder / f"{name.rpartition('.')[2]}.json"
                path.write_bytes(stranger.files[f"{name}.json"])
            (folder / "root_history" / "2.root.json").write_bytes(stranger.files["2.root.json"])
        case "what a kill left":
            (folder / "tmpabcdef").write_bytes(b"x")
    repo.add("digits", "2", b"two")
    assert await order(trust, port(repo), "digits/2/tflite") == 2
    await trust.close()
    assert not list(folder.glob("tmp*"))
    assert standing(folder, repo.root) is not None


def emptied(folder: Path) -> None:
    for path in (*folder.glob("root_history/*"), *folder.glob("*")):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


async def test_an_older_timestamp_is_refused_after_a_restart(repo: Repository, tmp_path: Path):
    old = dict(repo.files)
    repo.add("digits", "2", b"two")
    first = Trust(tmp_path / "trust")
    await first.look_up([NAME], port(repo))
    await first.close()
    repo.files = old
    again = Trust(tmp_path / "trust")
    with pytest.raises(Unverified, match=r"^'timestamp.json' .* is older than what this device has seen"):
        await again.look_up([NAME], port(repo))
    await again.close()


async def test_an_expired_root_names_the_clock(trust: Trust, repo: Repository):
    repo.expires["root"] = datetime(2020, 1, 1, tzinfo=UTC)
    repo.publish_root()
    with pytest.raises(Unverified) as caught:
        await trust.look_up([NAME], port(repo))
    assert str(caught.value) == (
        "The root of the signed metadata has expired by the clock of this device, which says 1970-01-02 03:04"
        " UTC: either the clock is wrong, or the gateway signs no more."
    )


async def test_those_who_ask_together_share_one_refresh_and_each_learns_of_its_fault(
    trust: Trust, repo: Repository
):
    found = await asyncio.gather(*(order(trust, port(repo)) for _ in range(50)))
    assert found == [1] * 50
    assert repo.asked.count("timestamp.json") <= 2

    def away(name: str) -> None:
        raise OipError(Reason.UNAVAILABLE, "the hub is gone")

    repo.before, repo.asked = away, []
    ended = await asyncio.gather(
        *(trust.look_up([NAME], port(repo)) for _ in range(50)), return_exceptions=True
    )
    assert {str(fault) for fault in ended} == {"The hub cannot give the signed metadata."}
    assert len(repo.asked) <= 2
    repo.before = lambda name: None
    assert await order(trust, port(repo)) == 1


async def test_nothing_is_left_running_when_it_closes_amid_a_silent_download(
    repo: Repository, tmp_path: Path
):
    silent = asyncio.Event()

    async def metadata(name: str) -> AsyncGenerator[bytes, None]:
        silent.set()
        await asyncio.Event().wait()
        yield b""

    trust = Trust(tmp_path / "trust")
    asking = asyncio.create_task(trust.look_up([NAME], Hub(nothing, metadata, HERE, None, repo.root)))
    await silent.wait()
    await trust.close()
    with pytest.raises(Unverified):
        await asking
    assert len(asyncio.all_tasks()) == 1


async def test_one_who_is_cancelled_leaves_the_next_a_whole_client(trust: Trust, repo: Repository):
    began, go = asyncio.Event(), asyncio.Event()

    async def slow(name: str) -> AsyncGenerator[bytes, None]:
        began.set()
        await go.wait()
        async for piece in repo.metadata(name):
            yield piece

    hub = Hub(nothing, slow, HERE, None, repo.root)
    first = asyncio.create_task(trust.look_up([NAME], hub))
    await began.wait()
    first.cancel()
    second = asyncio.create_task(order(trust, hub))
    await until(first.done)
    go.set()
    assert await second == 1


async def test_a_folder_that_cannot_be_written_is_said(repo: Repository, tmp_path: Path):
    (tmp_path / "state").write_bytes(b"a file where a folder should be")
    trust = Trust(tmp_path / "state" / "trust")
    with pytest.raises(Unverified, match=r"^The device's disk cannot be written\.$"):
        await trust.look_up([NAME], port(repo))
    await trust.close()
    assert os.listdir(tmp_path) == ["state"]
