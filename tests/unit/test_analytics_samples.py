"""Samples from a report to a training run, over the real database."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from edgewire.allowed import decode
from edgewire.places import Place, Tier
from edgewire.v1 import edge_pb2
from gateway.analytics import samples as samples_module
from gateway.analytics.consent import Consent
from gateway.analytics.ingest import Ingest
from gateway.analytics.labels import LabelError, read_labels
from gateway.analytics.samples import Samples
from gateway.core.config import Config
from gateway.store.database import open_database
from oip.sample import sample_id
from tests.support.reports import DEVICE, Releases, fresh, record, report, sample, watched

TRAINING = Place(Tier.SITE, None, "s1")
CLOUD = Place(Tier.CLOUD, "us")


def name_of(value: float, rows: int = 1) -> str:
    return sample_id({"x": np.full((rows, 4), value, np.float32)})


class Shelf:
    """Ingest and samples over one database."""

    def __init__(self, folder: Path, config: Config | None = None) -> None:
        self.now = 1_000_000.0
        self.number = 0
        engine = open_database(folder)
        self.consent = Consent(config or watched())
        self.ingest = Ingest(engine, Releases(), self.consent, 10, lambda: self.now)
        self.samples = Samples(engine, self.consent)
        self.folder = folder

    async def keep(self, *kept: edge_pb2.Sample, age_s: float = 0.0) -> None:
        records = [record(self.number + at, one, age_s) for at, one in enumerate(kept, 1)]
        self.number += len(kept)
        await self.ingest.take("device:cam-1", DEVICE, report(*records))


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(fresh(tmp_path))


async def test_a_sample_is_kept_once_with_all_that_is_known_of_it(shelf: Shelf):
    await shelf.keep(sample(0.5, rows=3, confidence=0.25), age_s=100.0)
    await shelf.keep(sample(0.5, rows=3, confidence=0.75))
    (one,) = await shelf.samples.listed("digits")
    assert (one.id, one.rows, one.site, one.version) == (name_of(0.5, 3), 3, "s1", "1")
    assert (one.confidence, one.taken_at, one.labels, one.request) == (0.25, 999_900.0, None, b"")


async def test_labels_of_a_teacher_and_of_the_operator(shelf: Shelf):
    await shelf.keep(*(sample(float(k)) for k in range(3)), sample(9.0, rows=2))
    assert await shelf.samples.label("digits", name_of(0.0), [4])
    assert await shelf.samples.label("digits", name_of(1.0), [5])
    assert not await shelf.samples.label("digits", name_of(9.0, 2), [5])
    assert not await shelf.samples.label("digits", name_of(7.0), [5])
    told = {name_of(1.0): (6,), name_of(9.0, 2): (1, 2), name_of(2.0): (1, 2), "0" * 64: (3,)}
    found = [placed.sample for placed in await shelf.samples.for_training("digits", TRAINING, told)]
    assert {one.id: one.labels.tolist() for one in found} == {
        name_of(0.0): [4],
        name_of(1.0): [6],
        name_of(9.0, 2): [1, 2],
    }
    assert [one.id for one in found] == sorted(one.id for one in found)
    (two,) = [one for one in found if len(one.labels) == 2]
    assert two.labels.dtype == np.int64
    np.testing.assert_array_equal(two.inputs["x"], np.full((2, 4), 9.0, np.float32))
    assert [one.id for one in await shelf.samples.unlabelled("digits", TRAINING, 10)] == [
        one.id for one in await shelf.samples.listed("digits") if one.labels is None
    ]
    listed = await shelf.samples.listed("digits")
    labelled = {one.id: one.labels for one in listed if one.labels is not None}
    assert labelled == {name_of(0.0): (4,), name_of(1.0): (5,)}
    assert await shelf.samples.trainable("digits", TRAINING, told) == 3
    assert await shelf.samples.trainable("digits", TRAINING) == 2
    newest = await shelf.samples.unlabelled("digits", TRAINING, 1)
    (next_one,) = await shelf.samples.unlabelled("digits", TRAINING, 1, {newest[0].id})
    assert next_one.id != newest[0].id
    assert service_pb2.ModelInferRequest.FromString(next_one.request).model_name


async def test_a_request_without_rows_becomes_one_row(shelf: Shelf):
    message = service_pb2.ModelInferRequest(model_name="digits")
    message.inputs.add(name="x", datatype="FP32", shape=[4])
    message.raw_input_contents.append(np.arange(4, dtype="<f4").tobytes())
    given = sample()
    given.request = message.SerializeToString()
    await shelf.keep(given)
    (one,) = await shelf.samples.listed("digits")
    (made,) = await shelf.samples.for_training("digits", TRAINING, {one.id: [3]})
    assert made.sample.inputs["x"].tolist() == [[0.0, 1.0, 2.0, 3.0]]


async def test_only_those_that_may_go_there_are_handed_out(shelf: Shelf):
    await shelf.keep(sample(1.0), sample(2.0, allowed="tier=site+device;site=s1"))
    for id in (name_of(1.0), name_of(2.0)):
        await shelf.samples.label("digits", id, [1])
    assert len(await shelf.samples.for_training("digits", TRAINING)) == 2
    (placed,) = await shelf.samples.for_training("digits", CLOUD)
    assert placed.sample.id == name_of(1.0)
    assert await shelf.samples.unlabelled("digits", CLOUD, 9) == []
    assert await shelf.samples.trainable("digits", CLOUD) == 1


async def test_a_class_that_was_narrowed_since_is_respected(shelf: Shelf):
    await shelf.keep(sample(1.0))
    await shelf.samples.label("digits", name_of(1.0), [1])
    narrowed = Shelf(shelf.folder, watched("eu"))
    (before,) = await shelf.samples.for_training("digits", TRAINING)
    (after,) = await narrowed.samples.for_training("digits", TRAINING)
    assert decode(before.places).allows(CLOUD)
    assert not decode(after.places).allows(CLOUD)
    assert decode(after.places).allows(TRAINING)
    assert await narrowed.samples.for_training("digits", CLOUD) == []
    own = Shelf(shelf.folder, watched("own"))
    assert await own.samples.for_training("digits", TRAINING) == []


@pytest.mark.parametrize("samples", [None, {"collect": "none"}])
async def test_samples_that_nobody_asked_for_are_refused(tmp_path: Path, samples: object):
    shelf = Shelf(fresh(tmp_path), watched(**({"train": None} if samples is None else {"samples": samples})))
    await shelf.keep(sample(1.0))
    assert shelf.ingest.refused("digits") == {"privacy": 1}
    assert await shelf.samples.listed("digits") == []


async def test_the_oldest_without_a_label_make_room(shelf: Shelf):
    """5 a day, and 10 days' worth are kept."""
    await shelf.keep(sample(-1.0), age_s=1000.0)
    await shelf.samples.label("digits", name_of(-1.0), [1])
    await shelf.keep(*(sample(float(k)) for k in range(20)), age_s=500.0)
    await shelf.keep(*(sample(float(k)) for k in range(20, 60)))
    kept = {one.id for one in await shelf.samples.listed("digits")}
    assert len(kept) == 50
    assert kept > {name_of(float(k)) for k in (-1, *range(20, 60))}


async def test_large_ones_take_no_more_than_their_room(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(samples_module, "MOST_BYTES", 3 * len(sample().request))
    await shelf.keep(sample(1.0), age_s=9.0)
    await shelf.keep(*(sample(float(k)) for k in range(2, 5)))
    assert {one.id for one in await shelf.samples.listed("digits")} == {name_of(float(k)) for k in (2, 3, 4)}


async def test_a_request_cut_short_is_no_sample(shelf: Shelf):
    whole = sample(1.0)
    cuts = range(1, len(whole.request))
    for cut in cuts:
        given = sample(1.0)
        given.request = whole.request[:cut]
        await shelf.keep(given)
    await shelf.keep(sample(2.0))
    assert [one.id for one in await shelf.samples.listed("digits")] == [name_of(2.0)]
    assert shelf.ingest.refused("digits") == {"nonsense": len(cuts)}


class TestLabels:
    def read(self, folder: Path, text: str | bytes) -> tuple[dict[str, tuple[int, ...]], list[str]]:
        path = folder / "labels.csv"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        found = read_labels(path)
        return dict(found.by_sample), [fault.removeprefix(f"{path}:") for fault in found.faults]

    def test_a_good_file(self, tmp_path: Path):
        one, other = "a" * 64, "b" * 64
        text = f"\ufeffsample,label\r\n{one},3\r\n\r\n# by Ada\r\n{other.upper()}, 1 2 -1 \r\n{one},3\r\n"
        assert self.read(tmp_path, text) == ({one: (3,), other: (1, 2, -1)}, [])

    def test_bad_lines_are_told_and_left_out(self, tmp_path: Path):
        good = "a" * 64
        lines = ["sample,label", f"{good},3", "abc,1", f"{'b' * 64},cat", f"{'c' * 64}", f"{'d' * 64},", ""]
        found, faults = self.read(tmp_path, "\n".join([*lines, f"{'e' * 64},1,2", f"{'f' * 64},1.0"]))
        assert found == {good: (3,)}
        assert [fault.split(": ")[0] for fault in faults] == ["3", "4", "5", "6", "8", "9"]
        assert faults[0] == "3: the sample is not named by 64 hex digits"
        assert faults[1] == "4: the label is not a whole number, or several separated by spaces"
        assert faults[2] == "5: a line is a sample and its label, not 1 cells"

    def test_many_bad_lines_are_counted(self, tmp_path: Path):
        _, faults = self.read(tmp_path, "sample,label\n" + "x,1\n" * 25)
        assert len(faults) == 21
        assert faults[-1].endswith("5 more lines are wrong")

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("", ":1: the file is empty: its first line must be sample,label"),
            (f"{'a' * 64},3\n", ":1: the first line must be the header sample,label"),
            ("id,label\n", ":1: the first line must be the header sample,label"),
            (
                f"sample,label\n{'a' * 64},3\n\n{'a' * 64},4\n",
                ":4: the sample has other labels in line 2: keep the right one",
            ),
            (b"sample,label\n\xff\n", ": the file is not UTF-8"),
        ],
    )
    def test_a_file_that_says_nothing_or_two_things(self, tmp_path: Path, text: str | bytes, told: str):
        with pytest.raises(LabelError) as caught:
            self.read(tmp_path, text)
        assert str(caught.value) == f"{tmp_path / 'labels.csv'}{told}"

    def test_a_file_that_is_not_there(self, tmp_path: Path):
        with pytest.raises(LabelError, match=r"labels\.csv: the labels cannot be read: no such file"):
            read_labels(tmp_path / "labels.csv")

    def test_a_quote_that_never_ends_is_one_bad_line(self, tmp_path: Path):
        found, faults = self.read(tmp_path, f'sample,label\n"{"a" * 64},3\n{"b" * 64},4\n')
        assert (found, len(faults)) == ({}, 1)
