"""Whatever the text, reading it gives a configuration or a ConfigError; and damage is found where it is."""

from __future__ import annotations

import re
import string
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.config.load import parse_config
from gateway.core.config.problems import ConfigError, Problem
from tests.unit.config_support import GOOD, KINDS

_PIECES = [
    *"{}[]:,-?#&*!|>'\"%@`$\\ \n\t\r~<=./0123456789eEx_",
    "\ufeff", "\x85", "\u2028", "\x00", "é", "😀",
    "---\n", "...\n", "%YAML 1.2\n", "%TAG ! x\n", "<<: *a", "&a ", "*a", "!!int ", "? ", ": ", "- ", "\n  ",
    "${env:A}", "${file:b}", "${", "$${", "version: 1\n", "endpoints:\n", "match: {}", "0x", "0o7", ".inf", ".nan",
    "1e400", "9" * 5000, "true", "null", '"\\U', '"\\x', "2001-01-01", "=",
]  # fmt: skip
_LINES = GOOD.splitlines()
_KEYS = sorted(
    {
        (number, match.start(1), match.end(1))
        for number, line in enumerate(_LINES)
        for match in re.finditer(r"(?:^|[\s{,])([a-z][a-z0-9_]*):(?=\s|$)", line)
        if match[1] not in ("group", "accelerator", "memory_gb", "public", "internal", "personal")
    }
)
_KNOWN = {_LINES[number][start:end] for number, start, end in _KEYS} | {
    "tls", "name", "model", "region", "site", "device", "same", "price", "labels", "hardware", "precision",
}  # fmt: skip


def _lines_of(text: str) -> list[int]:
    """Lines of the problems of a text; empty when it is good."""
    problems: tuple[Problem, ...] | None = None
    try:
        parse_config(text, "t.yaml", KINDS, {"A": "text"}, Path(__file__).parent)
    except ConfigError as error:
        problems = error.problems
    if problems is None:
        return []
    assert problems
    assert all(p.line >= 1 and p.col >= 1 and p.message for p in problems)
    assert not any("\n" in p.message or "pydantic" in p.message for p in problems)
    return [p.line for p in problems]


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(), st.lists(st.sampled_from(_PIECES), max_size=40).map("".join)))
def test_any_text_is_a_configuration_or_a_config_error(text: str) -> None:
    assert _lines_of(text) != []


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, len(GOOD)),
    st.integers(0, 30),
    st.lists(st.sampled_from(_PIECES), max_size=6).map("".join),
)
def test_a_damaged_good_file_is_a_configuration_or_a_config_error(at: int, cut: int, put: str) -> None:
    _lines_of(GOOD[:at] + put + GOOD[at + cut :])


_VALUES = st.recursive(
    st.sampled_from(
        [
            "null",
            "true",
            "0",
            "-1",
            "1.5",
            ".nan",
            ".inf",
            "1e400",
            "9" * 5000,
            "''",
            "x",
            "'*'",
            "'${env:A}'",
        ]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(inner, max_size=2).map(
            lambda items: "{" + ", ".join(f"k{i}: {v}" for i, v in enumerate(items)) + "}"
        ),
    ),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_value_at_any_key_is_a_configuration_or_a_config_error(data: st.DataObject) -> None:
    flow = [
        (n, m.start(1), m.end(1))
        for n, line in enumerate(_LINES)
        for m in re.finditer(r"[a-z0-9_]+: ([A-Za-z0-9.:/\"-]+|\[[^\]]*\]|\{[^{}]*\})", line)
    ]
    number, start, end = data.draw(st.sampled_from(flow))
    lines = list(_LINES)
    lines[number] = lines[number][:start] + data.draw(_VALUES) + lines[number][end:]
    _lines_of("\n".join(lines))


@st.composite
def _misspelt(draw: st.DrawFn) -> tuple[int, str]:
    number, start, end = draw(st.sampled_from(_KEYS))
    key = _LINES[number][start:end]
    at = draw(st.integers(0, len(key) - 1))
    letter = draw(st.sampled_from(string.ascii_lowercase))
    wrong = draw(
        st.sampled_from(
            [
                key[:at] + key[at + 1 :],
                key[:at] + letter + key[at:],
                key[:at] + letter + key[at + 1 :],
                key[:at] + key[at + 1 : at + 2] + key[at] + key[at + 2 :],
            ]
        ).filter(lambda word: word not in _KNOWN and word[:1].isalpha() and word not in ("null", "true"))
    )
    lines = list(_LINES)
    lines[number] = lines[number][:start] + wrong + lines[number][end:]
    return number + 1, "\n".join(lines)


@settings(max_examples=200, deadline=None)
@given(_misspelt())
def test_a_misspelt_key_is_reported_on_its_line(planted: tuple[int, str]) -> None:
    line, text = planted

    assert line in _lines_of(text)
