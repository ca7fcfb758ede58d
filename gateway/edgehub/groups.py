"""The `edge` kind's configuration: which enrolled devices make up a group.

Read without gRPC, so that `check` and the pipeline can ask who belongs to a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from gateway.core.config import EndpointConfig
from gateway.core.config.basis import Strict
from gateway.core.config.models import SomeNames


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


LabelValue = Annotated[str, Field(min_length=1, max_length=128)]
SomeLabels = Annotated[
    tuple[LabelValue, ...],
    Field(min_length=1, strict=False),
    BeforeValidator(
        _listed, json_schema_input_type=LabelValue | Annotated[list[LabelValue], Field(min_length=1)]
    ),
]
"""One text or several; a label has to have one of them."""
LabelKey = Annotated[str, Field(min_length=1, max_length=128)]


class Select(Strict):
    """Which devices: every part that is given must hold, and one that is empty selects all."""

    site: SomeNames | None = None
    """The sites that devices were enrolled for; one name or several."""
    labels: dict[LabelKey, SomeLabels] = Field(default_factory=dict)
    """Labels that a device was enrolled with, each with the values that count."""


class EdgeConfig(EndpointConfig):
    """`kind: edge`: a group of enrolled devices, each in a place of its own."""

    kind: Literal["edge"]  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen, so narrowing is safe
    select: Select = Select()


def selects(config: EdgeConfig, site: str, labels: Mapping[str, str]) -> bool:
    """Whether a device enrolled for `site` with `labels` belongs to the group."""
    wanted = config.select
    if wanted.site is not None and site not in wanted.site:
        return False
    return all(labels.get(key) in values for key, values in wanted.labels.items())


def may_share_devices(one: EdgeConfig, other: EdgeConfig) -> bool:
    """Whether some device could belong to both groups."""
    mine, theirs = one.select, other.select
    if mine.site is not None and theirs.site is not None and not set(mine.site) & set(theirs.site):
        return False
    return all(
        set(values) & set(theirs.labels[key]) for key, values in mine.labels.items() if key in theirs.labels
    )
