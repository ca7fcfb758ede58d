"""Bring a Triton to a release through its model repository, and back again.

The version that serves is copied with the model file replaced, under the release's number. Before anybody
is answered by it, Triton loads the same files under a name of their own, from memory: there it must take
and give what stands does, and its golden vectors must come out right. Then the version is written and
Triton told to load; it keeps what it has until the new one is ready. What fails even then is taken away
again, and the model loaded as it was.

Triton serves the highest number unless its configuration says otherwise. So going back means to take
away higher versions, and that is done with Tidegate's own alone. A release of files that the configuration
names stands for what the operator put into the repository.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToJson

from gateway.backends._channel import OipChannel
from gateway.backends._repository import (
    MARK,
    Files,
    Repository,
    RepositoryError,
    open_repository,
    with_model,
)
from gateway.backends.triton import TRIAL_SUFFIX
from gateway.core.errors import AttemptError
from gateway.core.release import Release
from gateway.policy.signature import changed
from oip import tensors
from oip.codec import signature_of
from oip.errors import OipError
from oip.golden import Cases, GoldenFailed, check_golden, read_golden
from oip.signature import Signature

Array = np.ndarray[Any, np.dtype[Any]]

ASK_S = 5.0
LOAD_S = 300.0
"""How long Triton may take to load a model."""
GOLDEN_S = 30.0
"""How long one golden case may take."""
FROM_FILE = "file"
"""Source of a release that the configuration's files are."""
_PATH = re.compile(r"(?<![\w/])/[^\s:',)]+")
_LONGEST = 300
logger = logging.getLogger(__name__)


class _Refused(Exception):
    """Why the release does not serve, as a clause."""


class TritonFollower:
    """Moves the models of one server, whose repository is at `url`, one after the other."""

    def __init__(self, channel: OipChannel, url: str) -> None:
        from tritonclient.grpc import service_pb2

        self._pb: Any = service_pb2
        self._channel = channel
        self._url = url

    async def follow(self, model: str, release: Release, content: bytes, golden: bytes | None) -> str:
        """See `Follower`."""
        try:
            repository = open_repository(self._url)
            return await self._follow(repository, model, release, content, golden)
        except (RepositoryError, GoldenFailed, _Refused) as error:
            return str(error)
        except AttemptError as error:
            return words_of(error)

    async def _follow(
        self, repository: Repository, model: str, release: Release, content: bytes, golden: bytes | None
    ) -> str:
        versions = await repository.versions(model)
        foreign = max((number for number, own in versions.items() if not own), default=None)
        if foreign is None:
            raise _Refused(f"its model repository has no version of {model}")
        wanted, own = int(release.version), versions.get(int(release.version), False)
        files, made = None, dict[str, bytes]()
        if release.source == FROM_FILE and not own:
            wanted = foreign
        elif wanted <= foreign:
            raise _Refused(
                f"its model repository has version {foreign} of its own, and Triton serves the highest number"
            )
        else:
            base = dict(await repository.read(model, max(v for v in versions if v <= wanted)))
            base.pop(MARK, None)
            made = with_model(base, content)
            files = None if own and made == base else made
        vectors = None if golden is None else await asyncio.to_thread(read_golden, io.BytesIO(golden))
        above = sorted(number for number, mine in versions.items() if mine and number > wanted)
        if files is None and not above and await self._ready(model, wanted):
            return ""
        if wanted != foreign:
            await self._try(model, wanted, made, vectors)
        removed = {number: await repository.read(model, number) for number in above}
        try:
            if files is not None:
                await repository.write(model, wanted, files)
            for number in above:
                await repository.remove(model, number)
            await self._load(model)
            if not await self._ready(model, wanted):
                raise _Refused(
                    f"Triton does not serve version {wanted} of {model}: its version_policy may name others"
                )
        except (RepositoryError, AttemptError, GoldenFailed, _Refused):
            await self._undo(repository, model, wanted if files is not None or own else None, removed)
            raise
        below = sorted(number for number, mine in versions.items() if mine and number < wanted)
        for number in below[:-1]:
            await repository.remove(model, number)
        return ""

    async def _undo(
        self, repository: Repository, model: str, written: int | None, removed: Mapping[int, Files]
    ) -> None:
        """As it was. What cannot be undone now is found, and done again, by the next move."""
        try:
            for number, files in removed.items():
                await repository.write(model, number, {k: v for k, v in files.items() if k != MARK})
            if written is not None:
                await repository.remove(model, written)
            await self._load(model)
        except (RepositoryError, AttemptError) as error:
            logger.error("a Triton's model repository could not be put back: %s", error)

    async def _try(self, model: str, version: int, files: Files, vectors: tuple[Cases, float] | None) -> None:
        """Load a version beside the model, from memory, and hold it against what stands. Raises _Refused,
        GoldenFailed, AttemptError."""
        config, standing = await self._described(model, "")
        name = model + TRIAL_SUFFIX
        config.name = name
        config.ClearField("version_policy")
        parts = {f"file:{version}/{path}": content for path, content in files.items()}
        try:
            await self._load(name, MessageToJson(config, preserving_proto_field_name=True), parts)
            _, signature = await self._described(name, "")
            differs = changed(standing, signature)
            if differs is not None:
                raise _Refused(f"it is not the same model: {differs}")
            if vectors is not None:
                await self._check(name, signature, vectors)
        finally:
            with contextlib.suppress(AttemptError):
                await self._unload(name)

    async def _load(self, model: str, config: str = "", files: Files | None = None) -> None:
        request = self._pb.RepositoryModelLoadRequest(model_name=model)
        if config:
            request.parameters["config"].string_param = config
        for name, content in (files or {}).items():
            request.parameters[name].bytes_param = content
        await self._channel.call("RepositoryModelLoad", request.SerializeToString(), (), LOAD_S)

    async def _unload(self, model: str) -> None:
        request = self._pb.RepositoryModelUnloadRequest(model_name=model)
        await self._channel.call("RepositoryModelUnload", request.SerializeToString(), (), ASK_S)

    async def _ready(self, model: str, version: int) -> bool:
        health = await self._channel.health([(model, str(version))], ASK_S)
        return health.up and health.models[0].ready

    async def _described(self, model: str, version: str) -> tuple[Any, Signature]:
        """A model's configuration, and what it takes and gives."""
        metadata, config = await asyncio.gather(
            self._channel.ask("ModelMetadata", model, version, ASK_S),
            self._channel.ask("ModelConfig", model, version, ASK_S),
        )
        try:
            return self._pb.ModelConfigResponse.FromString(config).config, signature_of(metadata, config)
        except OipError as error:
            raise _Refused(f"what Triton tells of {model} cannot be read") from error

    async def _check(self, model: str, signature: Signature, vectors: tuple[Cases, float]) -> None:
        """Raises GoldenFailed and AttemptError."""
        loop = asyncio.get_running_loop()

        def run(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
            asked = self._infer(model, signature, inputs)
            return asyncio.run_coroutine_threadsafe(asked, loop).result()

        await asyncio.to_thread(check_golden, *vectors, signature.inputs, run)

    async def _infer(
        self, model: str, signature: Signature, inputs: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        request = self._pb.ModelInferRequest(model_name=model)
        datatypes = {spec.name: spec.datatype for spec in signature.inputs}
        for name, array in inputs.items():
            request.inputs.add(name=name, datatype=datatypes[name], shape=array.shape)
            raw = tensors.pack_bytes(array.ravel().tolist()) if array.dtype.hasobject else array.tobytes()
            request.raw_input_contents.append(raw)
        answer = await self._channel.call("ModelInfer", request.SerializeToString(), (), GOLDEN_S)
        response = self._pb.ModelInferResponse.FromString(answer)
        return {
            output.name: _array(output.datatype, tuple(output.shape), raw)
            for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
        }


def _array(datatype: str, shape: tuple[int, ...], raw: bytes) -> Array:
    if datatype != "BYTES":
        return np.frombuffer(raw, tensors.dtype(datatype)).reshape(shape)
    items = np.empty(int(np.prod(shape)), dtype=object)
    items[:] = tensors.unpack_bytes(raw, items.size, "")
    return items.reshape(shape)


def words_of(error: AttemptError) -> str:
    """Triton's words as a clause, without the paths that they name."""
    text = _PATH.sub("...", " ".join(error.message.split())).rstrip(".")
    return f"Triton says: {text[:_LONGEST]}"
