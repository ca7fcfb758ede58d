"""The JSON Schema: the committed one is current, and it tells good from bad as far as a schema can."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from gateway.cli.schema import text
from gateway.core.config.schema import schema
from tests.unit.config_support import DATA, GOOD, KINDS, changed, parsed, problems

COMMITTED = Path(__file__).parents[2] / "deploy" / "tidegate.schema.json"
VALIDATOR = Draft202012Validator(schema(KINDS))


def _plain(source: str) -> Any:
    return YAML(typ="safe", pure=True).load(source)


def _errors(source: str) -> list[str]:
    return [error.json_path for error in VALIDATOR.iter_errors(_plain(source))]


def test_the_committed_schema_is_what_the_models_say() -> None:
    assert COMMITTED.read_text(encoding="utf-8") == text(), "run `make gen`"


def test_it_is_a_schema_of_its_dialect() -> None:
    Draft202012Validator.check_schema(schema(KINDS))
    Draft202012Validator.check_schema(json.loads(COMMITTED.read_text(encoding="utf-8")))


def test_the_good_file_passes_with_its_neutral_keys() -> None:
    assert _errors(GOOD) == []
    assert _errors(changed("  limits:", "  tls: null\n  limits:")) == []


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("idempotent: true", "idempotant: true", "$.models[0]"),
        ("idempotent: true", 'idempotent: "yes"', "$.models[0].idempotent"),
        ("latency_p95_ms: 50", 'latency_p95_ms: "50ms"', "$.policies[0].require.latency_p95_ms"),
        (
            "public: {allow: [{tier: [device, site, regional, cloud]}]}",
            "public: {allow: []}",
            "$.privacy.classes.public.allow",
        ),
        ("weight: 3", "weight: -3", "$.models[0].variants[0].weight"),
        ("on_no_candidate: reject", "on_no_candidate: maybe", "$.policies[1].on_no_candidate"),
        ("store: sqlite", "store: postgresql+asyncpg://x", "$.store"),
        ("tenants: []", "tenants: [{name: a}]", "$.tenants"),
        ("version: 1\n", "version: 2\n", "$.version"),
        ("kind: triton\n    url: grpc://rack", "kind: pool\n    url: grpc://rack", "$.endpoints[1]"),
        ("region: eu-west-1\n    personal", "region: []\n    personal", "$.privacy.classes.internal.allow[1].region"),
    ],
)  # fmt: skip
def test_what_the_reader_refuses_the_schema_refuses(old: str, new: str, path: str) -> None:
    text = changed(old, new)
    assert problems(text)
    assert _errors(text) == [path]


def test_references_pass_where_a_form_is_asked_for() -> None:
    text = changed("weight: 3", 'weight: "${env:W}"').replace("currency: EUR", "currency: ${env:C}")
    text = text.replace("idempotent: true", "idempotent: ${file:flag}")
    assert _errors(text) == []


@pytest.mark.parametrize("rule", ["region: eu-west-1", "region: [eu-west-1]"])
def test_one_or_many(rule: str) -> None:
    text = changed("region: eu-west-1\n    personal", f"{rule}\n    personal")
    assert _errors(text) == []
    assert parsed(text) == parsed(GOOD)


def test_the_contracts_sample_fails_the_schema_as_well() -> None:
    found = _errors((DATA / "contract.yaml").read_text(encoding="utf-8"))
    assert {"$.policies[0]", "$.endpoints[1]"} <= set(found)
    assert not any(path.startswith("$.updates") for path in found)
