"""Triton's model repository extension: what an index lists, and what may be asked of a load or unload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, cast

from oip.errors import OipError
from oip.names import shown
from oip.reasons import Reason
from oip.strict_json import loads

READY = "READY"
UNAVAILABLE = "UNAVAILABLE"


class IndexEntry(NamedTuple):
    """One version of a model; "" for what is not known. `reason` says why it is UNAVAILABLE."""

    name: str
    version: str
    state: str
    reason: str = ""


def json_index(entries: Iterable[IndexEntry]) -> list[dict[str, str]]:
    """An index as JSON shows it: without what is not known."""
    return [{key: value for key, value in entry._asdict().items() if value} for entry in entries]


def request_members(body: bytes) -> Mapping[str, object]:
    """The JSON object in a request's body; no body is an empty one. Raises OipError MALFORMED."""
    document = loads(body or b"{}")
    if not isinstance(document, dict):
        raise OipError(Reason.MALFORMED, "The request is not a JSON object.")
    return cast("dict[str, object]", document)


def request_parameters(members: Mapping[str, object]) -> Mapping[str, object]:
    """Those in a request's JSON object. Raises OipError MALFORMED."""
    parameters = members.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise OipError(Reason.MALFORMED, "The request needs an object as its parameters.")
    return cast("dict[str, object]", parameters)


def flag(members: Mapping[str, object], key: str) -> bool:
    """A member that is true or false, false where it is not given. Raises OipError MALFORMED."""
    value = members.get(key)
    if value is not None and not isinstance(value, bool):
        raise OipError(Reason.MALFORMED, f"The request needs true or false as its {key}.")
    return bool(value)


def load_config(parameters: Mapping[str, object]) -> str:
    """The model configuration that a load gives in place of the repository's, as JSON; "" for none. Raises
    OipError: MALFORMED, and NOT_SERVED for the files that Triton would take as parameters."""
    for key, value in parameters.items():
        if key.startswith("file:"):
            raise OipError(
                Reason.NOT_SERVED,
                f"Parameter {shown(key)} would bring a file to the server, which is not served: put it into "
                "the model repository.",
            )
        if key != "config":
            raise OipError(
                Reason.MALFORMED, f"Parameter {shown(key)} is not one of a load: its one parameter is config."
            )
        if value is not None and not isinstance(value, str):
            raise OipError(
                Reason.MALFORMED, "Parameter 'config' must be a string: the model configuration as JSON."
            )
    config = cast(str, parameters.get("config") or "")
    if config:
        _check_config(config)
    return config


def _check_config(config: str) -> None:
    try:
        document = loads(config.encode("utf-8"))
    except (OipError, UnicodeEncodeError):
        document = None
    if not isinstance(document, dict):
        # Clients of Triton's look for these words of its own.
        raise OipError(
            Reason.MALFORMED,
            "failed to load the model: its parameter 'config' is not a JSON object in a string",
        )


def unload_dependents(parameters: Mapping[str, object]) -> bool:
    """Whether the models that an ensemble is made of are unloaded with it. Raises OipError MALFORMED."""
    for key in parameters:
        if key != "unload_dependents":
            raise OipError(
                Reason.MALFORMED,
                f"Parameter {shown(key)} is not one of an unload: its one parameter is unload_dependents.",
            )
    return flag(parameters, "unload_dependents")


def refuse_repository(name: str) -> None:
    """A request names a repository. Raises OipError MALFORMED, in Triton's words."""
    if name:
        raise OipError(Reason.MALFORMED, "'repository_name' specification is not supported")
