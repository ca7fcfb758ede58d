"""Model files over held-out rows, without Ray, and the operator's held-out data."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflite_runtime.interpreter import Interpreter

from gateway.core.errors import Refusal
from gateway.core.place import Place, Tier
from gateway.core.training import Sample
from gateway.core.training_run import PlacedSample
from gateway.demo.digits import sample
from gateway.jobs.judging import JudgingFailed, ModelFile, QualitySpec, measure_quality
from gateway.jobs.judging_task import Rows, measure
from gateway.jobs.litert import LiteRtSession
from gateway.pool.runtimes._interface import LoadError
from tests.support import tflite_models as models
from tests.support.onnx_models import doubling

PIXELS, LABELS = sample(100)
PLACE = Place(Tier.SITE, site="a")
HELD_OUT = [Rows({"pixels": PIXELS[:70]}, LABELS[:70]), Rows({"pixels": PIXELS[70:]}, LABELS[70:])]


def outcome(
    files: dict[str, tuple[str, bytes]], held_out: list[Rows] = HELD_OUT
) -> dict[str, tuple[Any, ...]]:
    messages = list(measure(files, held_out, 1.0))
    assert messages[0] == ("began",)
    assert [m[1] for m in messages if m[0] == "measuring"] == list(files)
    return {m[1]: (m[0], *m[2:]) for m in messages if m[0] in ("measured", "unmeasured")}


def devices_answer(content: bytes) -> np.ndarray:
    """On the devices' own runtime."""
    runner = Interpreter(model_content=content, num_threads=1).get_signature_runner()
    return runner(pixels=PIXELS)["probabilities"]


def test_int8_is_measured_as_devices_compute_it():
    found = LiteRtSession(models.digits_int8_file(), 1).run({"pixels": PIXELS})["probabilities"]
    theirs = devices_answer(models.digits_int8_file())
    np.testing.assert_allclose(found, theirs, atol=2 / 256)
    np.testing.assert_array_equal(found.argmax(axis=1), theirs.argmax(axis=1))


def test_every_file_is_counted_class_by_class():
    files = {"onnx": ("onnx", models.digits_model().onnx()), "tflite": ("tflite", models.digits_int8_file())}
    found = outcome(files)
    for name, predicted in (
        ("onnx", models.digits_model().predict(PIXELS)),
        ("tflite", devices_answer(models.digits_int8_file())),
    ):
        hits = LABELS[predicted.argmax(axis=1) == LABELS]
        assert found[name] == (
            "measured",
            dict(enumerate(np.bincount(LABELS, minlength=10).tolist())),
            dict(enumerate(np.bincount(hits, minlength=10).tolist())),
        )


def test_a_model_of_so_many_rows_and_no_fewer_is_run_on_so_many():
    graph = models.Graph("fixed")
    x = graph.tensor("x", (3, 2))
    y = graph.tensor("y", (3, 2))
    graph.node("RELU", (x,), (y,))
    content = graph.build({"x": x}, {"y": y})
    rows = np.array([[1, 0], [0, 1], [1, 0], [0, 1], [1, 0]], np.float32)
    found = outcome({"fixed": ("tflite", content)}, [Rows({"x": rows}, np.array([0, 1, 0, 1, 1]))])
    assert found["fixed"] == ("measured", {0: 2, 1: 3}, {0: 2, 1: 2})


def test_an_answer_that_is_no_number_is_wrong():
    graph = models.Graph("root")
    x, y = graph.tensor("x", (-1, 2)), graph.tensor("y", (-1, 2))
    graph.node("SQRT", (x,), (y,))
    rows = np.array([[4, 1], [4, -1]], np.float32)
    found = outcome(
        {"root": ("tflite", graph.build({"x": x}, {"y": y}))}, [Rows({"anything": rows}, np.array([0, 1]))]
    )
    assert found["root"] == ("measured", {0: 1, 1: 1}, {0: 1})


@pytest.mark.parametrize(
    ("file", "held_out", "says"),
    [
        (("tflite", b"nonsense"), HELD_OUT, "litert cannot open it"),
        (("onnx", b"nonsense"), HELD_OUT, "onnxruntime cannot open it"),
        (("tflite", models.difference()), HELD_OUT, "it takes inputs a, b, and the held-out data has pixels"),
        (("tflite", models.looked_up()), [Rows({"at": np.full(3, 99, np.int32)}, LABELS[:3])], "it fails on the held-out"),
        (("tflite", models.digits_file()), [Rows({"pixels": PIXELS[:, :9]}, LABELS)], "it takes pixels [-1, 64], and"),
        (
            ("tflite", models.digits_file()),
            [Rows({"pixels": PIXELS.astype(np.complex64)}, LABELS)],
            "its input pixels is FP32, and the held-out data complex64",
        ),
        (("tflite", models.looked_up()), [Rows({"at": np.zeros(3, np.int32)}, LABELS[:3])], "a score for each class"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_measured_says_why(file: tuple[str, bytes], held_out: list[Rows], says: str):
    found = outcome({"bad": file, "good": ("onnx", doubling())}, held_out)
    assert found["bad"][0] == "unmeasured"
    assert says in found["bad"][1]
    assert "good" in found


def test_names_without_a_signature_are_those_that_the_device_gives():
    session = LiteRtSession(models.difference(signature=False, prefix="serving_default_"), 1)
    assert {spec.name for spec in session.signature.inputs} == {"a", "b"}
    given = {"a": np.array([5, 7], np.float32), "b": np.array([1, 2], np.float32)}
    assert [array.tolist() for array in session.run(given).values()] == [[4, 5]]


def test_strings_are_not_measured_with():
    with pytest.raises(LoadError, match="'text' is of a type"):
        LiteRtSession(models.picked_strings(), 1)


def spec(**changes: Any) -> QualitySpec:
    return QualitySpec(PLACE, {"tflite": ModelFile("tflite", models.digits_file())}, **changes)


def placed(labels: np.ndarray, places: str = "tier=site") -> PlacedSample:
    return PlacedSample(Sample("s", {"pixels": PIXELS[:2]}, labels), places)


def test_held_out_samples_and_files_stay_where_they_may_be():
    with pytest.raises(Refusal, match="1 of 2 samples may not go to tier site, site a"):
        spec(samples=(placed(LABELS[:2]), placed(LABELS[:2], "tier=site;site=b")))
    with pytest.raises(Refusal, match="made from data that may not go"):
        spec(places="tier=device")
    with pytest.raises(Refusal, match="made from data that may not go"):
        spec(current_places="tier=device")


async def test_without_held_out_data_nothing_is_run():
    found = await measure_quality(spec())
    assert found.candidate["tflite"].rows == {}


def packed(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, r"held\.npz cannot be read: no such file"),
        (b"nonsense", "is no .npz"),
        (
            packed(**{"label": np.array([object()]), "input/x": PIXELS}),
            "is no .npz that can be read without pickle",
        ),
        (packed(**{"input/pixels": PIXELS}), "needs an array `label`"),
        (packed(**{"label": LABELS.astype(float), "input/pixels": PIXELS}), "one integer for each row"),
        (packed(label=LABELS), "needs an array `input/NAME`"),
        (packed(label=LABELS, pixels=PIXELS), "and not 'pixels'"),
        (
            packed(**{"label": LABELS, "input/pixels": PIXELS[:9]}),
            "input/pixels and label are not of the same",
        ),
    ],
)
async def test_held_out_data_that_is_none_says_so(content: bytes | None, says: str, tmp_path: Path):
    if content is not None:
        (tmp_path / "held.npz").write_bytes(content)
    with pytest.raises(JudgingFailed, match=says):
        await measure_quality(spec(data=tmp_path / "held.npz"))


async def test_a_sample_without_a_label_for_each_row_says_so():
    with pytest.raises(JudgingFailed, match="one label for each of its rows"):
        await measure_quality(spec(samples=(placed(LABELS[:1]),)))
