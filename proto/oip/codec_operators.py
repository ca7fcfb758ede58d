"""The messages of the repository's calls and of trace and log settings, from and to what they say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from oip.codec import callers_message, new_message
from oip.repository import IndexEntry, refuse_repository


def index_request(request: bytes) -> bool:
    """Whether a serialized RepositoryIndexRequest asks for what is ready alone. Raises OipError MALFORMED."""
    message = callers_message("RepositoryIndexRequest", request)
    refuse_repository(message.repository_name)
    return message.ready


def named_load(kind: str, request: bytes) -> tuple[str, dict[str, object]]:
    """The model and the parameters in a serialized RepositoryModelLoadRequest or, as `kind` says,
    RepositoryModelUnloadRequest. Raises OipError MALFORMED."""
    message = callers_message(kind, request)
    refuse_repository(message.repository_name)
    parameters: dict[str, object] = {}
    for key, parameter in message.parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        parameters[key] = None if choice is None else getattr(parameter, choice)
    return message.model_name, parameters


def load_request(model: str, config: str) -> bytes:
    """A serialized RepositoryModelLoadRequest; `config` "" for the repository's."""
    message = new_message("RepositoryModelLoadRequest")
    message.model_name = model
    if config:
        message.parameters["config"].string_param = config
    return message.SerializeToString()


def unload_request(model: str, dependents: bool) -> bytes:
    """A serialized RepositoryModelUnloadRequest."""
    message = new_message("RepositoryModelUnloadRequest")
    message.model_name = model
    if dependents:
        message.parameters["unload_dependents"].bool_param = True
    return message.SerializeToString()


def repository_index(entries: Iterable[IndexEntry]) -> bytes:
    """A serialized RepositoryIndexResponse."""
    message = new_message("RepositoryIndexResponse")
    for entry in entries:
        message.models.add(**entry._asdict())
    return message.SerializeToString()


def trace_changes(request: bytes) -> tuple[str, dict[str, Sequence[str] | None]]:
    """The model ("" for none) and the changes in a serialized TraceSettingRequest; a setting without a value
    is to be cleared. Raises OipError MALFORMED."""
    message = callers_message("TraceSettingRequest", request)
    return message.model_name, {key: list(value.value) for key, value in message.settings.items()}


def trace_settings(told: Mapping[str, Sequence[str]]) -> bytes:
    """A serialized TraceSettingResponse."""
    message = new_message("TraceSettingResponse")
    for key, values in told.items():
        message.settings[key].value.extend(values)
    return message.SerializeToString()


def log_changes(request: bytes) -> dict[str, object]:
    """The changes in a serialized LogSettingsRequest. Raises OipError MALFORMED."""
    changes: dict[str, object] = {}
    for key, value in callers_message("LogSettingsRequest", request).settings.items():
        choice = value.WhichOneof("parameter_choice")
        changes[key] = None if choice is None else getattr(value, choice)
    return changes


def log_settings(told: Mapping[str, bool | int | str]) -> bytes:
    """A serialized LogSettingsResponse."""
    message = new_message("LogSettingsResponse")
    for key, value in told.items():
        kind = "bool" if isinstance(value, bool) else "uint32" if isinstance(value, int) else "string"
        setattr(message.settings[key], f"{kind}_param", value)
    return message.SerializeToString()
