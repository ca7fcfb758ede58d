"""One model in its worker process: names, datatypes, state, concurrency, batching, ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.runtime import RuntimeSettings, ServedModel, served
from edge_agent.runtime.launch import Artifact, TrialFailed
from gateway.demo.artifacts import wakeword
from oip.errors import OipError
from oip.reasons import Reason
from oip.tensors import pack_bytes
from tests.support import tflite_models as models
from tests.support.tflite_models import output, request, response
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def serving(
    folder: Path, data: bytes, settings: RuntimeSettings | None = None, **more: Any
) -> AsyncIterator[ServedModel]:
    path = folder / "m.tflite"
    path.write_bytes(data)
    model = await ServedModel.start(Artifact("m", "1", path, **more), settings or RuntimeSettings())
    try:
        yield model
    finally:
        await model.close()


@pytest.mark.parametrize(
    ("data", "out"),
    [
        pytest.param(models.difference(), "c", id="a signature's names"),
        pytest.param(models.difference(signature=False), "c", id="tensors' names"),
        pytest.param(
            models.difference(signature=False, prefix="serving_default_"),
            "StatefulPartitionedCall",
            id="a converter's names",
        ),
    ],
)
async def test_inputs_are_bound_by_name(tmp_path: Path, data: bytes, out: str):
    """The file lists b before a, and the request gives them in either order."""
    a, b = np.array([5, 7], np.float32), np.array([1, 2], np.float32)
    async with serving(tmp_path, data) as model:
        assert [spec.name for spec in model.signature.outputs] == [out]
        for given in ({"a": a, "b": b}, {"b": b, "a": a}):
            np.testing.assert_array_equal(output(await model.infer(request("m", **given), 20)), [4, 5])


async def test_bytes_are_kept_as_they_are(tmp_path: Path):
    sent = [b"", b"\xff\xfe\x00A\x00"]
    asked = models.pb.ModelInferRequest(model_name="m")
    asked.inputs.add(name="text", datatype="BYTES", shape=[2])
    asked.raw_input_contents.append(pack_bytes(sent))
    async with serving(tmp_path, models.picked_strings()) as model:
        answer = response(await model.infer(asked.SerializeToString(), 20))
        assert answer.outputs[0].datatype == "BYTES"
        assert answer.raw_output_contents[0] == pack_bytes([sent[1], sent[0], sent[1]])


@pytest.mark.parametrize("shape", [(0, 1), (0, 4), (4, 0), (0, 0)])
async def test_what_has_no_elements_gives_none(tmp_path: Path, shape: tuple[int, int]):
    async with serving(tmp_path, models.doubled()) as model:
        answer = await model.infer(request("m", x=np.zeros(shape, np.float32)), 20)
        assert list(response(answer).outputs[0].shape) == list(shape)
        assert output(answer).size == 0
        row = np.full((1, 3), 3, np.float32)
        np.testing.assert_array_equal(output(await model.infer(request("m", x=row), 20)), row + row)


async def test_inputs_without_elements_never_reach_the_runtime(tmp_path: Path):
    """tflite-runtime ends its process when it lays out a string tensor of none."""

    def asked(texts: list[bytes], places: list[int]) -> bytes:
        found = models.pb.ModelInferRequest(model_name="m")
        found.inputs.add(name="text", datatype="BYTES", shape=[len(texts)])
        found.inputs.add(name="at", datatype="INT32", shape=[len(places)])
        found.raw_input_contents[:] = [pack_bytes(texts), np.array(places, np.int32).tobytes()]
        return found.SerializeToString()

    async with serving(tmp_path, models.picked_at()) as model:
        worker = model.worker_pid
        for texts in ([], [b"a"]):
            answer = response(await model.infer(asked(texts, []), 20))
            assert (list(answer.outputs[0].shape), answer.raw_output_contents[0]) == ([0], b"")
        with pytest.raises(
            OipError, match=r"cannot take inputs of these shapes: 'text' \[0\], 'at' \[1\]"
        ) as e:
            await model.infer(asked([], [0]), 20)
        assert e.value.reason is Reason.MALFORMED
        answer = response(await model.infer(asked([b"a", b"bc"], [1, 0]), 20))
        assert answer.raw_output_contents[0] == pack_bytes([b"bc", b"a"])
        assert model.worker_pid == worker


async def test_no_callers_state_reaches_the_next(tmp_path: Path):
    """The wake word keeps what it heard in resources, which a reset of the variables does not clear."""
    word = wakeword(tmp_path)
    with np.load(f"{word}.golden.npz") as golden:
        silence, noise = golden["0/input/input_audio"], golden["1/input/input_audio"]
        wanted = int(golden["0/output/dense_1"].item())
    async with serving(tmp_path, word.read_bytes()) as model:
        for _ in range(3):
            for _ in range(4):
                await model.infer(request("m", input_audio=noise), 20)
            answer = await model.infer(request("m", input_audio=silence), 20)
            assert abs(int(output(answer, np.uint8).item()) - wanted) <= 1


async def test_a_worker_that_made_many_interpreters_is_relieved_between_two_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(served, "RENEW_AFTER", 10)
    word = wakeword(tmp_path)
    with np.load(f"{word}.golden.npz") as golden:
        silence, wanted = golden["0/input/input_audio"], int(golden["0/output/dense_1"].item())
    async with serving(tmp_path, word.read_bytes()) as model:
        first = model.worker_pid
        while model.worker_pid == first:
            answer = await model.infer(request("m", input_audio=silence), 20)
            assert abs(int(output(answer, np.uint8).item()) - wanted) <= 1
        await until(lambda: not alive(first or 0))


async def test_a_free_first_dimension_takes_what_comes(tmp_path: Path):
    digits = models.digits_model()
    async with serving(tmp_path, models.digits_int8_file()) as model:
        assert model.signature.outputs[0].shape == (-1, 10)
        for rows in (1, 7, 0, 2, 7):
            pixels = np.random.default_rng(rows).random((rows, 64), np.float32)
            found = output(await model.infer(request("m", pixels=pixels), 20))
            assert found.shape == (rows, 10)
            np.testing.assert_allclose(found, digits.predict(pixels), atol=0.25)


@pytest.mark.parametrize("batch", [0, 8])
async def test_each_of_many_callers_gets_its_own_answer(tmp_path: Path, batch: int):
    digits = models.digits_model()
    pixels = np.random.default_rng(1).random((32, 64), np.float32)
    wanted = digits.predict(pixels)
    async with serving(tmp_path, models.digits_file(), batch_max_size=batch, batch_delay_s=0.001) as model:
        assert model.signature.max_batch == batch

        async def caller(at: int) -> None:
            for turn in range(15):
                row = (at + turn) % 32
                body = request("m", id=f"{at}.{turn}", pixels=pixels[row : row + 1])
                answer = await model.infer(body, 30)
                assert response(answer).id == f"{at}.{turn}"
                np.testing.assert_allclose(output(answer), wanted[row : row + 1], atol=1e-5)

        await asyncio.gather(*map(caller, range(32)))
        assert model.inflight == 0


async def test_one_bad_request_does_not_spoil_the_batch(tmp_path: Path):
    settings = {"batch_max_size": 4, "batch_delay_s": 5.0}
    async with serving(tmp_path, models.looked_up(), **settings) as model:
        good = [request("m", at=np.array([at], np.int32)) for at in (3, 0, 1)]
        bad = request("m", at=np.array([99], np.int32))
        found = await asyncio.gather(
            *(model.infer(body, 20) for body in (good[0], bad, *good[1:])), return_exceptions=True
        )
        assert isinstance(found[1], OipError)
        assert found[1].reason is Reason.ENDPOINT_FAILED
        assert [output(found[at]).item() for at in (0, 2, 3)] == [13, 10, 11]  # type: ignore[arg-type]


async def test_batching_needs_a_free_first_dimension(tmp_path: Path):
    with pytest.raises(TrialFailed, match="tensor 'a' of the model has no free first dimension"):
        async with serving(tmp_path, models.difference(), batch_max_size=4):
            pass


async def test_a_caller_that_leaves_and_one_out_of_time_are_freed_at_once(tmp_path: Path):
    size = 1100
    data = models.slow(size)
    body = request("m", x=np.eye(size, dtype=np.float32))
    async with serving(tmp_path, data) as model:
        running = asyncio.create_task(model.infer(body, 60))
        queued = asyncio.create_task(model.infer(body, 60))
        await until(lambda: model.inflight == 2)
        with pytest.raises(OipError) as late:
            await model.infer(body, 0.01)
        assert late.value.reason is Reason.DEADLINE
        for call in (queued, running):
            call.cancel()
        found = await asyncio.gather(running, queued, return_exceptions=True)
        assert all(isinstance(fault, asyncio.CancelledError) for fault in found)
        assert model.inflight == 0
        np.testing.assert_array_equal(output(await model.infer(body, 60)), np.eye(size))


async def test_more_than_the_queue_takes_is_refused(tmp_path: Path):
    settings = RuntimeSettings(max_queue=2)
    body = request("m", a=np.zeros(2, np.float32), b=np.zeros(2, np.float32))
    async with serving(tmp_path, models.difference(), settings) as model:
        found = await asyncio.gather(*(model.infer(body, 20) for _ in range(3)), return_exceptions=True)
        (refused,) = [fault for fault in found if isinstance(fault, OipError)]
        assert refused.reason is Reason.OVERLOADED


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (RuntimeSettings(trial_timeout_s=0.01), "not ready within 0.01 s"),
        (RuntimeSettings(memory_mb=24), "its worker ended|its worker was ended"),
    ],
)
async def test_a_trial_that_does_not_end_well(tmp_path: Path, settings: RuntimeSettings, words: str):
    with pytest.raises(TrialFailed, match=words):
        async with serving(tmp_path, models.difference(), settings):
            pass


async def test_a_run_that_takes_too_long_ends_its_worker_and_another_answers(tmp_path: Path):
    size = 1100
    settings = RuntimeSettings(run_timeout_s=0.05)
    async with serving(tmp_path, models.slow(size), settings) as model:
        first = model.worker_pid
        with pytest.raises(OipError, match=r"did not finish within 0\.05 s") as late:
            await model.infer(request("m", x=np.eye(size, dtype=np.float32)), 30)
        assert late.value.reason is Reason.MODEL_UNAVAILABLE
        await until(lambda: model.worker_pid not in (None, first), 30)


async def test_a_worker_has_no_descriptors_of_the_agents_and_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TIDEGATE_TOKEN", "secret-of-the-agent")
    with (tmp_path / "held").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        async with serving(tmp_path, models.difference()) as model:
            process = Path(f"/proc/{model.worker_pid}")
            assert b"secret-of-the-agent" not in (process / "environ").read_bytes()
            targets = [os.readlink(path) for path in (process / "fd").iterdir()]
            assert not [target for target in targets if target.endswith("held")]
            assert len([target for target in targets if target.startswith("socket:")]) == 1
            limits = (process / "limits").read_text()
            assert str(2048 * 2**20) in next(line for line in limits.splitlines() if "address space" in line)
            assert os.getpgid(model.worker_pid or 0) == model.worker_pid


async def test_a_worker_dies_with_its_agent(tmp_path: Path):
    """The agent is killed while its worker runs native code."""
    path = tmp_path / "m.tflite"
    path.write_bytes(models.slow())
    script = (
        "import asyncio, sys; from pathlib import Path\n"
        "import numpy as np\n"
        "from edge_agent.runtime import RuntimeSettings, ServedModel\n"
        "from edge_agent.runtime.launch import Artifact\n"
        "from tests.support.tflite_models import request\n"
        "async def main():\n"
        "    model = await ServedModel.start(Artifact('m', '1', Path(sys.argv[1])), RuntimeSettings())\n"
        "    print(model.worker_pid, flush=True)\n"
        "    body = request('m', x=np.eye(1100, dtype=np.float32))\n"
        "    while True: await model.infer(body, 60)\n"
        "asyncio.run(main())\n"
    )
    agent = await asyncio.to_thread(
        subprocess.Popen,
        [sys.executable, "-c", script, str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert agent.stdout is not None
        worker = int(await asyncio.to_thread(agent.stdout.readline))
        assert alive(worker)
        agent.send_signal(signal.SIGKILL)
        await until(lambda: not alive(worker))
    finally:
        agent.kill()
        agent.communicate()


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(({"event": "ran", "delegate": "xnnpack"}, {}), id="half a delegate"),
        pytest.param(({"event": "ran"}, None), id="a fault of the agent's own"),
    ],
)
async def test_a_worker_that_answers_nonsense_is_replaced(tmp_path: Path, frame: Any):
    given = {"a": np.array([5, 7], np.float32), "b": np.array([1, 2], np.float32)}
    async with serving(tmp_path, models.difference()) as model:
        worker = model._worker

        async def nonsense() -> Any:
            return frame

        worker._receive = nonsense
        with pytest.raises(OipError) as caught:
            await model.infer(request("m", **given), 20)
        assert caught.value.reason is Reason.MODEL_UNAVAILABLE
        await until(lambda: model.ready, 20)
        np.testing.assert_array_equal(output(await model.infer(request("m", **given), 20)), [4, 5])
        assert worker.ended.is_set()
