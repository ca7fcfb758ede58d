"""Whatever is asked of releases in whatever order, and wherever control dies: what always holds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.control import shelf as rules
from gateway.control.releases import Releases
from gateway.control.shelf import Shelf
from gateway.core.release import ReleaseFile, Stage
from gateway.store.blobs import BlobStore, blob_of
from oip.errors import OipError
from oip.reasons import Reason
from tests.support.hub import edge, hub_config
from tests.support.released import Client, shop_of

VERSIONS = st.sampled_from(["1", "2", "3", "4"])
MODELS = st.sampled_from(["a", "b"])
CALLS = st.one_of(
    st.tuples(st.just("added"), MODELS, VERSIONS, st.sampled_from([b"x", b"y", b"z"])),
    st.tuples(st.just("judged"), MODELS, VERSIONS, st.booleans()),
    st.tuples(st.sampled_from(["stood", "ordered_back", "withdrawn"]), MODELS, VERSIONS),
    st.tuples(st.just("levelled"), MODELS, st.frozensets(VERSIONS)),
)


def applied(shelf: Shelf, call: tuple[Any, ...]) -> Shelf:
    name, *arguments = call
    if name == "added":
        *arguments, content = arguments
        arguments.append({"tflite": ReleaseFile("tflite", blob_of(content))})
    return getattr(rules, name)(shelf, *arguments)


@settings(max_examples=150, deadline=None)
@given(st.lists(CALLS, max_size=30))
def test_releases_never_change_and_what_stands_can_be_served(calls: list[tuple[Any, ...]]):
    shelf = Shelf()
    for call in calls:
        before = shelf
        try:
            shelf = applied(shelf, call)
        except OipError as error:
            if error.reason not in (Reason.CONFLICT, Reason.NOT_FOUND):
                raise
            continue
        for key, was in before.releases.items():
            now = shelf.releases[key]
            assert (now.files, now.places, now.source) == (was.files, was.places, was.source)
            assert now.order >= was.order
            assert was.stage is not Stage.WITHDRAWN or now.stage is Stage.WITHDRAWN
            assert now.stage is not Stage.CANDIDATE or was.stage is Stage.CANDIDATE
        for model, version in shelf.standing.items():
            assert shelf.releases[model, version].stage in (Stage.PASSED, Stage.REFUSED)
            was_standing = before.standing.get(model)
            # Whoever runs what stood may go to what stands.
            if was_standing is not None:
                assert shelf.releases[model, version].order >= before.releases[model, was_standing].order
        assert before.standing.keys() <= shelf.standing.keys()
        if call[0] == "ordered_back":
            mine = shelf.releases[call[1], call[2]]
            assert all(mine.order > other.order for other in shelf.of(mine.model) if other != mine)
        # The same again changes nothing.
        assert applied(shelf, call) == shelf


class Killed(BaseException):
    """Nothing after it is done."""


ASKED = st.lists(
    st.tuples(
        st.sampled_from(["add", "judged", "stand", "order_back", "withdraw"]), VERSIONS, st.integers(0, 12)
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.timeout(1800)
@settings(max_examples=100 if os.environ.get("TIDEGATE_RELEASES") == "all" else 5, deadline=None)
@given(ASKED)
def test_a_reader_that_follows_through_any_number_of_kills_sees_what_the_database_says(
    asked: list[tuple[str, str, int]],
):
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_followed(Path(folder), asked))


async def _followed(folder: Path, asked: list[tuple[str, str, int]]) -> None:
    """Each call dies before its nth write; control starts again; the same reader goes on."""
    (folder / "a.tflite").write_bytes(b"file")
    config = hub_config(
        [edge("cameras")],
        [{"name": "digits", "variants": [{"endpoint": "cameras", "artifact": str(folder / "a.tflite")}]}],
    )
    device: Client | None = None
    for name, version, writes in asked:
        async with shop_of(config, folder / "state") as shop:
            device = device or Client(shop.releases.root(), shop.metadata, folder / "device")
            await _checked(shop, device)
            with _dying_after(writes), contextlib.suppress(Killed, OipError):
                await _asked(shop.releases, name, version)
            device.refresh()
    async with shop_of(config, folder / "state") as shop:
        assert device is not None
        await _checked(shop, device)


async def _asked(releases: Releases, name: str, version: str) -> None:
    if name == "add":
        files = {"onnx": ("onnx", version.encode(), None)}
        await releases.add("digits", files, source="push", version=version)
    elif name == "judged":
        await releases.judged("digits", version, True)
    else:
        await getattr(releases, name)("digits", version)


@contextlib.contextmanager
def _dying_after(writes: int) -> Iterator[None]:
    """The store's next write but so many is not made, nor is anything after it."""
    put, left = BlobStore._put, [writes]

    async def counted(self: BlobStore, path: str, content: bytes) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        await put(self, path, content)

    BlobStore._put = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        BlobStore._put = put  # type: ignore[method-assign]


async def _checked(shop: Any, device: Client) -> None:
    """The signed targets are those of the releases, with their orders."""
    updater = device.refresh()
    targets = updater._trusted_set.targets.targets
    offered = {
        f"digits/{release.version}/{slot}": release.order
        for release in shop.releases.of("digits")
        if release.stage is not Stage.WITHDRAWN
        for slot in release.files
    }
    assert {name: info.custom["order"] for name, info in targets.items()} == offered
