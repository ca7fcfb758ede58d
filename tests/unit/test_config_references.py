"""`${env:}` and `${file:}`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest
from pydantic import field_validator

from gateway.core.config import PlacedConfig
from gateway.core.config.load import load_config, parse_config
from gateway.core.config.problems import ConfigError
from tests.unit.config_support import KINDS, TritonLike, changed, parsed, problems

URL = "grpc://rack.plant-7:8001"


def _url(text: str, environ: dict[str, str] | None = None, base: Path = Path()) -> str:
    endpoint = parsed(changed(URL, text), environ, base).endpoints[1]
    assert isinstance(endpoint, TritonLike)
    return endpoint.url


def test_values_are_put_in_whole_and_within_a_text_and_only_once() -> None:
    environ = {"HOST": "h", "PORT": "8001", "AGAIN": "${env:HOST}"}
    assert _url("grpc://${env:HOST}:${env:PORT}", environ) == "grpc://h:8001"
    assert _url("${env:AGAIN}", environ) == "${env:HOST}"
    assert _url("'$${env:HOST} $5'", environ) == "${env:HOST} $5"


def test_files_are_found_beside_the_configuration_and_lose_their_last_line_end(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "url").write_bytes(b"grpc://from-file:1\r\n")
    path = tmp_path / "conf" / "t.yaml"
    path.write_text(changed(URL, "${file:url}"))
    endpoint = load_config(path, KINDS, {}).endpoints[1]
    assert isinstance(endpoint, TritonLike)
    assert endpoint.url == "grpc://from-file:1"
    assert _url(f"${{file:{tmp_path}/conf/url}}") == "grpc://from-file:1"


def test_a_whole_reference_stands_for_a_number_or_a_truth_value_where_one_is_expected() -> None:
    text = changed("per_request: 0.0001", "per_request: ${env:PRICE}")
    text = text.replace("idempotent: true", 'idempotent: "${env:FLAG}"')
    text = text.replace("weight: 3", "weight: '${env:W}'").replace('version: "3"', "version: '${env:V}'")
    config = parsed(text, {"PRICE": "0.5", "FLAG": "false", "W": "7", "V": "12"})
    assert config.endpoints[1].price.per_request == 0.5
    assert config.models[0].idempotent is False
    assert config.models[0].variants[0].weight == 7
    assert config.models[0].variants[0].version == "12", "a text stays one"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("${env:NOPE}", "${env:NOPE}: the environment variable NOPE is not set"),
        ("x${file:no/such}", "${file:no/such}: there is no such file"),
        ("${file:/}", "${file:/}: not a regular file"),
        ("${file:big}", "${file:big}: larger than 64 KiB"),
        ("${file:binary}", "${file:binary}: not UTF-8 text"),
        ("${file:fifo}", "${file:fifo}: not a regular file"),
        ("'${vault:x}'", "'${vault:x}' is no reference: write ${env:NAME} or ${file:PATH}, or $${ for a literal ${"),
        ("'${env:A-B}'", "'${env:A-B}' is no reference: write ${env:NAME} or ${file:PATH}, or $${ for a literal ${"),
        ("'${env:A'", "'${' is not closed: write ${env:NAME} or ${file:PATH}"),
    ],
)  # fmt: skip
def test_a_reference_that_leads_nowhere_is_reported_once_at_its_value(
    written: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "big").write_bytes(b"x" * (64 * 1024 + 1))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    os.mkfifo(tmp_path / "fifo")
    assert problems(changed(URL, written), {}, tmp_path) == [f"t.yaml:18:10: {message}"]


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("currency: EUR", "currency: ${env:S}"),
        ("name: rack", "name: rack ${env:S}"),
        ("endpoint: rack\n        weight", "endpoint: ${env:S}\n        weight"),
        ("privacy: personal", "privacy: x${env:S}"),
        ("default: internal", "default: ${env:S}"),
        ("kind: triton\n    url: grpc://rack", "kind: ${env:S}\n    url: grpc://rack"),
        ("store: sqlite", "store: ${env:S}"),
        ("weight: 3", "weight: '${env:S}'"),
        ("weight: 3", "weight: '3${env:S}'"),
        ("idempotent: true", "idempotent: ${env:S}"),
        ("tier: site\n", "tier: ${env:S}\n"),
        ("on_no_candidate: reject", "on_no_candidate: ${env:S}"),
        ("http://127.0.0.1:4318", "${env:S}"),
        ('["digits"]', '["[${env:S}"]'),
        ("allow: [{tier: [device, site, regional, cloud]}]", "allow: '${env:S}'"),
        ("  - name: rack", "  - ${env:S}\n  - name: rack"),
        ("memory_gb: 24", "memory_gb: 24\n    kimd: ${env:S}"),
    ],
)
def test_no_message_holds_what_a_reference_stands_for(old: str, new: str) -> None:
    found = problems(changed(old, new), {"S": SECRET})
    assert found
    assert SECRET not in "\n".join(found)


@pytest.mark.parametrize("text", ["weight: ${env:W}", "weight: x${env:W}"])
def test_without_quotes_inside_braces_a_reference_is_not_yaml(text: str) -> None:
    column = 67 + text.index("$") - len("weight: ")
    assert problems(changed("weight: 3", text), {"W": "1"}) == [
        f"t.yaml:29:{column}: inside {{}} and [] put ${{...}} in quotes"
    ]


def test_names_from_references_are_not_spelt_out_as_suggestions() -> None:
    text = changed("name: rack", "name: ${env:S}").replace(
        "endpoint: rack\n        weight", "endpoint: hunter1\n        weight"
    )
    found = "\n".join(problems(text, {"S": SECRET}))
    assert SECRET not in found
    assert "did you mean '${env:S}'?" in found


class Talkative(PlacedConfig):
    kind: Literal["triton"]
    url: str

    @field_validator("url")
    @classmethod
    def _no(cls, value: str) -> str:
        raise ValueError(f"cannot use {value!r} of {value.partition('//')[2]}")


def test_a_kinds_own_words_are_masked() -> None:
    text = changed(URL, "grpc://${env:S}")
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "t.yaml", {"triton": Talkative}, {"S": SECRET}, Path())
    assert SECRET not in str(caught.value)
    assert "t.yaml:18:10: cannot use 'grpc://${env:S}'" in str(caught.value)
