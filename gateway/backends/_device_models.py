"""Metadata, configuration and statistics of the models that a group's devices run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import model_config_pb2, service_pb2

from edgewire.v1 import edge_pb2
from gateway.backends._fleet import Members, odd_ones, usual
from gateway.core.errors import AttemptError
from oip.names import shown
from oip.reasons import STATUS, Reason

# The generated modules make their classes at run time, so a type checker cannot see them.
_pb: Any = service_pb2
_config_pb: Any = model_config_pb2


@dataclass(slots=True)
class _Count:
    ok: int = 0
    ok_ns: int = 0
    failed: int = 0
    failed_ns: int = 0


class DeviceModels:
    """Answers about models for the group called `endpoint`. Every question raises AttemptError for a model
    that no device of it serves."""

    def __init__(self, endpoint: str, members: Members) -> None:
        self._endpoint = endpoint
        self._members = members
        self._counts: dict[str, _Count] = {}

    def odd(self, model: str, version: str) -> str:
        """Which devices tell other metadata than most do; "" for none."""
        return odd_ones(model, self._members.states(model, version))

    def metadata(self, model: str, version: str) -> bytes:
        return self._metadata(model, version)[0].metadata

    def config(self, model: str, version: str) -> bytes:
        state, metadata = self._metadata(model, version)
        if state.config:
            return state.config
        config = _config_pb.ModelConfig(name=model, platform=metadata.platform)
        for told, given in ((metadata.inputs, config.input), (metadata.outputs, config.output)):
            for tensor in told:
                kind = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
                given.add(name=tensor.name, data_type=f"TYPE_{kind}", dims=tensor.shape)
        return _pb.ModelConfigResponse(config=config).SerializeToString()

    def statistics(self, model: str, version: str) -> bytes:
        state, _ = self._metadata(model, version)
        count = self._counts.get(model, _Count())
        response = _pb.ModelStatisticsResponse()
        entry = response.model_stats.add(
            name=model, version=state.active_version, inference_count=count.ok, execution_count=count.ok
        )
        entry.inference_stats.success.count, entry.inference_stats.success.ns = count.ok, count.ok_ns
        entry.inference_stats.fail.count, entry.inference_stats.fail.ns = count.failed, count.failed_ns
        return response.SerializeToString()

    def count(self, model: str, took_s: float, *, ok: bool) -> None:
        """Take note of a request that ended."""
        count = self._counts.get(model)
        if count is None:
            if not self._members.states(model, ""):
                return
            count = self._counts[model] = _Count()
        if ok:
            count.ok += 1
            count.ok_ns += round(took_s * 1e9)
        else:
            count.failed += 1
            count.failed_ns += round(took_s * 1e9)

    def _metadata(self, model: str, version: str) -> tuple[edge_pb2.ModelState, Any]:
        state = usual(self._members.states(model, version))
        if state is None:
            raise self._failed(
                Reason.UNKNOWN_MODEL,
                f"Request for unknown model: no device of {self._endpoint} runs {shown(model)}"
                + (f" in version {version}." if version else "."),
            )
        try:
            return state, _pb.ModelMetadataResponse.FromString(state.metadata)
        except DecodeError:
            raise self._failed(
                Reason.ENDPOINT_FAILED,
                f"What devices of {self._endpoint} tell of {shown(model)} cannot be read.",
            ) from None

    def _failed(self, reason: Reason, message: str) -> AttemptError:
        retryable = reason is Reason.UNKNOWN_MODEL
        return AttemptError(reason, message, grpc_status=STATUS[reason].grpc, sent=False, retryable=retryable)
