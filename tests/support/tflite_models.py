"""Small .tflite files for tests, made by the demo's writer; nothing is kept in the tree."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from tritonclient.grpc import service_pb2

from edge_agent import ports
from edge_agent.ports import Fetch
from edge_agent.update import DeviceModels
from edgewire.places import Place, Tier
from edgewire.v1 import edge_pb2
from gateway.demo.digits import DigitsModel, train_base
from gateway.demo.tflite import Graph, golden_beside, write_golden
from tests.support.signed import HERE, Repository

pb: Any = service_pb2


@cache
def digits_model() -> DigitsModel:
    return train_base()


@cache
def digits_file() -> bytes:
    return digits_model().tflite()


@cache
def digits_int8_file() -> bytes:
    return digits_model().tflite_int8()


@cache
def digits_dynamic_file() -> bytes:
    """Per-channel dynamic-range int8, as litert-quantizer writes it: tflite-runtime loads it and answers
    wrong, LiteRT answers right."""
    from litert_quantizer import quantizer, recipe

    process = quantizer.Quantizer(digits_file(), recipe.dynamic_wi8_afp32())
    with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore", UserWarning)
        return bytes(process.quantize().quantized_model or b"")


def difference(*, signature: bool = True, prefix: str = "") -> bytes:
    """a - b, both FP32 [2]. The file lists b before a."""
    graph = Graph("difference")
    b = graph.tensor(f"{prefix}b:0" if prefix else "b", (2,))
    a = graph.tensor(f"{prefix}a:0" if prefix else "a", (2,))
    c = graph.tensor("StatefulPartitionedCall:0" if prefix else "c", (2,))
    graph.node("SUB", (a, b), (c,), schema.SubOptionsT())
    return graph.build({"b": b, "a": a}, {"c": c}, signature=signature)


def picked_strings() -> bytes:
    """BYTES [2] -> its elements 1, 0, 1."""
    graph = Graph("picked")
    text = graph.tensor("text", (2,), object)
    out = graph.tensor("picked", (3,), object)
    pick = graph.constant("pick", np.array([1, 0, 1], np.int32))
    graph.node("GATHER", (text, pick), (out,), schema.GatherOptionsT())
    return graph.build({"text": text}, {"picked": out})


def looked_up() -> bytes:
    """INT32 [n] indices -> FP32 [n], index + 10; the table has four entries, and the rest is refused."""
    graph = Graph("lookup")
    at = graph.tensor("at", (-1,), np.int32)
    out = graph.tensor("value", (-1,))
    table = graph.constant("table", np.arange(10, 14, dtype=np.float32))
    graph.node("GATHER", (table, at), (out,), schema.GatherOptionsT())
    return graph.build({"at": at}, {"value": out})


def doubled() -> bytes:
    """x + x, FP32 [n, m] with both dimensions free."""
    graph = Graph("doubled")
    x, y = graph.tensor("x", (-1, -1)), graph.tensor("y", (-1, -1))
    graph.node("ADD", (x, x), (y,), schema.AddOptionsT())
    return graph.build({"x": x}, {"y": y})


def picked_at() -> bytes:
    """BYTES [n] and INT32 [m] indices -> the elements at these, BYTES [m]."""
    graph = Graph("picked at")
    text, at = graph.tensor("text", (-1,), object), graph.tensor("at", (-1,), np.int32)
    out = graph.tensor("picked", (-1,), object)
    graph.node("GATHER", (text, at), (out,), schema.GatherOptionsT())
    return graph.build({"text": text, "at": at}, {"picked": out})


def logarithm() -> bytes:
    """log(x), FP32 [2]: of zeros it is not finite."""
    graph = Graph("logarithm")
    x, y = graph.tensor("x", (2,)), graph.tensor("y", (2,))
    graph.node("LOG", (x,), (y,))
    return graph.build({"x": x}, {"y": y})


def slow(size: int = 1100) -> bytes:
    """x FP32 [size, size] -> y of its size: products that keep a core busy for a while."""
    graph = Graph("slow")
    x = graph.tensor("x", (size, size))
    last = x
    for at in range(6):
        made = graph.tensor(f"y{at}", (size, size))
        graph.node("BATCH_MATMUL", (last, x), (made,), schema.BatchMatMulOptionsT())
        last = made
    return graph.build({"x": x}, {"y": last})


def request(model: str, version: str = "", id: str = "", **inputs: np.ndarray) -> bytes:
    """A serialized ModelInferRequest with raw data."""
    found = pb.ModelInferRequest(model_name=model, model_version=version, id=id)
    for name, array in inputs.items():
        datatype = {"f": "FP", "i": "INT", "u": "UINT"}[array.dtype.kind] + str(array.dtype.itemsize * 8)
        found.inputs.add(name=name, datatype=datatype, shape=array.shape)
        found.raw_input_contents.append(array.tobytes())
    return found.SerializeToString()


def response(data: bytes) -> Any:
    return pb.ModelInferResponse.FromString(data)


def output(data: bytes, dtype: Any = np.float32, at: int = 0) -> np.ndarray:
    """One output of a serialized ModelInferResponse."""
    found = response(data)
    return np.frombuffer(found.raw_output_contents[at], dtype).reshape(found.outputs[at].shape)


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Hub:
    """What a hub's calls give, from memory, with everything signed; `asked` is what artifacts it was asked
    for."""

    def __init__(self) -> None:
        self.signed = Repository()
        self.root = self.signed.root
        """The root that the device was given when it enrolled."""
        self.pinned: list[bytes] = []
        self.here = HERE
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, int]] = []
        self.piece = 4096
        self.before: Callable[[int], None] = lambda at: None
        """Called before each piece with its offset; what it raises breaks the call off."""

    def add(self, data: bytes) -> str:
        self.files[digest(data)] = data
        return digest(data)

    def wish(
        self,
        device: DeviceModels,
        *wanted: edge_pb2.DesiredModel,
        trials: Sequence[edge_pb2.DesiredModel] = (),
        fetch: Fetch | None = None,
    ) -> None:
        """Have a device run these models and no others."""
        device.desire(edge_pb2.Desired(models=wanted, trials=trials), self.port(fetch))

    def port(self, fetch: Fetch | None = None) -> ports.Hub:
        return ports.Hub(
            fetch or self.fetch,
            self.signed.metadata,
            self.here,
            Place(Tier.SITE, site="plant-7"),
            self.root,
            self.pinned.append,
        )

    async def fetch(self, wanted: str, offset: int) -> AsyncGenerator[bytes, None]:
        self.asked.append((wanted, offset))
        data = self.files[wanted]
        for at in range(offset, len(data), self.piece):
            self.before(at)
            yield data[at : at + self.piece]

    def desired(
        self,
        model: str,
        data: bytes,
        version: str = "1",
        golden: bytes = b"",
        custom: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> edge_pb2.DesiredModel:
        """Signed with `custom` besides what is usual."""
        found = edge_pb2.DesiredModel(
            model=model, version=version, digest=self.add(data), size=len(data), **more
        )
        found.target, found.golden_target = self.signed.add(model, version, data, golden, **custom or {})
        if golden:
            found.golden_digest, found.golden_size = self.add(golden), len(golden)
        return found


def golden_file(folder: Path, cases: list[tuple[dict[str, Any], dict[str, Any]]], tolerance: float) -> bytes:
    """Golden vectors as bytes."""
    path = golden_beside(folder / "vectors")
    write_golden(path, cases, tolerance)
    return path.read_bytes()


def digits_golden(folder: Path) -> bytes:
    pixels = np.linspace(0, 1, 3 * 64, dtype=np.float32).reshape(3, 64)
    return golden_file(
        folder, [({"pixels": pixels}, {"probabilities": digits_model().predict(pixels)})], 1e-4
    )


def digits_golden_int8(folder: Path) -> bytes:
    """The int8 model's, to within what int8 loses."""
    pixels = np.linspace(0, 1, 3 * 64, dtype=np.float32).reshape(3, 64)
    wanted = digits_model().predict(pixels)
    return golden_file(folder, [({"pixels": pixels}, {"probabilities": wanted})], 0.2)
