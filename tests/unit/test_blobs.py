"""The store of released content: whole or not at all, and what its name says."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.core.release import Blob
from gateway.store.blobs import PIECE_BYTES, BlobDamaged, BlobError, BlobMissing, BlobStore, blob_of
from tests.support.processes import source_env

CONTENT = bytes(range(256)) * 3000


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(None, tmp_path)


def stored(folder: Path, blob: Blob) -> Path:
    name = blob.digest.removeprefix("sha256:")
    return folder / "artifacts" / "blobs" / name[:2] / name


def files_in(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


async def read(store: BlobStore, blob: Blob, offset: int = 0) -> bytes:
    return b"".join([piece async for piece in store.stream(blob, offset)])


async def test_content_comes_back_whole_and_from_any_offset(store: BlobStore, tmp_path: Path):
    blob = await store.put(CONTENT)
    assert blob == blob_of(CONTENT)
    assert await store.put(CONTENT) == blob
    (tmp_path / "file").write_bytes(CONTENT)
    assert await store.put_file(tmp_path / "file") == blob
    assert await store.get(blob) == CONTENT
    for offset in (0, 1, PIECE_BYTES, PIECE_BYTES + 1, len(CONTENT) - 1, len(CONTENT)):
        assert await read(store, blob, offset) == CONTENT[offset:]
    assert (await store.has(blob), await store.find(blob.digest)) == (True, blob)


async def test_what_is_not_there_or_no_name_is_told(store: BlobStore):
    gone = Blob("sha256:" + "0" * 64, 3)
    assert (await store.has(gone), await store.find(gone.digest)) == (False, None)
    for digest in ("", "sha256:", "../../etc/passwd", "sha256:" + "A" * 64, "sha256:" + "0" * 64 + "\n"):
        assert await store.find(digest) is None
        with pytest.raises(BlobError, match="no digest"):
            await store.get(Blob(digest, 1))
    with pytest.raises(BlobMissing):
        await store.get(gone)
    with pytest.raises(BlobMissing):
        await read(store, gone)
    for name in ("", "../x", "a/b", ".x", "x" * 200):
        with pytest.raises(BlobError, match="no name"):
            await store.metadata(name)


async def test_damage_is_seen_and_mended_by_the_next_put(store: BlobStore, tmp_path: Path):
    blob = await store.put(CONTENT)
    path = stored(tmp_path, blob)
    path.write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(BlobDamaged):
        await store.get(blob)
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(BlobDamaged):
        await read(store, blob)
    assert not await store.has(blob)
    # As after a power failure in the middle of the first put.
    path.write_bytes(b"")
    assert await store.put(CONTENT) == blob
    assert await store.get(blob) == CONTENT


async def test_metadata_is_replaced_as_a_whole(store: BlobStore):
    assert await store.metadata("timestamp.json") is None
    old, new = b"a" * 200_000, b"b" * 100_000
    await store.put_metadata("timestamp.json", old)
    seen: set[bytes | None] = set()

    async def look() -> None:
        while new not in seen:
            seen.add(await store.metadata("timestamp.json"))

    looking = asyncio.create_task(look())
    for content in [old, new] * 20:
        await store.put_metadata("timestamp.json", content)
    await looking
    assert seen <= {old, new}
    await store.put_metadata("1.root.json", b"r")
    assert await store.metadata_names() == ("1.root.json", "timestamp.json")
    await store.drop_metadata(["timestamp.json", "never.json"])
    assert await store.metadata_names() == ("1.root.json",)


async def test_a_sweep_removes_what_nothing_names_and_is_not_new(store: BlobStore, tmp_path: Path):
    kept, gone = await store.put(b"kept"), await store.put(b"gone")
    await store.put_metadata("timestamp.json", b"t")
    cut_off = stored(tmp_path, gone).with_name("ab#1")
    cut_off.write_bytes(b"half")
    assert await store.sweep([kept], time.time() - 60) == 0
    assert await store.has(gone)
    assert cut_off.exists()
    assert await store.sweep([kept], time.time() + 60) == 1
    assert (await store.has(kept), await store.has(gone), cut_off.exists()) == (True, False, False)
    assert await store.metadata("timestamp.json") == b"t"


FULL = """
import asyncio, resource, sys
from pathlib import Path
from gateway.store.blobs import BlobError, BlobStore
async def main():
    store = BlobStore(None, Path(sys.argv[1]))
    await store.put_metadata("timestamp.json", b"old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    for work in (store.put(b"1" * 200_000), store.put_metadata("timestamp.json", b"2" * 200_000)):
        try:
            await work
        except BlobError as error:
            print(error)
asyncio.run(main())
"""


async def test_a_disk_without_room_leaves_nothing_half_written(store: BlobStore, tmp_path: Path):
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", FULL, str(tmp_path)],
        env=source_env(),
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("the artifact was not stored: file too large\n" * 2, "")
    assert files_in(tmp_path) == ["timestamp.json"]
    assert await store.metadata("timestamp.json") == b"old"
    assert not await store.has(blob_of(b"1" * 200_000))


def test_a_folder_of_ones_own_and_one_that_cannot_be_had(tmp_path: Path):
    blob = asyncio.run(BlobStore(f"file://{tmp_path}/with%20space", tmp_path / "unused").put(b"x"))
    assert (tmp_path / "with space" / "blobs" / blob.digest[7:9] / blob.digest[7:]).read_bytes() == b"x"
    assert not (tmp_path / "unused").exists()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BlobError, match=r"the artifact store .*/file/x cannot be used: not a directory"):
        BlobStore(f"file://{tmp_path}/file/x", tmp_path)


def test_a_bucket_is_opened_without_being_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No S3 is asked in the tests; what the rest is made of is the same."""
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    store = BlobStore("s3://bucket/some/prefix", tmp_path)
    assert str(store._store) == 'S3Store(bucket="bucket", prefix="some/prefix")'
