"""Which endpoints go where a model's releases go: those of variants without a version of their own.

Devices are told by their hub, and not here.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.core.config import Config
from gateway.core.release import Release, ReleaseFile


class Followed(NamedTuple):
    """What a release means for one endpoint, which calls the model `model`. `why_not`: a clause; "" where
    `file` is what the endpoint is to serve."""

    endpoint: str
    model: str
    file: ReleaseFile | None
    why_not: str = ""


def followed(config: Config, release: Release) -> tuple[Followed, ...]:
    """Every endpoint that follows the release's model, in the order of the variants."""
    declared = next((model for model in config.models if model.name == release.model), None)
    endpoints = {endpoint.name: endpoint for endpoint in config.endpoints}
    found: dict[str, Followed] = {}
    for variant in () if declared is None else declared.variants:
        endpoint = endpoints[variant.endpoint]
        formats = endpoint.follows(variant.artifact)
        if variant.version is not None or not formats or endpoint.name in found:
            continue
        called = variant.model or release.model
        files = (release.file_for(endpoint.name, form) for form in formats)
        file = next((file for file in files if file is not None and file.format in formats), None)
        if endpoint.place is None or not release.may_go(endpoint.place):
            why = f"it was made from data that may not go to its place ({endpoint.place})"
            found[endpoint.name] = Followed(endpoint.name, called, None, why)
        elif file is None:
            why = f"it has no file that {endpoint.name} can run ({' or '.join(formats)})"
            found[endpoint.name] = Followed(endpoint.name, called, None, why)
        else:
            found[endpoint.name] = Followed(endpoint.name, called, file)
    return tuple(found.values())
