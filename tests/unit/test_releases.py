"""Releases from file to signed target, read as a device reads them: by python-tuf's own client."""

from __future__ import annotations

import asyncio
import io
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tuf.api.exceptions import ExpiredMetadataError, RepositoryError
from tuf.api.metadata import Metadata

from edgewire.targets import target_name
from gateway.control.signing import DAY_S, Signing, SigningError
from gateway.core.config import Config
from gateway.core.release import Blob, Reference, Release, ReleaseFile, Stage
from gateway.store.blobs import BlobError, BlobStore, blob_of
from oip.errors import OipError
from oip.reasons import Reason
from tests.support.hub import edge, hub_config
from tests.support.released import Client, Shop, shop_of
from tests.support.tflite_models import difference, golden_file, logarithm

FILE = target_name("digits", "1", "cameras")


def config_of(
    folder: Path, files: Sequence[tuple[str, bytes]] = (("a.tflite", b"one"),), **more: Any
) -> Config:
    """Model digits, with a variant for each file on a group of its own: cameras, doors."""
    groups = [edge(name, site=name) for name in ("cameras", "doors")]
    variants: list[dict[str, Any]] = []
    for group, (name, content) in zip(groups, files, strict=False):
        (folder / name).write_bytes(content)
        variants.append({"endpoint": group.name, "artifact": str(folder / name)} | more)
    return hub_config(groups, [{"name": "digits", "variants": variants}])


def second_case_alone() -> bytes:
    file, a = io.BytesIO(), np.ones(2, np.float32)
    arrays: dict[str, Any] = {"tolerance": np.float64(0.1), "1/input/a": a, "1/output/c": a}
    np.savez(file, **arrays)
    return file.getvalue()


@pytest.fixture
def vectors(tmp_path: Path) -> bytes:
    a = np.array([1, 2], np.float32)
    return golden_file(tmp_path, [({"a": a, "b": a}, {"c": a - a})], 0.1)


def client(shop: Shop, folder: Path) -> Client:
    return Client(shop.releases.root(), shop.metadata, folder / "device")


async def test_the_files_of_a_configuration_are_version_1_and_signed(tmp_path: Path):
    config = config_of(tmp_path)
    (tmp_path / "a.tflite.golden.npz").write_bytes(b"vectors")
    async with shop_of(config, tmp_path / "state") as shop:
        release = shop.releases.get("digits", "1")
        assert release.files == {"cameras": ReleaseFile("tflite", blob_of(b"one"), blob_of(b"vectors"))}
        assert (release.stage, release.order, release.source) == (Stage.PASSED, 1, "file")
        assert shop.releases.standing() == {"digits": "1"}
        assert await shop.blobs.get(blob_of(b"one")) == b"one"
        device = client(shop, tmp_path)
        info = device.refresh().get_targetinfo(FILE)
        assert info is not None
        assert (info.length, info.hashes) == (3, {"sha256": blob_of(b"one").digest[7:]})
        assert info.custom == {
            "model": "digits", "version": "1", "format": "tflite", "golden": f"{FILE}.golden",
            "order": 1, "trial": False,
        }  # fmt: skip
        golden = device.refresh().get_targetinfo(f"{FILE}.golden")
        assert golden is not None
        assert golden.hashes == {"sha256": blob_of(b"vectors").digest[7:]}


async def test_a_candidate_is_a_trial_until_it_is_judged_and_is_gone_once_it_is_withdrawn(
    tmp_path: Path, vectors: bytes
):
    async with shop_of(config_of(tmp_path), tmp_path / "state") as shop:
        device = client(shop, tmp_path)
        name = target_name("digits", "2", "tflite")
        files = {"tflite": ("tflite", difference(), vectors)}
        made = await shop.releases.add(
            "digits", files, places="tier=site;site=plant-7", source="push",
            reference={"output.confidence": Reference((0.5,), (1, 2))}, metrics={"accuracy": 0.5},
        )  # fmt: skip
        assert (made.version, made.order, made.stage) == ("2", 2, Stage.CANDIDATE)
        custom = device.custom(name)
        assert custom is not None
        assert (custom["trial"], custom["order"], custom["places"]) == (True, 2, "tier=site;site=plant-7")
        with pytest.raises(OipError, match="not been through its gate") as refused:
            await shop.releases.stand("digits", "2")
        assert refused.value.reason is Reason.CONFLICT
        await shop.releases.judged("digits", "2", True, {"accuracy": 0.9})
        custom = device.custom(name)
        assert custom is not None
        assert custom["trial"] is False
        assert shop.releases.get("digits", "2").metrics == {"accuracy": 0.9}
        await shop.releases.stand("digits", "2")
        assert shop.releases.standing() == {"digits": "2"}
        # Back to version 1: devices go only to an order that is not below.
        await shop.releases.stand("digits", "1")
        custom = device.custom(FILE)
        assert custom is not None
        assert custom["order"] == 3
        await shop.releases.withdraw("digits", "2")
        assert device.custom(name) is None
        with pytest.raises(OipError, match="stands"):
            await shop.releases.withdraw("digits", "1")
        with pytest.raises(OipError, match="withdrawn"):
            await shop.releases.order_back("digits", "2")


async def test_what_was_released_is_there_after_a_restart_and_signed_again(tmp_path: Path, vectors: bytes):
    config, files = config_of(tmp_path), {"tflite": ("tflite", difference(), vectors)}
    async with shop_of(config, tmp_path / "state") as shop:
        device = client(shop, tmp_path)
        reference = {"input.mean": Reference((0.0, 0.5), (1, 2, 3))}
        await shop.releases.add(
            "digits", files, source="push", reference=reference, metrics={"accuracy": 0.5}
        )
        before, root = shop.releases.snapshot(), shop.releases.root()
        metadata = sorted(path.name for path in shop.metadata.iterdir())
    async with shop_of(config, tmp_path / "state") as shop:
        assert shop.releases.snapshot() == before
        assert shop.releases.get("digits", "2").reference == reference
        assert shop.releases.root() == root
        assert sorted(path.name for path in shop.metadata.iterdir()) == metadata
        assert device.custom(target_name("digits", "2", "tflite")) is not None
        assert (await shop.releases.add("digits", files, source="push")).version == "3"


async def test_a_version_is_never_other_bytes(tmp_path: Path, vectors: bytes):
    async with shop_of(config_of(tmp_path), tmp_path / "state") as shop:
        add = shop.releases.add
        first = await add("digits", {"tflite": ("tflite", difference(), vectors)}, source="push", version="7")
        again = await add("digits", {"tflite": ("tflite", difference(), vectors)}, source="push", version="7")
        assert again == first
        with pytest.raises(OipError, match="a version never changes") as refused:
            await add("digits", {"tflite": ("tflite", logarithm(), vectors)}, source="push", version="7")
        assert refused.value.status.http == 409
        with pytest.raises(OipError, match="a version never changes"):
            await add("digits", {"tflite": ("tflite", difference(), vectors)}, source="push", version="1")
        assert (await add("digits", {"onnx": ("onnx", b"x", None)}, source="push")).version == "8"
        assert [release.order for release in shop.releases.of("digits")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("model", "files", "version", "says"),
    [
        ("digits", {}, None, "needs a file"),
        ("letters", {"onnx": ("onnx", b"x", None)}, None, "no model 'letters'"),
        ("digits", {"tflite": ("tflite", b"x", b"")}, None, "the file is no TFLite model"),
        ("digits", {"tflite": ("tflite", difference(), None)}, None, "has no golden vectors"),
        ("digits", {"tflite": ("tflite", difference(), b"PK")}, None, "no .npz"),
        ("digits", {"tflite": ("tflite", difference(), second_case_alone())}, None, "not numbered from 0"),
        ("digits", {"onnx": ("onnx", difference(), None)}, None, "TFLite file and was given as ONNX"),
        ("digits", {"onnx": ("onnx", b"", None)}, None, "it is empty"),
        ("digits", {"garage": ("onnx", b"x", None)}, None, "'garage' is neither"),
        ("digits", {"tflite": ("onnx", b"x", None)}, None, "'tflite' is neither"),
        ("digits", {"x": ("pt", b"x", None)}, None, "'pt' is no format"),
        ("digits", {"onnx": ("onnx", b"x", None)}, "01", "is no version"),
        ("digits", {"onnx": ("onnx", b"x", None)}, "v2", "is no version"),
        ("digits", {"onnx": ("onnx", Blob("sha256:" + "0" * 64, 1), None)}, None, "was uploaded"),
    ],
)
async def test_what_is_no_release_is_refused_and_changes_nothing(
    tmp_path: Path, model: str, files: Any, version: str | None, says: str
):
    async with shop_of(config_of(tmp_path), tmp_path / "state") as shop:
        before = shop.releases.snapshot()
        with pytest.raises(OipError, match=says):
            await shop.releases.add(model, files, source="push", version=version)
        assert shop.releases.snapshot() == before


async def test_a_file_that_was_edited_is_told_and_not_taken(tmp_path: Path):
    async with shop_of(config_of(tmp_path), tmp_path / "state") as shop:
        assert shop.releases.differences() == ()
    config = config_of(tmp_path, [("a.tflite", b"edited"), ("b.tflite", b"two")])
    async with shop_of(config, tmp_path / "state") as shop:
        (told,) = shop.releases.differences()
        assert (told.model, told.version, told.endpoint) == ("digits", "1", "cameras")
        assert "a.tflite has changed" in told.text
        # A group that is new in the file gets its file, under the same version.
        files = shop.releases.get("digits", "1").files
        assert {slot: file.blob for slot, file in files.items()} == {
            "cameras": blob_of(b"one"),
            "doors": blob_of(b"two"),
        }
        assert client(shop, tmp_path).custom(target_name("digits", "1", "doors")) is not None


async def test_what_stands_and_a_lost_file_are_told(tmp_path: Path, vectors: bytes):
    config = config_of(tmp_path)
    async with shop_of(config, tmp_path / "state") as shop:
        made = await shop.releases.add("digits", {"tflite": ("tflite", difference(), vectors)}, source="push")
        await shop.releases.judged("digits", "2", True)
        await shop.releases.stand("digits", "2")
        blobs = [shop.state_dir / "artifacts" / "blobs" / d[7:9] / d[7:] for d in (
            made.files["tflite"].blob.digest, blob_of(b"one").digest,
        )]  # fmt: skip
    for path in blobs:
        path.unlink()
    async with shop_of(config, tmp_path / "state") as shop:
        stands, lost = sorted(told.text for told in shop.releases.differences())[::-1]
        assert "version 2 stands" in stands
        assert "the file of version 2 for tflite is not in the artifact store" in lost
        # Of the configuration's own file there is another copy.
        assert await shop.blobs.get(blob_of(b"one")) == b"one"


async def test_a_version_that_is_pinned_is_a_release_of_its_own(tmp_path: Path):
    config = config_of(tmp_path, version="3")
    async with shop_of(config, tmp_path / "state") as shop:
        assert shop.releases.standing() == {"digits": "3"}
        assert [release.version for release in shop.releases.of("digits")] == ["3"]
    # What the operator writes down is what devices are to go to, from what stands and back.
    async with shop_of(config_of(tmp_path, version="2"), tmp_path / "state") as shop:
        assert {release.version: release.order for release in shop.releases.of("digits")} == {"2": 2, "3": 2}
        assert shop.releases.standing() == {"digits": "3"}


async def test_models_that_share_a_name_on_devices_share_no_target(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode())
    config = hub_config(
        [edge("cameras", site="cameras"), edge("doors", site="doors")],
        [
            {
                "name": name,
                "variants": [{"endpoint": group, "model": "seen", "artifact": str(tmp_path / name)}],
            }
            for name, group in (("a", "cameras"), ("b", "doors"))
        ],
    )
    async with shop_of(config, tmp_path / "state") as shop:
        device = client(shop, tmp_path)
        found = [device.custom(target_name("seen", "1", slot)) for slot in ("a:cameras", "b:doors")]
        assert [one and one["model"] for one in found] == ["seen", "seen"]
        assert device.custom(target_name("a", "1", "cameras")) is None


class Killed(BaseException):
    """Nothing after it is done, as after kill -9."""


def killed_at(shop: Shop, monkeypatch: pytest.MonkeyPatch, at: int, seen: Any = None) -> list[str]:
    """Every write of the store and of the keys is counted, and the one of this number is not made; nor is the
    rest. `seen` is called before each."""
    from gateway.control import signing

    made: list[str] = []

    def count(what: str) -> None:
        if seen is not None:
            seen()
        if len(made) >= at:
            raise Killed(what)
        made.append(what)

    write, put, put_metadata = signing._write_private, BlobStore._put, shop.blobs.put

    def private(path: Path, content: bytes) -> None:
        count(path.name)
        write(path, content)

    async def meta(self: BlobStore, path: str, content: bytes) -> None:
        count(path)
        await put(self, path, content)

    async def blob(content: bytes) -> Blob:
        count("blob")
        return await put_metadata(content)

    monkeypatch.setattr(signing, "_write_private", private)
    monkeypatch.setattr(BlobStore, "_put", meta)
    monkeypatch.setattr(shop.blobs, "put", blob)
    return made


async def test_a_kill_between_any_two_writes_leaves_a_whole_view_and_the_rest_is_made_good(
    tmp_path: Path, vectors: bytes
):
    """Each run dies before one write more than the last, until one comes to its end."""
    files = {"tflite": ("tflite", difference(), vectors)}
    name = target_name("digits", "2", "tflite")
    for at in range(20):
        folder = tmp_path / str(at)
        folder.mkdir()
        config = config_of(folder)
        async with shop_of(config, folder / "state") as shop:
            device, late = client(shop, folder), Client(shop.releases.root(), shop.metadata, folder / "late")
            device.refresh()
            with pytest.MonkeyPatch.context() as patch:
                made = killed_at(shop, patch, at, device.refresh)
                try:
                    await shop.releases.add("digits", files, source="push", version="2")
                    ended = True
                except Killed:
                    ended = False
            # Whoever reads now sees all of the old or all of the new.
            seen = [reader.custom(name) for reader in (device, late)]
            assert seen[0] == seen[1]
            assert device.custom(FILE) is not None
        async with shop_of(config, folder / "state") as shop:
            known = ("digits", "2") in shop.releases.snapshot()["releases"]
            assert (device.custom(name) is not None) is known
            assert known or not ended
            await shop.releases.add("digits", files, source="push", version="2")
            assert device.custom(name) is not None
        if ended:
            assert made == ["blob", "blob", "versions.json", "metadata/2.targets.json", "versions.json",
                            "metadata/2.snapshot.json", "versions.json", "metadata/timestamp.json"]  # fmt: skip
            return
    pytest.fail("it never came to its end")


async def test_a_kill_at_the_very_first_start_leaves_one_root(tmp_path: Path):
    for at in range(20):
        folder = tmp_path / str(at)
        folder.mkdir()
        config = config_of(folder)
        with pytest.MonkeyPatch.context() as patch:
            blobs = BlobStore(None, folder / "state")
            made = killed_at(Shop(folder / "state", blobs, None), patch, at)  # pyright: ignore[reportArgumentType]
            signing = Signing(blobs, folder / "state")
            try:
                await signing.start()
                await signing.publish([])
                ended = True
            except Killed:
                ended = False
        first = blobs and await blobs.metadata("1.root.json")
        async with shop_of(config, folder / "state") as shop:
            assert first in (None, shop.releases.root())
            assert client(shop, folder).custom(FILE) is not None
            assert await shop.blobs.metadata("root.json") == shop.releases.root()
        if ended:
            assert made[:5] == [
                "root.pem",
                "targets.pem",
                "snapshot.pem",
                "timestamp.pem",
                "metadata/1.root.json",
            ]
            return
    pytest.fail("it never came to its end")


async def test_a_change_that_cannot_be_signed_is_kept_and_signed_later(
    tmp_path: Path, vectors: bytes, monkeypatch: pytest.MonkeyPatch
):
    async with shop_of(config_of(tmp_path), tmp_path / "state") as shop:
        device = client(shop, tmp_path)

        async def full(self: BlobStore, path: str, content: bytes) -> None:
            raise BlobError("the artifact was not stored: the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(BlobStore, "_put", full)
            with pytest.raises(OipError, match=r"recorded and not signed yet.*the disk is full") as error:
                await shop.releases.add("digits", {"onnx": ("onnx", b"x", None)}, source="push")
            assert error.value.reason is Reason.UNAVAILABLE
        assert device.custom(target_name("digits", "2", "onnx")) is None
        await shop.releases.keep(time.time())
        assert device.custom(target_name("digits", "2", "onnx")) is not None


async def test_a_caller_that_goes_away_in_the_middle_leaves_memory_and_database_as_one(tmp_path: Path):
    config = config_of(tmp_path)
    async with shop_of(config, tmp_path / "state") as shop:
        work = asyncio.create_task(shop.releases.add("digits", {"onnx": ("onnx", b"x", None)}, source="push"))
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await shop.releases.judged("digits", "2", True)
        before = shop.releases.snapshot()
    async with shop_of(config, tmp_path / "state") as shop:
        assert shop.releases.snapshot() == before


def at_hours(hours: float) -> float:
    return time.time() + hours * 3600


async def test_what_expires_is_signed_anew_in_time_and_nothing_else(tmp_path: Path):
    now = [time.time()]
    async with shop_of(config_of(tmp_path), tmp_path / "state", wall=lambda: now[0]) as shop:
        versions: list[tuple[int, ...]] = []
        for days in (0.1, 0.6, 1.2, 3.6, 46, 183):
            now[0] = time.time() + days * DAY_S
            await shop.releases.keep(now[0])
            versions.append(
                tuple(
                    Metadata.from_bytes((shop.metadata / name).read_bytes()).signed.version
                    for name in (
                        "timestamp.json",
                        newest(shop, "snapshot"),
                        newest(shop, "targets"),
                        newest(shop, "root"),
                    )
                )
            )
        assert versions == [
            (1, 1, 1, 1),
            (2, 1, 1, 1),
            (3, 1, 1, 1),
            (4, 2, 1, 1),
            (5, 3, 2, 1),
            (6, 4, 3, 2),
        ]
        assert (shop.metadata / "1.root.json").exists()
        device = client(shop, tmp_path)
        assert device.custom(FILE) is not None


def newest(shop: Shop, role: str) -> str:
    numbers = [int(path.name.split(".")[0]) for path in shop.metadata.glob(f"*.{role}.json")]
    return f"{max(numbers)}.{role}.json"


async def test_a_reader_of_the_old_root_follows_to_the_new_one(tmp_path: Path):
    now = [time.time() - 200 * DAY_S]
    config = config_of(tmp_path)
    async with shop_of(config, tmp_path / "state", wall=lambda: now[0]) as shop:
        device = client(shop, tmp_path)
        with pytest.raises(ExpiredMetadataError):
            device.refresh()
        now[0] = time.time()
        await shop.releases.keep(now[0])
        assert (shop.metadata / "2.root.json").exists()
        assert device.custom(FILE) is not None


async def test_the_root_key_may_be_elsewhere_and_no_other(tmp_path: Path):
    config, keys = config_of(tmp_path), tmp_path / "state" / "keys"
    async with shop_of(config, tmp_path / "state"):
        pass
    assert {path.name: path.stat().st_mode & 0o777 for path in keys.iterdir()} == dict.fromkeys(
        ("root.pem", "targets.pem", "snapshot.pem", "timestamp.pem", "versions.json"), 384
    )
    (keys / "root.pem").rename(tmp_path / "root.pem")
    async with shop_of(config, tmp_path / "state") as shop:
        assert client(shop, tmp_path).custom(FILE) is not None
    stolen = (keys / "targets.pem").read_bytes()
    for change, says in (
        (lambda path: path.unlink(), "targets.pem is missing: put back"),
        (
            lambda path: path.write_bytes((keys / "snapshot.pem").read_bytes()),
            "is not the key that devices trust",
        ),
        (lambda path: path.write_bytes(b"?"), "is no Ed25519 private key"),
    ):
        change(keys / "targets.pem")
        with pytest.raises(SigningError, match=says):
            async with shop_of(config, tmp_path / "state"):
                pass
        (keys / "targets.pem").write_bytes(stolen)


async def test_an_emptied_store_is_signed_on_from_where_devices_are(tmp_path: Path):
    config = config_of(tmp_path)
    async with shop_of(config, tmp_path / "state") as shop:
        device = client(shop, tmp_path)
        await shop.releases.add("digits", {"onnx": ("onnx", b"x", None)}, source="push")
        device.refresh()
        for path in shop.metadata.iterdir():
            path.unlink()
    async with shop_of(config, tmp_path / "state"):
        assert device.custom(FILE) is not None
    for path in shop.metadata.iterdir():
        path.unlink()
    (tmp_path / "state" / "keys" / "root.pem").unlink()
    with pytest.raises(SigningError, match=r"no root of trust and .*root\.pem is missing"):
        async with shop_of(config, tmp_path / "state"):
            pass


async def test_a_damaged_root_is_put_back_from_its_copy_and_never_founded_anew(tmp_path: Path):
    config = config_of(tmp_path)
    async with shop_of(config, tmp_path / "state") as shop:
        device = client(shop, tmp_path)
        root, copy = shop.metadata / "1.root.json", shop.metadata / "root.json"
        whole = root.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"{}"):
        root.write_bytes(damaged)
        async with shop_of(config, tmp_path / "state"):
            assert root.read_bytes() == whole
            assert device.custom(FILE) is not None
        copy.write_bytes(damaged)
        async with shop_of(config, tmp_path / "state"):
            assert copy.read_bytes() == whole
    for other in (whole[:-9], (shop.metadata / "timestamp.json").read_bytes()):
        root.write_bytes(other)
        copy.write_bytes(other)
        with pytest.raises(SigningError, match=r"^metadata/1\.root\.json .* is damaged, .*: put it back$"):
            async with shop_of(config, tmp_path / "state"):
                pass


async def test_the_file_of_an_endpoint_is_never_the_golden_vectors_of_another(tmp_path: Path):
    (tmp_path / "a.tflite").write_bytes(b"a")
    (tmp_path / "a.tflite.golden.npz").write_bytes(b"vectors")
    (tmp_path / "b.tflite").write_bytes(b"b")
    config = hub_config(
        [edge("cameras", site="cameras"), edge("cameras.golden", site="doors")],
        [
            {
                "name": "digits",
                "variants": [
                    {"endpoint": "cameras", "artifact": str(tmp_path / "a.tflite")},
                    {"endpoint": "cameras.golden", "artifact": str(tmp_path / "b.tflite")},
                ],
            }
        ],
    )
    async with shop_of(config, tmp_path / "state") as shop:
        updater = client(shop, tmp_path).refresh()
        release = shop.releases.get("digits", "1")
        for slot in ("cameras", "cameras.golden"):
            name, file = target_name("digits", "1", slot), release.files[slot]
            assert not name.endswith(".golden")
            info = updater.get_targetinfo(name)
            assert info is not None
            assert f"sha256:{info.hashes['sha256']}" == file.blob.digest
        vectors = updater.get_targetinfo(target_name("digits", "1", "cameras", golden=True))
        assert vectors is not None
        assert vectors.length == len(b"vectors")


@pytest.mark.parametrize("left", ["an old versions.json", "nothing but keys", "versions.json alone"])
async def test_devices_follow_a_gateway_that_was_set_up_anew_from_a_copy_of_its_keys(
    tmp_path: Path, left: str
):
    config, state = config_of(tmp_path), tmp_path / "state"
    async with shop_of(config, state) as shop:
        device = client(shop, tmp_path)
        old = (state / "keys" / "versions.json").read_bytes()
        for number in range(2, 6):
            await shop.releases.add("digits", {"onnx": ("onnx", str(number).encode(), None)}, source="push")
        device.refresh()
    for path in shop.metadata.iterdir():
        path.unlink()
    if left == "an old versions.json":
        (state / "keys" / "versions.json").write_bytes(old)
    elif left == "nothing but keys":
        (state / "keys" / "versions.json").unlink()
    for _ in range(2):
        async with shop_of(config, state):
            assert device.custom(FILE) is not None


async def test_metadata_by_other_keys_is_not_gone_on_from(tmp_path: Path):
    config = config_of(tmp_path)
    async with shop_of(config, tmp_path / "state") as shop, shop_of(config, tmp_path / "other") as other:
        device = client(shop, tmp_path)
        forged = (other.metadata / "timestamp.json").read_bytes()
        (shop.metadata / "timestamp.json").write_bytes(forged)
        with pytest.raises(RepositoryError):
            device.refresh()
    async with shop_of(config, tmp_path / "state"):
        assert device.custom(FILE) is not None


async def test_old_metadata_goes_and_roots_stay(tmp_path: Path):
    async with shop_of(config_of(tmp_path), tmp_path / "state") as shop:
        for number in range(2, 30):
            await shop.releases.add("digits", {"onnx": ("onnx", str(number).encode(), None)}, source="push")
        names = {path.name for path in shop.metadata.iterdir()}
        assert {f"{n}.targets.json" for n in range(13, 30)} <= names
        assert not {f"{n}.targets.json" for n in range(1, 13)} & names
        assert "1.root.json" in names


def test_targets_are_a_function_of_the_releases(tmp_path: Path):
    """Nothing of when and how often it was published is in them."""

    async def bytes_of(folder: str, times: int) -> Any:
        blobs = BlobStore(None, tmp_path / folder)
        signing = Signing(blobs, tmp_path / folder)
        await signing.start()
        release = Release("digits", "1", {"x": ReleaseFile("onnx", blob_of(b"x"))}, 1, Stage.PASSED)
        for _ in range(times):
            await signing.publish([release])
        raw = await blobs.metadata("1.targets.json")
        assert raw is not None
        assert await blobs.metadata("2.targets.json") is None
        return json.loads(raw)["signed"]["targets"]

    assert asyncio.run(bytes_of("a", 1)) == asyncio.run(bytes_of("b", 3))


def test_a_key_is_this_users_alone_from_the_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from gateway.control import signing

    modes: list[int] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (modes.append(os.stat(a).st_mode & 0o777), replace(a, b)))
    signing._write_private(tmp_path / "keys" / "root.pem", b"key")
    assert modes == [0o600]
