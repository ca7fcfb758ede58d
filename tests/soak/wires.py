"""Requests on each wire, as clients put them, and leaving in the middle.

What a call gives is checked by who asked. Failures are `Failed` with the status that was told.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2

pb: Any = service_pb2
SERVICE = "/inference.GRPCInferenceService/"
TIMEOUT_S = 60.0
Array = np.ndarray[Any, Any]
DATATYPES = {"float32": "FP32", "int32": "INT32", "uint32": "UINT32"}


class Failed(Exception):
    """`status` is gRPC's name or HTTP's number."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


def message(model: str, id: str, inputs: dict[str, Array], parameters: dict[str, str]) -> bytes:
    found = pb.ModelInferRequest(model_name=model, id=id)
    for name, value in inputs.items():
        found.inputs.add(name=name, datatype=DATATYPES[value.dtype.name], shape=value.shape)
        found.raw_input_contents.append(value.tobytes())
    for key, value in parameters.items():
        found.parameters[key].string_param = value
    return found.SerializeToString()


def outputs_of(answer: Any) -> dict[str, Array]:
    """Of a ModelInferResponse."""
    dtypes = {datatype: dtype for dtype, datatype in DATATYPES.items()}
    return {
        o.name: np.frombuffer(raw, dtypes[o.datatype]).reshape(o.shape)
        for o, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }


async def over_grpc(channel: grpc.aio.Channel, body: bytes) -> tuple[str, dict[str, Array]]:
    """Id and outputs. Cancelled, it cancels the call."""
    infer = channel.unary_unary(
        f"{SERVICE}ModelInfer", response_deserializer=pb.ModelInferResponse.FromString
    )
    try:
        answer = await infer(body, timeout=TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        raise Failed(error.code().name, error.details() or "") from None
    return answer.id, outputs_of(answer)


async def over_stream(
    channel: grpc.aio.Channel, bodies: Sequence[bytes]
) -> AsyncGenerator[tuple[str, dict[str, Array], str]]:
    """Id, outputs and error of each response, as they come."""
    stream = channel.stream_stream(
        f"{SERVICE}ModelStreamInfer", response_deserializer=pb.ModelStreamInferResponse.FromString
    )(timeout=TIMEOUT_S)
    try:
        for body in bodies:
            await stream.write(body)
        await stream.done_writing()
        async for told in stream:
            yield told.infer_response.id, outputs_of(told.infer_response), told.error_message
    except grpc.aio.AioRpcError as error:
        raise Failed(error.code().name, error.details() or "") from None
    except asyncio.InvalidStateError:
        raise Failed("UNAVAILABLE", "the stream ended while it was written to") from None
    finally:
        stream.cancel()


class HttpCaller:
    """One keep-alive connection. A call that is cancelled, or fails, closes it."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def infer(
        self, model: str, id: str, inputs: dict[str, Array], parameters: dict[str, str], *, binary: bool
    ) -> tuple[str, dict[str, Array]]:
        """Id and outputs."""
        document: dict[str, Any] = {"id": id, "parameters": {**parameters, "binary_data_output": binary}}
        tail = b"".join(value.tobytes() for value in inputs.values()) if binary else b""
        document["inputs"] = [
            {
                "name": name,
                "datatype": DATATYPES[value.dtype.name],
                "shape": list(value.shape),
                **(
                    {"parameters": {"binary_data_size": value.nbytes}} if binary else {"data": value.tolist()}
                ),
            }
            for name, value in inputs.items()
        ]
        text = json.dumps(document).encode()
        headers = {"inference-header-content-length": str(len(text))} if binary else {}
        told, body = await self._ask(f"/v2/models/{model}/infer", text + tail, headers)
        cut = int(told.get("inference-header-content-length", len(body)))
        answer = json.loads(body[:cut])
        dtypes = {datatype: dtype for dtype, datatype in DATATYPES.items()}
        found: dict[str, Array] = {}
        for output in answer["outputs"]:
            dtype = dtypes[output["datatype"]]
            if binary:
                size = output["parameters"]["binary_data_size"]
                flat = np.frombuffer(body[cut : cut + size], dtype)
                cut += size
            else:
                flat = np.array(output["data"], dtype)
            found[output["name"]] = flat.reshape(output["shape"])
        return answer.get("id", ""), found

    async def generate(self, model: str, document: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """The events of generate_stream, as they come."""
        try:
            reader, head = await self._send(
                f"/v2/models/{model}/generate_stream", json.dumps(document).encode(), {}
            )
            status, headers = _head(head)
            if status != 200:
                body = await reader.readexactly(int(headers["content-length"]))
                raise Failed(str(status), body.decode())
            while size := int(await reader.readuntil(b"\r\n"), 16):
                event = (await reader.readexactly(size + 2))[:-2]
                yield json.loads(event.removeprefix(b"data: "))
            await reader.readuntil(b"\r\n")
        except (OSError, EOFError) as error:
            await self.close()
            raise Failed("connection", repr(error)) from None
        except BaseException:
            await self.close()
            raise

    async def _ask(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[dict[str, str], bytes]:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reader, head = await self._send(path, body, headers)
                status, told = _head(head)
                answer = await reader.readexactly(int(told["content-length"]))
            if status != 200:
                raise Failed(str(status), answer.decode())
            if told.get("connection") == "close":
                await self.close()
            return told, answer
        except (OSError, EOFError) as error:
            await self.close()
            raise Failed("connection", repr(error)) from None
        except BaseException:
            await self.close()
            raise

    async def _send(
        self, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[asyncio.StreamReader, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=2**20)
        reader, writer = self._streams
        lines = [f"POST {path} HTTP/1.1", f"Host: {self._host}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await writer.drain()
        return reader, await reader.readuntil(b"\r\n\r\n")

    async def close(self) -> None:
        if self._streams is not None:
            _, writer = self._streams
            self._streams = None
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    lines = head.decode("latin-1").split("\r\n")
    headers = (line.split(": ", 1) for line in lines[1:] if line)
    return int(lines[0].split()[1]), {name.lower(): value for name, value in headers}
