"""What the file says of a pool."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Literal, Self, cast

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from gateway.core.config import PlacedConfig
from gateway.core.config.basis import NAME_PATTERN, NotNegative, Positive, Strict
from gateway.core.plugins import discover
from oip.names import shown

if TYPE_CHECKING:
    from gateway.pool.runtimes._interface import Runtime

WHOLE = frozenset({"GPU", "TPU", "neuron_cores", "HPU", "NPU", "RBLN", "FURIOSA"})
"""Resources that Ray hands out as numbered units: a part of one, or a whole number of them."""
RESERVED = frozenset({"memory", "object_store_memory"})

ResourceName = Annotated[str, Field(min_length=1, max_length=128, pattern=NAME_PATTERN)]


class PoolReplicas(Strict):
    """How many replicas run. Between `min` and `max` their number follows the requests in work."""

    min: Annotated[int, Field(ge=0)] = 0
    """0: none runs while nothing is asked; the first request waits for one within its deadline."""
    max: Annotated[int, Field(ge=1)] = 1
    target_ongoing: Positive = 4
    """Requests in work, a replica, that the pool aims for."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise PydanticCustomError(
                "replicas",
                "replicas.min ({min}) is above replicas.max ({max})",
                {"min": self.min, "max": self.max},
            )
        return self


class PoolConfig(PlacedConfig):
    """`kind: pool`: replicas on Ray that run the artifacts of the variants on it."""

    kind: Literal["pool"]  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen, so narrowing is safe
    runtime: Annotated[str, Field(examples=["openvino", "onnxruntime"])]
    """What opens and runs the artifacts: openvino, onnxruntime, or one that another package brings."""
    resources: Annotated[dict[ResourceName, Positive], Field(min_length=1)] = Field(
        default_factory=lambda: {"CPU": 1.0}
    )
    """What each replica takes of the machine, by Ray's names: CPU, GPU, TPU, neuron_cores, HPU, NPU, or one
    of your own."""
    replicas: PoolReplicas = PoolReplicas()
    downscale_s: NotNegative = 60
    """How long the pool must want fewer replicas before it lets them go."""

    def follows(self, artifact: str | None) -> tuple[str, ...]:
        own = PurePath(artifact or "").suffix.removeprefix(".")
        return tuple(sorted(_runtimes()[self.runtime].formats, key=lambda form: form != own))

    @field_validator("runtime")
    @classmethod
    def _served(cls, value: str) -> str:
        if value == "jax":
            raise PydanticCustomError(
                "runtime",
                "runtime jax is not served by this version: export the model to ONNX and write onnxruntime",
            )
        if value not in _runtimes():
            raise PydanticCustomError(
                "runtime",
                "runtime {name} is not installed; known here: {known}",
                {"name": shown(value), "known": ", ".join(sorted(_runtimes()))},
            )
        return value

    @field_validator("resources")
    @classmethod
    def _units(cls, value: dict[str, float]) -> dict[str, float]:
        for name, amount in value.items():
            if name in RESERVED:
                raise PydanticCustomError(
                    "resources", "resources.{name} cannot be asked for here: remove it", {"name": name}
                )
            if name in WHOLE and amount > 1 and amount != int(amount):
                raise PydanticCustomError(
                    "resources",
                    "resources.{name} must be a whole number above 1, not {amount}",
                    {"name": name, "amount": amount},
                )
        return value


def _runtimes() -> dict[str, type[Runtime]]:
    return cast("dict[str, type[Runtime]]", discover("gateway.pool.runtimes"))
