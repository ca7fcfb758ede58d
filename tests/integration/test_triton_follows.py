"""A real Triton follows releases through its model repository, under load, and goes back."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from gateway.backends.triton import TritonConfig, TritonEndpoint
from gateway.core.config import Location
from gateway.core.errors import AttemptError
from gateway.core.place import Tier
from gateway.core.release import Release, Stage
from gateway.demo import digits
from gateway.demo.triton import TritonServer
from tests.support.onnx_models import identity
from tests.support.permits import ALONE, PERMIT
from tests.support.waiting import until

CALLERS = 4
SEVEN = digits.sample(40)[0]
"""Images; that they are told apart is what the models below are for."""


def shifted(model: digits.DigitsModel, by: int) -> digits.DigitsModel:
    """One that takes every digit for the `by`th after it."""
    weights = model.weights
    moved = weights._replace(w2=np.roll(weights.w2, by, axis=1), b2=np.roll(weights.b2, by))
    return replace(model, weights=moved)


def release(version: str, source: str = "push") -> Release:
    return Release("digits", version, {}, int(version), Stage.PASSED, source=source)


def golden(model: digits.DigitsModel) -> bytes:
    file = io.BytesIO()
    np.savez(
        file,
        **{"0/input/pixels": SEVEN[:2], "0/output/probabilities": model.predict(SEVEN[:2])},
        tolerance=np.float64(1e-4),
    )
    return file.getvalue()


@pytest.fixture(scope="module")
def model() -> digits.DigitsModel:
    return digits.train_base()


@pytest.fixture(scope="module")
def server(model: digits.DigitsModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = digits.build_repository(tmp_path_factory.mktemp("follows"), model=model)
    (repository / "digits" / "1" / "labels.txt").write_text("zero\none\n")
    with TritonServer(repository, load=["digits"]) as server:
        server.repository = repository  # type: ignore[attr-defined]
        yield server


@asynccontextmanager
async def following(server: TritonServer) -> AsyncIterator[TritonEndpoint]:
    config = TritonConfig(
        name="t",
        kind="triton",
        url=f"grpc://127.0.0.1:{server.grpc_port}",
        repository=str(server.repository),  # type: ignore[attr-defined]
        location=Location(tier=Tier.CLOUD),
    )
    endpoint = TritonEndpoint(config, ALONE)
    await endpoint.start()
    try:
        yield endpoint
    finally:
        await endpoint.close()


@dataclass
class Load:
    """Requests without a version, one after the other; what answered is held against the models by version."""

    endpoint: TritonEndpoint
    models: dict[str, digits.DigitsModel]
    answered: Counter[str] = field(default_factory=Counter)
    failures: list[AttemptError] = field(default_factory=list)

    async def ask(self, version: str = "") -> str:
        """The version that answered."""
        request = service_pb2.ModelInferRequest(model_name="digits", model_version=version)
        request.inputs.add(name="pixels", datatype="FP32", shape=SEVEN.shape)
        request.raw_input_contents.append(SEVEN.tobytes())
        answer = service_pb2.ModelInferResponse.FromString(
            await self.endpoint.infer(request.SerializeToString(), (), 10, PERMIT)
        )
        found = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(-1, 10)
        np.testing.assert_allclose(found, self.models[answer.model_version].predict(SEVEN), atol=1e-5)
        return answer.model_version

    async def keep_asking(self) -> None:
        while True:
            try:
                self.answered[await self.ask()] += 1
            except AttemptError as error:
                self.failures.append(error)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        callers = [asyncio.create_task(self.keep_asking()) for _ in range(CALLERS)]
        try:
            yield
            before = sum(self.answered.values())
            await until(lambda: sum(self.answered.values()) > before + CALLERS)
        finally:
            for caller in callers:
                caller.cancel()
            for ended in await asyncio.gather(*callers, return_exceptions=True):
                assert isinstance(ended, asyncio.CancelledError), ended


async def test_forwards_and_back_under_load(server: TritonServer, model: digits.DigitsModel):
    two, three = shifted(model, 1), shifted(model, 2)
    folder = server.repository / "digits"  # type: ignore[attr-defined]
    async with following(server) as endpoint:
        load = Load(endpoint, {"1": model, "2": two, "3": three})
        async with load.running():
            assert await endpoint.follow("digits", release("1", "file"), b"", None) == ""
            assert await load.ask() == "1"
            assert await endpoint.follow("digits", release("2"), two.onnx(), golden(two)) == ""
            assert await load.ask() == "2"
            written = {
                path.name: path.stat().st_mtime_ns for path in (folder / "2").iterdir() if path.is_file()
            }
            assert set(written) == {"model.py", "model.onnx", "labels.txt", "tidegate"}
            assert await endpoint.follow("digits", release("2"), two.onnx(), golden(two)) == ""
            assert {
                path.name: path.stat().st_mtime_ns for path in (folder / "2").iterdir() if path.is_file()
            } == written
            assert await endpoint.follow("digits", release("3"), three.onnx(), None) == ""
            assert await load.ask() == "3"
            assert await endpoint.follow("digits", release("2"), two.onnx(), golden(two)) == ""
            assert await load.ask() == "2"
            assert await endpoint.follow("digits", release("1", "file"), b"", None) == ""
            assert await load.ask() == "1"
            with pytest.raises(AttemptError):
                await load.ask("2")
        assert sorted(path.name for path in folder.iterdir()) == ["1", "config.pbtxt"]
        assert set(load.answered) == {"1", "2", "3"}
        assert load.failures == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (
            b"nonsense",
            "Triton says: load failed for model 'digits.tidegate-trial': version 2 is at UNAVAILABLE",
        ),
        (identity("N", 64, name="pixels"), "Triton says: Failed to process the request"),
    ],
    ids=["no model", "another model"],
)
async def test_what_cannot_serve_is_taken_away_and_the_old_serves(
    server: TritonServer, model: digits.DigitsModel, content: bytes, why: str
):
    folder = server.repository / "digits"  # type: ignore[attr-defined]
    async with following(server) as endpoint:
        load = Load(endpoint, {"1": model})
        async with load.running():
            said = await endpoint.follow("digits", release("2"), content, golden(model))
            assert said.startswith(why)
            assert str(folder) not in said
            assert await load.ask() == "1"
        assert load.failures == []
        assert sorted(path.name for path in folder.iterdir()) == ["1", "config.pbtxt"]


async def test_golden_vectors_that_do_not_come_out_right(server: TritonServer, model: digits.DigitsModel):
    async with following(server) as endpoint:
        said = await endpoint.follow("digits", release("2"), shifted(model, 3).onnx(), golden(model))
        assert said.startswith("golden case 0, output 'probabilities': off by ")
        assert await Load(endpoint, {"1": model}).ask() == "1"
