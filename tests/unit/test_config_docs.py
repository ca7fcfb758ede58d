"""What people copy: the documentation's examples, the sample and its text, the demo's file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.cli.advice import warnings_of
from gateway.cli.common import BACKENDS
from gateway.core.config import Config
from gateway.core.config.basis import Strict
from gateway.core.config.load import kinds_in, load_config, parse_config
from gateway.core.config.served import NOT_SERVED
from gateway.policy.upkeep import objections

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
ARTIFACTS = ROOT / "tests" / "data" / "config"
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ENVIRON = {
    "REGION": "eu-west-1",
    "TRITON_HOST": "h",
    "PRICE": "0.5",
    "LINE_2_TOKEN": "2" * 64,
    "CLOUD_TOKEN": "c" * 64,
    "TIDEGATE_DEMO_CHEAP": "127.0.0.1:1",
    "TIDEGATE_DEMO_DEAR": "127.0.0.1:2",
    "TIDEGATE_DEMO_CLOUD": "127.0.0.1:3",
    "TIDEGATE_DEMO_PLANT": "127.0.0.1:4",
    "TIDEGATE_DEMO_REPOSITORY": "/srv/models",
    "TIDEGATE_DEMO_TOKEN_CLOUD": "c" * 43,
    "TIDEGATE_DEMO_TOKEN_PLANT": "p" * 43,
}


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_is_a_good_file_that_warns_of_nothing(number: int) -> None:
    config = parse_config(EXAMPLES[number], "example.yaml", kinds_in(BACKENDS), ENVIRON, ARTIFACTS)
    assert list(objections(config)) == []
    meant = ("class 'plant'", "there is no module plant7.train here")
    assert [w.message for w in warnings_of(config) if not any(m in w.message for m in meant)] == []


def _keys(model: type[Strict], seen: set[type[Strict]]) -> set[str]:
    if model in seen:
        return set()
    seen.add(model)
    found = set(model.model_fields)
    for nested in Strict.__subclasses__():
        if any(nested.__name__ in str(field.annotation) for field in model.model_fields.values()):
            found |= _keys(nested, seen)
    return found


def test_every_key_is_in_an_example_and_every_refused_one_is_named() -> None:
    written = set(re.findall(r"\b([a-z0-9_]+):", "\n".join(EXAMPLES)))
    keys = _keys(Config, set())
    for model in kinds_in(BACKENDS).values():
        keys |= _keys(model, set())
    assert len(keys) > 40
    assert keys - written == {"device"}
    last = PAGE[PAGE.index("## Not served yet") :]
    assert [name for name in NOT_SERVED if name.rpartition(".")[2] not in last] == []


def test_the_sample_and_the_demos_files_are_good(tmp_path: Path) -> None:
    sample = load_config(ROOT / "deploy" / "tidegate.yaml", kinds_in(BACKENDS), {})
    assert warnings_of(sample) == []
    demo = ROOT / "gateway" / "demo"
    for name in ("digits-int8.tflite", "digits.onnx", "hey_mycroft.tflite", "labels.csv"):
        (tmp_path / name).touch()
    places = {"TIDEGATE_DEMO_ARTIFACTS": str(tmp_path), "TIDEGATE_DEMO_LABELS": str(tmp_path / "labels.csv")}
    environ = {**ENVIRON, **places}
    cloud = load_config(demo / "tidegate.yaml", kinds_in(BACKENDS), environ)
    assert [w.loc for w in warnings_of(cloud)] == [("privacy", "classes", "on-site")]
    plant = load_config(demo / "plant.yaml", kinds_in(BACKENDS), environ)
    assert [w.loc for w in warnings_of(plant)] == [("privacy", "classes", "secret")]
