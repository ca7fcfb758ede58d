"""A Triton model repository that Tidegate writes: in a folder and in a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore.store import MemoryStore
from pydantic import ValidationError

from gateway.backends._repository import MARK, Repository, RepositoryError, open_repository, with_model
from gateway.backends.triton import TritonConfig

FILES = {"model.onnx": b"old", "model.py": b"code", "assets/labels.txt": b"a b"}


@pytest.fixture(params=["folder", "file://", "bucket"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    if request.param == "bucket":
        return Repository(MemoryStore())
    return open_repository(str(tmp_path) if request.param == "folder" else tmp_path.as_uri())


async def test_only_own_versions_are_told_apart_changed_and_removed(repository: Repository) -> None:
    await repository.write("m", 1, FILES)
    assert await repository.versions("m") == {1: True}
    assert await repository.versions("other") == {}
    assert await repository.read("m", 1) == {**FILES, MARK: b""}
    await repository.write("m", 1, {"model.onnx": b"new"})
    assert await repository.read("m", 1) == {"model.onnx": b"new", MARK: b""}
    await repository.write("m", 10, FILES)
    await repository.remove("m", 1)
    await repository.remove("m", 1)
    assert await repository.versions("m") == {10: True}


async def test_what_others_put_there(tmp_path: Path) -> None:
    for path in ("m/1/model.py", "m/1/__pycache__/model.pyc", "m/config.pbtxt", "m/.tidegate-2/model.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    repository = open_repository(str(tmp_path))
    assert await repository.versions("m") == {1: False}
    assert await repository.read("m", 1) == {"model.py": b"x"}
    await repository.write("m", 2, FILES)
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["1", "2", "config.pbtxt"]


async def test_in_a_bucket_the_model_file_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore

    written: list[str] = []
    put = obstore.put_async

    async def noted(store: object, path: str, content: bytes) -> object:
        written.append(path)
        return await put(store, path, content)  # type: ignore[arg-type]

    monkeypatch.setattr(obstore, "put_async", noted)
    await Repository(MemoryStore()).write("m", 3, FILES)
    assert written[-1] == "m/3/model.onnx"
    assert len(written) == 4


async def test_a_repository_that_cannot_be_had(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("a file where a model should be")
    repository = open_repository(str(tmp_path))
    with pytest.raises(
        RepositoryError, match=r"^its model repository cannot be written \(not a directory\)$"
    ):
        await repository.write("m", 1, FILES)


def test_one_model_file_is_replaced() -> None:
    assert with_model(FILES, b"new") == {**FILES, "model.onnx": b"new"}
    with pytest.raises(RepositoryError, match=r"has no file with the suffix \.onnx"):
        with_model({"model.py": b""}, b"new")
    with pytest.raises(RepositoryError, match=r"has 2 files with the suffix \.onnx"):
        with_model({"a.onnx": b"", "b/c.onnx": b""}, b"new")


def _config(**keys: str) -> TritonConfig:
    declared = {"name": "t", "kind": "triton", "url": "grpc://h:1", "location": {"tier": "cloud"}, **keys}
    return TritonConfig.model_validate(declared)


def test_the_key() -> None:
    for good in ("/models", "file:///models", "s3://bucket", "s3://bucket/some/prefix"):
        config = _config(repository=good)
        assert config.follows(None) == ("onnx",)
        assert config.identity == _config().identity, "figures stay those of the same server"
    assert _config().follows("x.onnx") == ()
    for bad in ("models", "s3://", "gs://bucket", "file://models", "http://h/models"):
        with pytest.raises(
            ValidationError, match="give the path of a folder, file:///PATH or s3://BUCKET/PREFIX"
        ):
            _config(repository=bad)
