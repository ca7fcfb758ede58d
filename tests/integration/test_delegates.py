"""Delegates: a real shared library, built here, and what the chain makes of its faults."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from edge_agent.delegates import DEFAULT_CHAIN, DelegateSpec, kinds, probe
from edge_agent.delegates._probing import PROBE_MODEL
from edge_agent.runtime import RuntimeSettings, ServedModel
from edge_agent.runtime.launch import Artifact, TrialFailed
from oip.errors import OipError
from oip.reasons import Reason
from tests.support import probe_model
from tests.support import tflite_models as models
from tests.support.tflite_models import output, request
from tests.support.waiting import until

SOURCE = Path(__file__).parents[1] / "data" / "delegate.c"
A, B = np.array([5, 7], np.float32), np.array([1, 2], np.float32)

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc builds the delegate")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("delegate") / "libtest_delegate.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", made, SOURCE], check=True, timeout=60)
    return str(made)


@pytest.fixture(scope="module")
def no_delegate(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("library")
    (folder / "nothing.c").write_text("int nothing(void) { return 0; }\n")
    made = folder / "libnothing.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", made, folder / "nothing.c"], check=True, timeout=60)
    return str(made)


@asynccontextmanager
async def serving(folder: Path, *chain: DelegateSpec) -> AsyncIterator[ServedModel]:
    """a - b, and then its negative: two nodes, SUB and NEG."""
    graph = models.Graph("two")
    a, b, c, d = (graph.tensor(name, (2,)) for name in "abcd")
    graph.node("SUB", (a, b), (c,), models.schema.SubOptionsT())
    graph.node("NEG", (c,), (d,), models.schema.NegOptionsT())
    path = folder / "two.tflite"
    path.write_bytes(graph.build({"a": a, "b": b}, {"d": d}))
    model = await ServedModel.start(Artifact("two", "1", path), RuntimeSettings(chain or DEFAULT_CHAIN))
    try:
        yield model
    finally:
        await model.close()


async def ask(model: ServedModel) -> np.ndarray:
    return output(await model.infer(request("two", a=A, b=B), 20))


def test_delegates_are_found_by_looking():
    assert set(kinds()) == {"external", "xnnpack", "builtin"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"kind": "external"}, "needs a library"),
        ({"kind": "builtin", "library": "x.so"}, "takes no library"),
        ({"kind": "xnnpack", "options": {"a": "b"}}, "takes no options"),
    ],
)
def test_a_chain_that_makes_no_sense_is_refused(spec: dict[str, object], words: str):
    with pytest.raises(ValueError, match=words):
        DelegateSpec(**spec)  # type: ignore[arg-type]


def test_the_bundled_model_is_what_its_writer_writes():
    assert PROBE_MODEL.read_bytes() == probe_model.build()
    assert PROBE_MODEL.stat().st_size < 50_000


@needs_gcc
def test_probe_says_what_each_can_and_why_not(library: str, no_delegate: str):
    chain = [
        DelegateSpec("external", library, {"mode": "none"}),
        DelegateSpec("external", library, {"mode": "crash"}),
        DelegateSpec("external", library, {"speed": "11"}),
        DelegateSpec("external", no_delegate),
        DelegateSpec("external", "/nowhere/libabsent.so"),
        *DEFAULT_CHAIN,
    ]
    found = probe(chain)
    assert [(e["delegate"], e["available"], e["nodes_taken"], e["nodes"]) for e in found] == [
        ("external:libtest_delegate.so", True, 0, 7),
        ("external:libtest_delegate.so", False, 0, 0),
        ("external:libtest_delegate.so", False, 0, 0),
        ("external:libnothing.so", False, 0, 0),
        ("external:libabsent.so", False, 0, 0),
        ("xnnpack", True, 6, 7),
        ("builtin", True, 0, 7),
    ]
    reasons = [e["reason"] for e in found]
    assert reasons[0] == reasons[5] == reasons[6] == ""
    assert reasons[1].endswith(f"ended its process, with status {-signal.SIGABRT}.")
    assert "options" in reasons[2]
    assert "no TFLite delegate" in reasons[3]
    assert "missing" in reasons[4]
    assert found[5]["version"] == "tflite-runtime 2.14.0"
    assert not any("/" in reason for reason in reasons)


@needs_gcc
async def test_an_external_delegate_runs_the_nodes_that_it_takes(library: str, tmp_path: Path):
    async with serving(
        tmp_path, DelegateSpec("external", library, {"mode": "take"}), *DEFAULT_CHAIN
    ) as model:
        assert (model.loaded.delegate, model.loaded.taken, model.loaded.nodes) == (
            "external:libtest_delegate.so", 1, 2,
        )  # fmt: skip
        assert model.degraded == ""
        np.testing.assert_array_equal(await ask(model), B - A)


@needs_gcc
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "none"}, "took none of the model's 2 nodes"),
        ({"mode": "create"}, "refused to make a delegate"),
        ({"mode": "prepare"}, "could not prepare the model"),
        ({"mode": "crash"}, "was ended by SIGABRT while loading it with external:libtest_delegate.so"),
    ],
)
async def test_a_delegate_that_does_not_work_is_left_for_the_next(
    library: str, tmp_path: Path, options: dict[str, str], words: str
):
    async with serving(tmp_path, DelegateSpec("external", library, options), *DEFAULT_CHAIN) as model:
        assert (model.loaded.delegate, model.loaded.taken) == ("xnnpack", 2)
        assert model.degraded.startswith("Model 'two' runs on xnnpack: external:libtest_delegate.so")
        assert words in model.degraded
        np.testing.assert_array_equal(await ask(model), B - A)


async def test_a_library_that_is_missing_is_left_for_the_next(tmp_path: Path):
    async with serving(tmp_path, DelegateSpec("external", "/nowhere/libabsent.so"), *DEFAULT_CHAIN) as model:
        assert model.degraded == (
            "Model 'two' runs on xnnpack: external:libabsent.so: its library is missing or does not fit "
            "this machine."
        )


async def test_a_chain_of_which_nothing_works_fails_the_trial(tmp_path: Path):
    with pytest.raises(TrialFailed, match=r"no delegate runs the model: external:libabsent\.so"):
        async with serving(tmp_path, DelegateSpec("external", "/nowhere/libabsent.so")):
            pass


@needs_gcc
async def test_a_device_unplugged_while_it_runs_costs_no_request(library: str, tmp_path: Path):
    unplugged = tmp_path / "unplugged"
    spec = DelegateSpec("external", library, {"mode": "invoke", "unplugged": str(unplugged)})
    async with serving(tmp_path, spec, *DEFAULT_CHAIN) as model:
        np.testing.assert_array_equal(await ask(model), B - A)
        assert model.loaded.taken == 1
        unplugged.touch()
        np.testing.assert_array_equal(await ask(model), B - A)
        assert (model.loaded.delegate, model.loaded.taken) == ("xnnpack", 2)
        assert "failed while running the model" in model.degraded
        unplugged.unlink()
        np.testing.assert_array_equal(await ask(model), B - A)


async def test_no_request_takes_the_delegate_from_the_others(tmp_path: Path):
    """An index beyond the table fails on every delegate."""
    path = tmp_path / "lookup.tflite"
    path.write_bytes(models.looked_up())
    model = await ServedModel.start(Artifact("lookup", "1", path), RuntimeSettings())
    try:
        before = (model.loaded.delegate, model.degraded)
        for _ in range(3):
            with pytest.raises(OipError, match="could not compute this request") as bad:
                await model.infer(request("lookup", at=np.array([1, 99], np.int32)), 20)
            assert bad.value.reason is Reason.ENDPOINT_FAILED
            answer = await model.infer(request("lookup", at=np.array([3, 0], np.int32)), 20)
            np.testing.assert_array_equal(output(answer), [13, 10])
        assert (model.loaded.delegate, model.degraded) == before
    finally:
        await model.close()


@needs_gcc
async def test_a_delegate_whose_workers_keep_ending_is_given_up(library: str, tmp_path: Path):
    async with serving(
        tmp_path, DelegateSpec("external", library, {"mode": "take"}), *DEFAULT_CHAIN
    ) as model:
        for _ in range(3):
            pid = model.worker_pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until(lambda gone=pid: model.worker_pid not in (None, gone), 30)
        assert model.loaded.delegate == "xnnpack"
        assert "ended 3 times in a row" in model.degraded
        np.testing.assert_array_equal(await ask(model), B - A)
