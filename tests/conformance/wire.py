"""Requests to the stage as bytes, and answers as what can be compared between routes."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.conformance.stage import HEADER

LENGTH = "inference-header-content-length"
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Ask:
    """A POST about a model; `header` is the length of the JSON part where there is a binary one."""

    model: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    path: str = "infer"


@dataclass(frozen=True)
class Answer:
    """`outputs` are name, datatype, shape and data: bytes where they came as such, else JSON's text of them."""

    status: int
    error: str
    outputs: tuple[tuple[str, str, tuple[int, ...], bytes | str], ...] = ()
    id: str | None = None


def tensor(name: str, datatype: str, shape: Any, data: Any = None, **parameters: Any) -> dict[str, Any]:
    """An input as JSON has it; without data where that is None."""
    found: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if data is not None:
        found["data"] = data
    return found | ({"parameters": parameters} if parameters else {})


def text(model: str, *inputs: Any, path: str = "infer", **members: Any) -> Ask:
    """A request in JSON alone."""
    return Ask(model, json.dumps({"inputs": list(inputs), **members}).encode(), path=path)


def binary(model: str, *inputs: tuple[Any, bytes], **members: Any) -> Ask:
    """A request with binary data: tensors without data, and their bytes."""
    entries: list[Any] = []
    for entry, raw in inputs:
        given = {"binary_data_size": len(raw)} | entry.get("parameters", {})
        entries.append({**entry, "parameters": given})
    head = json.dumps({"inputs": entries, **members}).encode()
    return Ask(model, head + b"".join(raw for _, raw in inputs), {LENGTH: str(len(head))})


def elements(*values: bytes) -> bytes:
    """BYTES as raw data."""
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def send(client: httpx.Client, route: str, ask: Ask) -> Answer:
    response = client.post(
        f"/v2/models/{ask.model}/{ask.path}",
        content=ask.body,
        headers={HEADER: route, **ask.headers},
        timeout=TIMEOUT_S,
    )
    return answer_of(response)


def answer_of(response: httpx.Response) -> Answer:
    """Fails for an error that is not {"error": "<a sentence>"} alone, and for binary data that does not add up."""
    content = response.content
    if response.status_code != 200:
        assert response.headers["content-type"] == "application/json", content[:200]
        document = json.loads(content)
        assert list(document) == ["error"], document
        assert isinstance(document["error"], str)
        assert "Traceback" not in document["error"]
        return Answer(response.status_code, document["error"])
    cut = int(response.headers.get(LENGTH, len(content)))
    document = json.loads(content[:cut])
    tail = content[cut:]
    outputs: list[tuple[str, str, tuple[int, ...], bytes | str]] = []
    for entry in document["outputs"]:
        size = entry.get("parameters", {}).get("binary_data_size")
        if size is None:
            data: bytes | str = json.dumps(entry["data"])
        else:
            data, tail = tail[:size], tail[size:]
            assert len(data) == size
        outputs.append((entry["name"], entry["datatype"], tuple(entry["shape"]), data))
    assert not tail
    return Answer(200, "", tuple(outputs), document.get("id"))


def raw_of(answer: Answer) -> Sequence[bytes | str]:
    return [data for *_, data in answer.outputs]
