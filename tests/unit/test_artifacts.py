"""Model files: their digests, their golden vectors, and what the configuration says of missing ones."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from gateway.core.config import Config
from gateway.core.config.load import parse_config
from gateway.core.config.problems import ConfigError
from gateway.pool.config import PoolConfig
from gateway.store.artifacts import Artifact, ArtifactError, load_artifact


def test_a_file_is_known_by_its_digest_and_size(tmp_path: Path):
    model = tmp_path / "m.onnx"
    model.write_bytes(b"weights")
    assert load_artifact(model) == Artifact(
        model, "sha256:" + hashlib.sha256(b"weights").hexdigest(), 7, None, "", 0
    )


def test_golden_vectors_lie_beside_it(tmp_path: Path):
    model, golden = tmp_path / "m.onnx", tmp_path / "m.onnx.golden.npz"
    model.write_bytes(b"weights")
    golden.write_bytes(b"vectors!")
    (tmp_path / "m.golden.npz").write_bytes(b"of another")
    found = load_artifact(str(model))
    assert (found.golden, found.golden_size) == (golden, 8)
    assert found.golden_digest == "sha256:" + hashlib.sha256(b"vectors!").hexdigest()


@pytest.mark.parametrize("make", ["missing", "folder", "odd golden", "dangling golden"])
def test_what_cannot_be_read_is_named_without_its_folder(tmp_path: Path, make: str):
    model = tmp_path / "m.onnx"
    golden = tmp_path / "m.onnx.golden.npz"
    if make == "folder":
        model.mkdir()
    elif make != "missing":
        model.write_bytes(b"weights")
    if make == "odd golden":
        golden.mkdir()
    elif make == "dangling golden":
        os.symlink("nowhere", golden)
    with pytest.raises(ArtifactError) as caught:
        load_artifact(model)
    assert "m.onnx" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


CONFIG = """\
version: 1
gateway: {name: gw, location: {tier: site, site: plant-7}}
endpoints:
  - {name: accel, kind: pool, runtime: openvino, location: {tier: site, site: plant-7}}
models:
  - name: digits
    variants:
      - {endpoint: accel, artifact: ARTIFACT}
privacy: {default: internal, classes: {internal: {allow: [{tier: [site]}]}}}
policies:
  - {name: default, match: {}, weights: {latency: 1}}
"""


def _parse(artifact: str, base: Path, environ: dict[str, str] | None = None) -> Config:
    text = CONFIG.replace("ARTIFACT", artifact)
    return parse_config(text, "t.yaml", {"pool": PoolConfig}, environ or {}, base)


def test_the_configuration_makes_the_path_absolute_from_its_own_folder(tmp_path: Path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m.onnx").write_bytes(b"weights")
    config = _parse("sub/../models/m.onnx", tmp_path)
    assert config.models[0].variants[0].artifact == str(tmp_path / "models" / "m.onnx")
    absolute = _parse(str(tmp_path / "models" / "m.onnx"), Path("/nowhere"))
    assert absolute.models[0].variants[0].artifact == str(tmp_path / "models" / "m.onnx")


@pytest.mark.parametrize(
    ("written", "wrong"),
    [
        ("m.onnx", "there is no such file: give its path, relative to this file"),
        ("models", "this is a directory: name the file in it"),
        ("pipe", "not a regular file"),
    ],
)
def test_a_file_that_cannot_be_had_is_an_error_at_its_place(tmp_path: Path, written: str, wrong: str):
    (tmp_path / "models").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError) as caught:
        _parse(written, tmp_path)
    assert str(caught.value) == f"t.yaml:8:37: artifact '{written}': {wrong}"


def test_a_path_from_the_environment_is_shown_as_it_is_written(tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        _parse('"${env:MODEL}"', tmp_path, {"MODEL": "secret/place.onnx"})
    assert "artifact '${env:MODEL}': there is no such file" in str(caught.value)
    assert "place" not in str(caught.value)


def test_a_value_that_is_no_text_is_left_to_the_types(tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        _parse("7", tmp_path)
    assert "artifact must be a text" in str(caught.value)
