"""Metadata, configuration and statistics of the models that a group's devices run."""

from __future__ import annotations

import time
from dataclasses import replace

from edgewire.v1 import edge_pb2
from gateway.backends._fleet import Members, odd_ones, usual
from gateway.core.errors import AttemptError
from oip.codec import config_of, signature_of, statistics_of
from oip.counters import Counters, Duration
from oip.errors import OipError
from oip.names import shown
from oip.reasons import STATUS, Reason

PLATFORM = "edge"
"""Told of a model whose devices tell no configuration."""


class DeviceModels:
    """Answers about models for the group called `endpoint`. Every question raises AttemptError for a model
    that no device of it serves."""

    def __init__(self, endpoint: str, members: Members) -> None:
        self._endpoint = endpoint
        self._members = members
        self._counters: dict[str, Counters] = {}

    def odd(self, model: str, version: str) -> str:
        """Which devices tell other metadata than most do; "" for none."""
        return odd_ones(model, self._members.states(model, version))

    def metadata(self, model: str, version: str) -> bytes:
        """What most devices tell."""
        return self._usual(model, version).metadata

    def config(self, model: str, version: str) -> bytes:
        """What those devices tell, or else what their metadata implies."""
        state = self._usual(model, version)
        if state.config:
            return state.config
        try:
            return config_of(model, PLATFORM, signature_of(state.metadata, None))
        except (OipError, KeyError):
            text = f"What devices of {self._endpoint} tell of {shown(model)} cannot be read."
            raise self._failed(Reason.ENDPOINT_FAILED, text) from None

    def statistics(self, model: str, version: str) -> bytes:
        """Of the requests that were counted here."""
        state = self._usual(model, version)
        return statistics_of(model, state.active_version, self._counters.get(model, Counters()))

    def count(self, model: str, took_s: float, *, ok: bool) -> None:
        """Take note of a request that ended; one for a model that no device has is nobody's."""
        counters = self._counters.get(model)
        if counters is None:
            if not self._members.states(model, ""):
                return
            counters = Counters()
        ended = counters.success if ok else counters.fail
        ended = Duration(ended.times + 1, ended.ns + round(took_s * 1e9))
        if not ok:
            self._counters[model] = replace(counters, fail=ended)
            return
        self._counters[model] = replace(
            counters,
            inferences=counters.inferences + 1,
            executions=counters.executions + 1,
            last_inference_ms=round(time.time() * 1000),
            success=ended,
        )

    def _usual(self, model: str, version: str) -> edge_pb2.ModelState:
        state = usual(self._members.states(model, version))
        if state is None:
            what = f"{shown(model)} in version {version}" if version else shown(model)
            raise self._failed(
                Reason.UNKNOWN_MODEL, f"Request for unknown model: no device of {self._endpoint} runs {what}."
            )
        return state

    def _failed(self, reason: Reason, message: str) -> AttemptError:
        return AttemptError(
            reason,
            message,
            grpc_status=STATUS[reason].grpc,
            sent=False,
            retryable=reason is Reason.UNKNOWN_MODEL,
        )
