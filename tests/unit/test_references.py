"""The reference beside an artifact: read as written, and refused with a word where it is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.core.release import Reference
from gateway.store.artifacts import ArtifactError
from gateway.store.references import SUFFIX, read_reference, write_reference


def test_what_is_written_is_read(tmp_path: Path) -> None:
    told = {"output.confidence": Reference((0.25, 0.75), (1, 0, 7))}
    write_reference(tmp_path / "model.tflite", told)
    assert read_reference(tmp_path / "model.tflite") == told


def test_without_one_nothing_is_known(tmp_path: Path) -> None:
    assert read_reference(tmp_path / "model.tflite") == {}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "an object"),
        ({"output.colour": {"edges": [0.5], "counts": [1, 2]}}, "'output.colour'"),
        ({"input.mean": {"edges": [0.5]}}, "edges and counts"),
        ({"input.mean": {"edges": [0.5, 0.5], "counts": [1, 1, 1]}}, "ascend"),
        ({"input.mean": {"edges": [0.5], "counts": [1]}}, "2 counts"),
        ({"input.mean": {"edges": [0.5], "counts": [0, 0]}}, "not all 0"),
        ({"input.mean": {"edges": [0.5], "counts": [1, -1]}}, "2 counts"),
        ({"input.mean": {"edges": [0.5], "counts": [1.5, 1]}}, "whole"),
    ],
)
def test_what_is_no_reference_is_refused(tmp_path: Path, document: object, words: str) -> None:
    (tmp_path / f"model.tflite{SUFFIX}").write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match=words):
        read_reference(tmp_path / "model.tflite")


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"model.tflite{SUFFIX}").write_text("{")
    with pytest.raises(ArtifactError, match="no JSON"):
        read_reference(tmp_path / "model.tflite")
