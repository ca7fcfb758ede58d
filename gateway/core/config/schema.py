"""The JSON Schema of the configuration file, from the models that read it.

For editors: it knows types, keys and bounds. What holds between parts only `tidegate check` knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic.json_schema import models_json_schema

from gateway.core.config.endpoints import EndpointConfig
from gateway.core.config.models import Config
from gateway.core.config.served import neutral_keys

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = {"$ref": "#/$defs/Reference"}
_LEAF_KEYS = ("enum", "const", "pattern")


def schema(kinds: Mapping[str, type[EndpointConfig]]) -> dict[str, Any]:
    """A draft 2020-12 schema of the file, with endpoints of the given kinds."""
    ordered = [kinds[kind] for kind in sorted(kinds)]
    models = [(model, "validation") for model in (Config, *ordered)]
    refs, generated = models_json_schema(cast("Any", models), ref_template="#/$defs/{model}")
    definitions = cast("dict[str, Any]", generated["$defs"])
    definitions.pop("EndpointConfig", None)
    config = definitions.pop("Config")
    config["properties"]["endpoints"]["items"] = {
        "oneOf": [refs[cast("Any", (model, "validation"))] for model in ordered]
    }
    document = {
        "$schema": DIALECT,
        **config,
        "title": "tidegate.yaml",
        "description": "Tidegate's configuration. `tidegate check` also checks what holds between its parts.",
        "$defs": definitions,
    }
    result = cast("dict[str, Any]", _with_references(document))
    result["$defs"]["Reference"] = {
        "description": "A value from the environment or from a file.",
        "type": "string",
        "pattern": r"\$\{(env|file):[^}]+\}",
    }
    for path, values in neutral_keys():
        _declare(result, path, values)
    return result


def _declare(document: dict[str, Any], path: tuple[str, ...], values: tuple[object, ...]) -> None:
    """Let a key that is not served pass with the values that ask for nothing."""
    at = document
    for part in path[:-1]:
        at = document["$defs"][at["properties"][part]["$ref"].rpartition("/")[2]]
    at["properties"][path[-1]] = {"enum": list(values), "description": "Not served by this version."}


def _with_references(node: object) -> object:
    """The schema with `${env:}` and `${file:}` allowed wherever a plain value must have a form."""
    if isinstance(node, list):
        return [_with_references(item) for item in cast("list[object]", node)]
    if not isinstance(node, dict):
        return node
    mapping = cast("dict[str, object]", node)
    result: dict[str, object] = {}
    for key, value in mapping.items():
        if key in ("properties", "$defs"):
            named = cast("dict[str, object]", value)
            result[key] = {name: _with_references(item) for name, item in named.items()}
        elif key in ("items", "additionalProperties", "anyOf", "oneOf", "prefixItems"):
            result[key] = _with_references(value)
        else:
            result[key] = value
    if not _has_form(mapping):
        return result
    outer = {key: result.pop(key) for key in ("title", "description", "default") if key in result}
    return {**outer, "anyOf": [result, _REFERENCE]}


def _has_form(node: Mapping[str, object]) -> bool:
    kind = node.get("type")
    if kind in ("number", "integer", "boolean"):
        return "const" not in node
    return kind in ("string", None) and any(key in node for key in _LEAF_KEYS)
