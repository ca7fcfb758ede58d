"""What the operator API asks of control, and what its bodies have in common."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

PREFIX = "/api/v1"


def _printable(text: str) -> str:
    """JSON can spell control characters and lone surrogates, which no header or answer can carry."""
    if not text.isprintable():
        raise ValueError("holds characters that cannot be shown")
    return text


Text = Annotated[str, Field(max_length=256), AfterValidator(_printable)]


class Body(BaseModel):
    """A call's JSON object: unknown members and coerced types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Fault(Body):
    """Every error's body: one sentence."""

    error: str


class RouteQuery(Body):
    """What a dry run supposes about a request. The names are those of the request options."""

    model: Annotated[Text, Field(min_length=1)]
    version: Text = ""
    privacy: Text | None = None
    policy: Text | None = None
    deadline_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    payload_bytes: Annotated[int, Field(ge=0, lt=2**63)] = 0
    site: Text | None = None
    device: Text | None = None
    tenant: Text | None = None


class TokenQuery(Body):
    """The enrolment token that is wanted: for one device of `site`, called `device` where that is given."""

    site: Annotated[Text, Field(min_length=1)]
    labels: Annotated[dict[Text, Text], Field(max_length=32)] = Field(default_factory=dict[str, str])
    device: Text = ""
    ttl_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3600


class DrainQuery(Body):
    """Whether new requests are to be kept from a device."""

    drained: bool


class MeasureQuery(Body):
    """Which variant to measure, as its endpoint names it."""

    endpoint: Annotated[Text, Field(min_length=1)]
    model: Annotated[Text, Field(min_length=1)]
    version: Text = ""


class FileQuery(Body):
    """A model file that was uploaded, and its golden vectors, by their digests."""

    format: Text
    digest: Text
    golden: Text | None = None


class ReleaseQuery(Body):
    """The release that is to be made. `files` by slot: a format, or the name of the endpoint that the file is
    for. Without `version` it gets the next number."""

    files: Annotated[dict[Text, FileQuery], Field(min_length=1, max_length=32)]
    version: Text | None = None


class UpdateQuery(Body):
    """The model that is to be updated."""

    model: Annotated[Text, Field(min_length=1)]


class RolloutQuery(Body):
    """Which release to roll out; `force`: even if its gate did not pass it."""

    model: Annotated[Text, Field(min_length=1)]
    version: Annotated[Text, Field(min_length=1)]
    force: bool = False


class ControlPlane(Protocol):
    """What the operator API asks for. Views are JSON-ready; failures are OipError."""

    def config_view(self) -> dict[str, Any]: ...

    async def endpoints_view(self) -> list[dict[str, Any]]: ...

    async def models_view(self) -> list[dict[str, Any]]: ...

    async def upload_artifact(self, content: bytes) -> dict[str, Any]: ...

    async def push_release(self, model: str, query: ReleaseQuery) -> dict[str, Any]:
        """The release that was made, or is there already with the same files."""
        ...

    async def compat_view(self, model: str | None, version: str | None) -> list[dict[str, Any]]: ...

    async def route(self, query: RouteQuery) -> dict[str, Any]:
        """The decision record that such a request would get now. Sends nothing."""
        ...

    async def decision(self, decision_id: str) -> dict[str, Any] | None: ...

    async def devices_view(self) -> list[dict[str, Any]]: ...

    async def device_view(self, name: str) -> dict[str, Any]: ...

    async def issue_token(self, query: TokenQuery) -> dict[str, Any]:
        """A new enrolment token, which is shown this once."""
        ...

    async def drain_device(self, name: str, drained: bool) -> dict[str, Any]: ...

    async def revoke_device(self, name: str) -> dict[str, Any]: ...

    async def measure(self, query: MeasureQuery) -> dict[str, Any]:
        """Begin to measure a variant with made-up data; returns at once."""
        ...

    async def measurement(self, number: str) -> dict[str, Any]: ...

    async def updates_view(self) -> dict[str, Any]: ...

    async def update_view(self, id: str) -> dict[str, Any]: ...

    async def start_update(self, model: str) -> dict[str, Any]:
        """Begin an update without drift; returns at once."""
        ...

    async def cancel_update(self, id: str) -> dict[str, Any]: ...

    async def retry_update(self, id: str) -> dict[str, Any]: ...

    async def samples_view(self, model: str) -> list[dict[str, Any]]:
        """What is known of each sample, but never what is in it."""
        ...

    async def rollouts_view(self) -> list[dict[str, Any]]: ...

    async def rollout_view(self, id: str) -> dict[str, Any]: ...

    async def start_rollout(self, query: RolloutQuery) -> dict[str, Any]:
        """Begin a rollout; its view."""
        ...

    async def pause_rollout(self, id: str) -> dict[str, Any]: ...

    async def resume_rollout(self, id: str) -> dict[str, Any]: ...

    async def abort_rollout(self, id: str) -> dict[str, Any]: ...
