"""Text that is not the YAML it should be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.core.config.load import MAX_BYTES, load_config
from gateway.core.config.problems import ConfigError
from tests.unit.config_support import GOOD, KINDS, changed, problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1:1: the file is empty: begin with version: 1"),
        ("# nothing\n", "1:1: the file is empty: begin with version: 1"),
        ("- version: 1\n", "1:1: the file must be a mapping of sections: begin with version: 1"),
        ("version", "1:1: the file must be a mapping of sections: begin with version: 1"),
        ("a: 1\n\tb: 2\n", "2:1: a tab cannot indent YAML: use spaces"),
        ("a: 1\nb: {c: 1\n", "3:1: not valid YAML: expected ',' or '}', but got '<stream end>'"),
        ("a: 1\n---\nb: 2\n", "2:1: a second document begins here: keep one document in the file"),
        ("a: 1\x00\n", "1:5: the character U+0000 is not allowed in YAML: remove it"),
        ('a: "\\UFFFFFFFF"\n', "1:1: not valid YAML: look at the value that begins here or just after"),
        ("*x\n", "1:1: aliases are not read: write the value out"),
    ],
)
def test_unreadable_text(text: str, expected: str) -> None:
    assert problems(text) == [f"t.yaml:{expected}"]


def test_nesting_is_bounded() -> None:
    for deep in ("[" * 5000, "{a: " * 5000, "- " * 400):
        found = problems(f"version: 1\nx:\n  {deep}")
        assert len(found) == 1
        assert "nested deeper than 24 levels" in found[0], found


def test_anchors_aliases_merges_and_tags_are_refused_where_they_stand() -> None:
    text = changed("labels: {group: gpu}", "labels: &l {group: gpu}")
    text = text.replace(
        "price:\n      per_request: 0.0001", "labels: *l\n    price:\n      <<: {egress_per_gb: 1}"
    )
    text = text.replace("currency: EUR", "currency: !!str EUR")
    assert problems(text) == [
        "t.yaml:2:11: tags are not read: remove 'tag:yaml.org,2002:str'",
        "t.yaml:13:13: anchors are not read: remove it and write the value where it is needed",
        "t.yaml:22:13: aliases are not read: write the value out",
        "t.yaml:24:7: merge keys are not read: write the keys out",
    ]


def test_a_billion_laughs_end_at_the_first_alias() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    found = problems("\n".join(lines))
    assert any("aliases are not read" in line for line in found)


def test_a_key_that_is_no_name_is_refused_with_its_value_stepped_over() -> None:
    assert problems(changed("currency: EUR", "? [a, {b: c}]\n: {d: [e]}\ncurrency: EUR")) == [
        "t.yaml:2:3: a key must be a plain name"
    ]


def test_an_older_dialect_is_refused() -> None:
    assert problems("%YAML 1.1\n---\n" + GOOD) == [
        "t.yaml:2:1: only YAML 1.2 is read: remove the %YAML directive"
    ]


def _refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, KINDS, {})
    return str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    assert _refused(missing) == f"{missing}:1:1: there is no such file"
    assert _refused(tmp_path) == f"{tmp_path}:1:1: this is a directory: name the file in it"
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * (MAX_BYTES + 1))
    assert _refused(big) == f"{big}:1:1: the file is larger than 1 MiB"
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("version: 1\nname: Köln\n".encode("latin-1"))
    assert _refused(latin) == f"{latin}:2:8: the file is not UTF-8 from here on: save it as UTF-8"
    assert _refused(Path("a\0b")) == "a\0b:1:1: the file cannot be read: check its permissions"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "closed.yaml"
    path.write_text(GOOD)
    path.chmod(0)
    assert _refused(path) == f"{path}:1:1: the file cannot be read: check its permissions"
