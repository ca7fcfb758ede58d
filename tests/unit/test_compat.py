"""What a model file needs, and what a device lacks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from edge_agent.agent import facts_of
from edge_agent.config import AgentConfig, Library
from gateway.compat import Needs, UnreadableModel, check, needs
from gateway.demo.tflite import Graph
from tests.support.tflite_models import difference

FACTS = {"runtime": "tflite-runtime 2.14.0", "memory_mb": "4096", "model_memory_mb": "2048"}


def typed(kind: Any, *, weights: bool = False) -> bytes:
    """x + x, with every computed tensor of one type, or float with weights of it."""
    graph = Graph("typed")
    x, y = graph.tensor("x", (2,)), graph.tensor("y", (2,))
    if weights:
        w, f = graph.constant("w", np.zeros(2, np.float16)), graph.tensor("f", (2,))
        graph.node("DEQUANTIZE", (w,), (f,), schema.DequantizeOptionsT())
        graph.node("ADD", (x, f), (y,), schema.AddOptionsT())
    else:
        graph._tensors[x].type = graph._tensors[y].type = kind
        graph.node("ADD", (x, x), (y,), schema.AddOptionsT())
    return graph.build({"x": x}, {"y": y})


def of_version(operator: str, version: int) -> bytes:
    graph = Graph("newer")
    x, y = graph.tensor("x", (2,)), graph.tensor("y", (2,))
    graph.node(operator, (x,), (y,), version=version)
    return graph.build({"x": x}, {"y": y})


def test_needs_are_operators_with_versions_datatypes_and_memory():
    found = needs(difference())
    assert (dict(found.operators), found.custom, found.computed) == ({"SUB": 1}, frozenset(), {"FLOAT32"})
    # Three tensors of two floats.
    assert found.memory_bytes == len(difference()) + 24
    assert check(found, FACTS) == []
    quantized = needs(typed(schema.TensorType.INT8))
    assert (quantized.computed, check(quantized, FACTS)) == ({"INT8"}, [])


def test_what_is_missing_is_named():
    assert check(needs(of_version("STABLEHLO_CBRT", 1)), FACTS) == ["operator STABLEHLO_CBRT is missing"]
    assert check(needs(of_version("LOGISTIC", 7)), FACTS) == [
        "operator LOGISTIC has version 3, and the model needs 7"
    ]
    # Weights may be of a type in which nothing is computed.
    assert check(needs(typed(None, weights=True)), FACTS) == []
    for kind, name in ((schema.TensorType.FLOAT16, "float16"), (schema.TensorType.INT4, "int4")):
        assert check(needs(typed(kind)), FACTS) == [f"precision {name} is missing"]


def test_custom_operators_come_with_an_external_delegate():
    found = Needs({}, frozenset({"Sharpen", "Mfcc"}), frozenset(), 0)
    assert check(found, FACTS) == ["custom operator Sharpen is missing"]
    assert check(found, {**FACTS, "delegates": "xnnpack,external"}) == []
    assert check(found, {**FACTS, "delegates": "xnnpack"}) == ["custom operator Sharpen is missing"]


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"memory_mb": "100"}, "the device has 100 MiB"),
        ({"memory_mb": "101"}, ""),
        ({"memory_mb": "4096", "model_memory_mb": "500"}, "the device has 100 MiB"),
        ({"memory_mb": "4096", "model_memory_mb": "501"}, ""),
        ({"memory_mb": "many"}, ""),
        ({}, ""),
    ],
)
def test_memory_is_held_against_what_the_device_has_and_gives(facts: dict[str, str], says: str):
    found = check(Needs({}, frozenset(), frozenset(), 101 * 2**20), {"runtime": FACTS["runtime"], **facts})
    assert (found == []) is (says == "")
    assert says in "".join(found)


@pytest.mark.parametrize(
    "runtime", [None, "", "ai-edge-litert 2.3.0", "tflite-runtime 2.15.0", "tflite-runtime"]
)
def test_a_runtime_that_is_not_known_is_no_yes(runtime: str | None):
    facts = {} if runtime is None else {"runtime": runtime}
    (found,) = check(needs(difference()), facts)
    assert ("not known" in found) is bool(runtime)


@pytest.mark.parametrize("content", [b"", b"TFL3", difference()[:100], b"x" * 1000])
def test_what_is_no_model_says_so(content: bytes):
    with pytest.raises(UnreadableModel, match="the file"):
        needs(content)


def test_what_an_agent_says_of_itself_is_what_is_asked_for():
    """The facts' names are agreed between the two; the agent that runs here can run its models."""
    facts = facts_of(AgentConfig(delegates=(Library(Path("/opt/npu.so")), "xnnpack", "builtin")))
    assert facts["delegates"] == "external,xnnpack,builtin"
    assert facts["model_memory_mb"] == "2048"
    assert check(needs(difference()), facts) == []
    assert check(Needs({}, frozenset({"Sharpen"}), frozenset(), 0), facts) == []
    assert "npu" not in str(facts)
    plain = facts_of(AgentConfig())
    assert check(Needs({}, frozenset({"Sharpen"}), frozenset(), 0), plain) == [
        "custom operator Sharpen is missing"
    ]
