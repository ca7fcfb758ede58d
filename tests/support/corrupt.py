"""Artifacts that are wrong on purpose, as a hub could hand them out with a right digest."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from gateway.demo.tflite import Graph
from tests.support import tflite_models as models

PIXELS = np.linspace(0, 1, 128, dtype=np.float32).reshape(2, 64)


@dataclass(frozen=True, slots=True)
class Corrupt:
    name: str
    data: bytes
    golden: bytes = b""


def corrupt_artifacts(folder: Path, wakeword: bytes) -> Iterator[Corrupt]:
    """More than a hundred; `folder` for scratch, `wakeword` a larger model with state in resources."""
    good = golden(folder)
    yield from _truncated()
    yield from _edited(good)
    yield from _crashers()
    yield from _lies()
    yield from _flipped("digits", models.digits_file(), good, 30)
    yield from _flipped("digits-int8", models.digits_int8_file(), b"", 20)
    yield from _flipped("wakeword", wakeword, b"", 30)


def golden(folder: Path) -> bytes:
    wanted = models.digits_model().predict(PIXELS)
    return models.golden_file(folder, [({"pixels": PIXELS}, {"probabilities": wanted})], 1e-4)


def _truncated() -> Iterator[Corrupt]:
    data = models.digits_file()
    for size in (0, 3, 8, 15, 40, 300, 1000, len(data) // 2, len(data) - 4000, len(data) - 1):
        yield Corrupt(f"truncated to {size}", data[:size])
    yield Corrupt("not a model", b"#!/bin/sh\n" * 100)
    yield Corrupt("nothing but zeros", bytes(20_000))
    yield Corrupt("another identifier", data[:4] + b"TFL9" + data[8:])


def edit(data: bytes, change: Callable[[Any], None]) -> bytes:
    """A file with a change to its unpacked tables."""
    import flatbuffers

    model: Any = schema.ModelT.InitFromPackedBuf(data, 0)
    change(model)
    builder = flatbuffers.Builder(4096)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _edited(good: bytes) -> Iterator[Corrupt]:
    """Whole flatbuffers that say impossible things."""

    def put(path: str, value: Any) -> Callable[[Any], None]:
        def change(model: Any) -> None:
            *way, last = path.split(".")
            at = holder = model
            for part in way:
                holder, at = at, at[int(part)] if part.isdigit() else getattr(at, part)
            if last.isdigit():
                setattr(holder, way[-1], [value if i == int(last) else old for i, old in enumerate(at)])
            else:
                setattr(at, last, value)

        return change

    changes = {
        "schema version 9": put("version", 9),
        "no subgraph": put("subgraphs", []),
        "an operator of the future": put("operatorCodes.0.builtinCode", 205),
        "an operator without number": put("operatorCodes.0.builtinCode", 9999),
        "a version of the future": put("operatorCodes.0.version", 99),
        "version 0": put("operatorCodes.1.version", 0),
        "an opcode beyond the list": put("subgraphs.0.operators.0.opcodeIndex", 77),
        "an input beyond the tensors": put("subgraphs.0.operators.0.inputs.0", 100_000),
        "a negative input": put("subgraphs.0.operators.0.inputs.0", -7),
        "an output beyond the tensors": put("subgraphs.0.operators.1.outputs.0", 2**30),
        "a negative output": put("subgraphs.0.operators.1.outputs.0", -2),
        "a node that reads its own output": put("subgraphs.0.operators.0.inputs.0", 1),
        "a cycle of two nodes": put("subgraphs.0.operators.0.inputs.0", 2),
        "a node that writes a constant": put("subgraphs.0.operators.0.outputs.0", 4),
        "two nodes that write one tensor": put("subgraphs.0.operators.1.outputs.0", 1),
        "a subgraph's input beyond the tensors": put("subgraphs.0.inputs.0", 500),
        "a subgraph's output beyond the tensors": put("subgraphs.0.outputs.0", 500),
        "a buffer beyond the list": put("subgraphs.0.tensors.4.buffer", 4000),
        "a constant of another size": put("subgraphs.0.tensors.4.shape", [64, 65]),
        "a constant too large to be": put("subgraphs.0.tensors.4.shape", [2**30, 2**30]),
        "an input too large to be": put("subgraphs.0.tensors.0.shape", [2**20, 2**20]),
        "a negative dimension": put("subgraphs.0.tensors.0.shape", [-3, 64]),
        "a signature of another rank": put("subgraphs.0.tensors.0.shapeSignature", [-1, 64, 64]),
        "a datatype without number": put("subgraphs.0.tensors.0.type", 99),
        "another datatype for weights": put("subgraphs.0.tensors.4.type", schema.TensorType.INT32),
        "a signature of no subgraph": put("signatureDefs.0.subgraphIndex", 3),
        "a signature of no tensor": put("signatureDefs.0.inputs.0.tensorIndex", 300),
        "a signature without a name": put("signatureDefs.0.inputs.0.name", ""),
        "weights outside the file": put("buffers.1.offset", 5_000_000),
        "shapes that do not multiply": put("subgraphs.0.operators.0.inputs.1", 6),
        "too few inputs of a node": put("subgraphs.0.operators.0.inputs", [0]),
        "no outputs of a node": put("subgraphs.0.operators.2.outputs", []),
    }  # fmt: skip
    for name, change in changes.items():
        yield Corrupt(name, edit(models.digits_file(), change), good)


def _crashers() -> Iterator[Corrupt]:
    """Files whose tables are in order, and that a kernel does not survive or does not accept."""
    for stride in (0, -1):
        graph = Graph("crash")
        x, y = graph.tensor("x", (1, 8, 8, 1)), graph.tensor("y", (1, 8, 8, 1))
        conv = schema.Conv2DOptionsT()
        conv.strideH = conv.strideW = stride
        weights = graph.constant("w", np.ones((1, 3, 3, 1), np.float32))
        bias = graph.constant("b", np.ones(1, np.float32))
        graph.node("CONV_2D", (x, weights, bias), (y,), conv)
        yield Corrupt(f"a convolution of stride {stride}", graph.build({"x": x}, {"y": y}))
    for operator in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
        graph = Graph("crash")
        x, y = graph.tensor("x", (1, 8, 8, 1)), graph.tensor("y", (1, 8, 8, 1))
        graph.node(operator, (x,), (y,), schema.Pool2DOptionsT())
        yield Corrupt(f"{operator} of stride 0", graph.build({"x": x}, {"y": y}))
    graph = Graph("huge")
    x, y = graph.tensor("x", (1,)), graph.tensor("y", (1,))
    dims = graph.constant("dims", np.array([2**28], np.int32))
    wide = graph.tensor("wide", (2**28,))
    graph.node(
        "FILL", (dims, graph.constant("value", np.array(1, np.float32))), (wide,), schema.FillOptionsT()
    )
    graph.node("ADD", (wide, x), (y,), schema.AddOptionsT())
    yield Corrupt("more memory than a worker has", graph.build({"x": x}, {"y": y}))
    yield Corrupt("no finite answer to zeros", models.logarithm())


def _lies() -> Iterator[Corrupt]:
    """A good model with golden vectors that are not its own, or no golden vectors at all."""
    data = models.digits_file()
    wanted = models.digits_model().predict(PIXELS)
    right = {"0/input/pixels": PIXELS, "0/output/probabilities": wanted, "tolerance": np.array(1e-4)}
    lies: dict[str, dict[str, Any]] = {
        "other answers": {"0/output/probabilities": wanted[:, ::-1]},
        "answers off by a little": {"0/output/probabilities": wanted + np.float32(2e-4)},
        "answers of another shape": {"0/output/probabilities": wanted[:1]},
        "answers of another datatype": {"0/output/probabilities": wanted.astype(np.float64)},
        "answers that are no number": {"0/output/probabilities": wanted * np.float32("nan")},
        "an output that is not there": {"0/output/labels": np.zeros(2, np.int64)},
        "an input that is not there": {"0/input/sound": PIXELS},
        "an input of another shape": {"0/input/pixels": PIXELS[:, :63]},
        "an input of another rank": {"0/input/pixels": PIXELS[0]},
        "an input of another datatype": {"0/input/pixels": PIXELS.astype(np.float16)},
        "a negative tolerance": {"tolerance": np.array(-1.0)},
        "a tolerance that is no number": {"tolerance": np.array(np.nan)},
        "an endless tolerance": {"tolerance": np.array(np.inf)},
        "a tolerance of two": {"tolerance": np.array([1.0, 1.0])},
        "a case without number": {"x/input/pixels": PIXELS},
        "a case left out": {"2/input/pixels": PIXELS, "2/output/probabilities": wanted},
        "a case without outputs": {"1/input/pixels": PIXELS},
        "pickled objects": {"0/input/pixels": np.array([{"a": 1}], dtype=object)},
    }
    for name, change in lies.items():
        yield Corrupt(f"golden vectors with {name}", data, _npz({**right, **change}))
    whole = _npz(right)
    yield Corrupt("golden vectors without tolerance", data, _npz({k: right[k] for k in list(right)[:2]}))
    yield Corrupt("golden vectors cut off", data, whole[: len(whole) // 2])
    yield Corrupt("golden vectors of no format", data, b"PK\x03\x04" + bytes(500))
    bomb = io.BytesIO()
    with (
        zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("tolerance.npy", "w", force_zip64=True) as file,
    ):
        for _ in range(300):
            file.write(bytes(2**20))
    yield Corrupt("golden vectors that unpack to 300 MB", data, bomb.getvalue())


def _npz(arrays: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _flipped(name: str, data: bytes, good: bytes, count: int) -> Iterator[Corrupt]:
    """Offsets and lengths overwritten all over the file, in every stretch of it alike."""
    rng = np.random.default_rng(len(data))
    # Where the tables are: not in the weights, whose every value is a weight.
    heavy = {at for at in range(0, len(data) - 4, 4) if 0 < struct.unpack_from("<I", data, at)[0] < len(data)}
    places = sorted(heavy)
    for number in range(count):
        changed = bytearray(data)
        stretch = places[number * len(places) // count : (number + 1) * len(places) // count]
        for at in rng.choice(stretch, min(len(stretch), 12), replace=False).tolist():
            changed[at : at + 4] = int(rng.choice([2**32 - 1, 2**31 - 1, 2**20 + 1, 0x80808080])).to_bytes(
                4, "little"
            )
        yield Corrupt(f"{name} with stretch {number} of {count} bent", bytes(changed), good)
