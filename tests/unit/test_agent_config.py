"""agent.yaml: what it says, and how mistakes in it are told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edge_agent.config import AgentConfig, ConfigError, Library, Limits, parse_config, read_config


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "agent.yaml")
    return str(caught.value).splitlines()


def test_everything_that_it_can_say():
    text = """\
device: cam-7a
threads: 2
delegates:
  - {library: /usr/lib/libvx.so, options: {cache: "1"}}
  - xnnpack
  - builtin
limits: {max_body_mb: 8, memory_mb: 512, spool_mb: 4}
"""
    assert parse_config(text, "agent.yaml") == AgentConfig(
        "cam-7a",
        (Library(Path("/usr/lib/libvx.so"), {"cache": "1"}), "xnnpack", "builtin"),
        2,
        Limits(8, 512, 4),
    )


def test_an_empty_file_is_the_default():
    assert parse_config("# nothing\n", "agent.yaml") == AgentConfig()
    assert AgentConfig().delegates == ("xnnpack", "builtin")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("device: cam\nthread: 2\n", "agent.yaml:2: unknown key 'thread': the file has device, threads,"),
        ("device: 7\n", "agent.yaml:1: device must be a name"),
        ("device: a b\n", "agent.yaml:1: device must be a name"),
        ("\nthreads: 0\n", "agent.yaml:2: threads must be a whole number from 1 to 64, not 0"),
        ("threads: true\n", "agent.yaml:1: threads must be a whole number from 1 to 64, not True"),
        ("threads: '2'\n", "agent.yaml:1: threads must be a whole number from 1 to 64, not '2'"),
        ("limits:\n  max_body_mb: 1.5\n", "agent.yaml:2: max_body_mb must be a whole number"),
        ("limits:\n  memory_mb: 64\n", "agent.yaml:2: memory_mb must be a whole number from 512"),
        ("limits:\n  spool_mb: 3\n", "agent.yaml:2: spool_mb must be a whole number from 4 to 1024, not 3"),
        ("limits: 3\n", "agent.yaml:1: limits must be a mapping"),
        (
            "limits:\n  bodies: 3\n",
            "agent.yaml:2: unknown key 'bodies': limits has max_body_mb, memory_mb, spool_mb",
        ),
        ("delegates: []\n", "agent.yaml:1: delegates must be a list of at least one"),
        ("delegates:\n- xnnpack\n- npu\n", "agent.yaml:3: a delegate must be {library:"),
        ("delegates:\n- xnnpack\n- xnnpack\n", "agent.yaml:3: this delegate is listed twice"),
        ("delegates:\n- {library: lib.so}\n", "agent.yaml:2: library must be the absolute path"),
        ("delegates:\n- {options: {}}\n", "agent.yaml:2: a delegate needs its library"),
        ("delegates:\n- library: /l.so\n  options: {a: 1}\n", "agent.yaml:3: option a must be a text"),
        ("threads: 1\nthreads: 2\n", "agent.yaml:2: found duplicate key"),
        ("device: [\n", "agent.yaml:2: "),
        ("- a\n", "agent.yaml:1: the file must be a mapping"),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, expected: str):
    (line,) = problems(text)
    assert line.startswith(expected)


def test_all_mistakes_are_told_at_once():
    lines = problems("threads: 0\nlimits: {max_body_mb: 0}\nname: x\n")
    assert [line.split(": ")[0] for line in lines] == ["agent.yaml:1", "agent.yaml:2", "agent.yaml:3"]


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"none\.yaml:1: cannot be read: No such file"):
        read_config(tmp_path / "none.yaml")


def test_the_page_shows_a_file_that_is_read():
    page = (Path(__file__).parents[2] / "docs" / "agent.md").read_text()
    (text,) = re.findall(r"^```yml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    config = parse_config(text, "agent.yaml")
    assert config == AgentConfig(
        "cam-7a", (Library(Path("/usr/lib/libvx_delegate.so"), {"cache": "1"}), "xnnpack", "builtin")
    )
