"""What README and docs/ show is what the code does."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from ruamel.yaml import YAML
from typer.core import TyperGroup
from typer.main import get_command

from edge_agent.delegates import Delegate, DelegateFailed, DelegateSpec, count_taken
from edge_agent.delegates._probing import PROBE_MODEL
from gateway.admin.plane import ReleaseQuery
from gateway.analytics.labels import read_labels
from gateway.cli.common import BACKENDS
from gateway.cli.demo import curl_lines
from gateway.cli.main import app
from gateway.core.config import Batching, Config
from gateway.core.config.load import kinds_in, parse_config
from gateway.core.evidence import Histogram
from gateway.core.plugins import discover
from gateway.core.release import Reference
from gateway.core.training import Sample, TrainJob
from gateway.core.training_result import checked
from gateway.drift._interface import Detector
from gateway.drift.psi import Psi
from gateway.frontends.handlers import EXTENSIONS
from gateway.jobs.judging_task import Rows, measure
from gateway.pool.replica import batched
from gateway.pool.runtimes._interface import LoadError, Runtime
from gateway.pool.runtimes.onnxruntime import OnnxRuntime
from gateway.pool.settings import VariantSettings
from gateway.routing.scorers._interface import Scorer, View
from gateway.store.references import read_reference
from gateway.telemetry import names
from oip.golden import check_golden
from oip.sample import sample_id
from oip.signature import TensorSpec
from tests.support.tflite_models import difference

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    """Every example in a language, with the name of its page and place."""
    return [
        (f"{page.relative_to(ROOT)}-{number}", text)
        for page in PAGES
        for number, (found, text) in enumerate(BLOCK.findall(page.read_text()), 1)
        if found == language
    ]


def load(text: str) -> Config:
    """Every environment variable that the text names is set, to something that fits anywhere: a number,
    and long enough for a credential."""
    environ = dict.fromkeys(re.findall(r"\$\{env:(\w+)\}", text), "1" * 40)
    return parse_config(text, "example.yaml", kinds_in(BACKENDS), environ, ROOT / "tests" / "data" / "config")


def policy_file() -> str:
    return dict(blocks("yaml"))["README.md-2"]


def test_the_policy_file_is_what_the_readme_says():
    text = policy_file()
    config = load(text)
    assert len(text.splitlines()) == 10
    assert [policy.name for policy in config.policies] == ["interactive", "default"]
    assert config.policies[0].require.latency_p95_ms == 50
    assert [endpoint.price.per_hour for endpoint in config.endpoints] == [0.05, 9.80]


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in blocks("yaml")])
def test_configuration_loads(text: str):
    """A part of a file is laid over the README's."""
    yaml = YAML(typ="safe")
    part = yaml.load(text)
    whole = io.StringIO()
    yaml.dump(part if "version" in part else yaml.load(policy_file()) | part, whole)
    assert load(whole.getvalue()).version == 1


Documented = dict[str, type]


@pytest.fixture
def documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Documented]:
    """The classes of the Python examples by their `kind`, found as the code finds its own."""
    package = tmp_path / "documented"
    package.mkdir()
    (package / "__init__.py").touch()
    for number, (_, source) in enumerate(blocks("python")):
        (package / f"example_{number}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        yield discover(package.name)
    finally:
        discover.cache_clear()
        for name in [name for name in sys.modules if name.startswith(package.name)]:
            del sys.modules[name]


def test_the_examples_are_these(documented: Documented):
    assert documented.keys() == {"measured", "matrix", "reference", "shift"}


def test_the_scorer_scores(documented: Documented):
    scorer = cast(Scorer, documented["measured"]())
    assert scorer.score([View(None, 1.0, None, True), View(4.0, None, 0.5, False)]) == [0.0, 1.0]


def test_the_detector_tells_how_far_the_mean_moved(documented: Documented):
    detector = cast(Detector, documented["shift"]())
    reference = Histogram((0.0, 1.0), (0, 4, 0))
    moved = [Histogram((0.0, 1.0), (0, 1, 0)), Histogram((0.0, 1.0), (0, 0, 1))]
    assert detector.score(reference, moved) == 0.5
    assert detector.score(reference, [reference]) == 0.0


def test_the_trainer_trains_what_can_be_released_and_measured(documented: Documented):
    text = dict(blocks("python"))
    (page,) = [name for name, source in text.items() if "def run(job" in source]
    assert page.startswith("docs/training.md")
    trainer = sys.modules[f"documented.example_{[*text].index(page)}"]
    rng = np.random.default_rng(0)
    points = rng.normal(size=(100, 2)).astype(np.float32)
    labels = (points[:, 0] > points[:, 1]).astype(np.int64)
    samples = [Sample(str(n), {"point": points[n : n + 1]}, labels[n : n + 1]) for n in range(80)]
    told: list[tuple[float, str]] = []
    result = checked(
        trainer.run(TrainJob("points", "2", {}, samples, progress=lambda *say: told.append(say)))
    )
    assert told == [(0.5, "fitting 80 points")]
    assert result.metrics["accuracy"] > 0.9
    files = {"onnx": ("onnx", result.files["onnx"].content)}
    *_, (outcome, _, rows, right) = measure(files, [Rows({"point": points}, labels)], 1)
    assert (outcome, sum(rows.values())) == ("measured", 100)
    assert sum(right.values()) > 90
    golden = result.files["onnx"].golden
    session = OnnxRuntime().load(result.files["onnx"].content, {"CPU": 1.0})
    cases = [(dict(given), dict(wanted)) for given, wanted in golden.cases]
    check_golden(cases, golden.tolerance, session.signature.inputs, session.run)


def test_the_psi_by_hand_is_the_detectors():
    text = (ROOT / "docs" / "drift.md").read_text()
    told = re.search(r"a PSI of .* = ([0-9.]+)\.", text)
    assert told is not None
    assert f"{Psi().score(Histogram((0.0,), (10, 10)), [Histogram((0.0,), (15, 5))]):.3f}" == told.group(1)


def test_the_recipe_of_a_samples_id_is_the_codes(tmp_path: Path):
    (recipe,) = [text for name, text in blocks("py") if name.startswith("docs/analytics.md")]
    made: dict[str, Any] = {}
    exec(recipe, made)
    inputs = {"b": np.array([[1, 2], [3, 4]], "f4"), "\u00e9": np.array([], "f4"), "a": np.array(7, "f4")}
    assert made["sample_id"](inputs) == sample_id(inputs)


def test_the_file_of_labels_is_read_as_told(tmp_path: Path):
    ((_, text),) = blocks("csv")
    (tmp_path / "labels.csv").write_text(text)
    found = read_labels(tmp_path / "labels.csv")
    assert (sorted(found.by_sample.values()), found.faults) == ([(3,), (3, 7)], ())


def test_the_runtime_opens_and_runs_a_file_and_refuses_another(documented: Documented):
    runtime = cast(Runtime, documented["matrix"]())
    file = io.BytesIO()
    np.savez(file, matrix=np.array([[1, 2], [3, 4]]))
    session = runtime.load(file.getvalue(), {"CPU": 1.0})
    assert session.signature.inputs == (TensorSpec("x", "FP32", (-1, 2)),)
    assert session.run({"x": np.array([[1, 1]], np.float32)})["y"].tolist() == [[4, 6]]
    variant = VariantSettings("m", "", "1", "unused", Batching(max_size=8))
    assert batched(session.signature, variant).max_batch == 8
    with pytest.raises(LoadError, match="matrix cannot open it"):
        runtime.load(b"nonsense", {"CPU": 1.0})


def test_the_delegate_runs_what_it_can_and_says_what_not(documented: Documented, tmp_path: Path):
    path = tmp_path / "difference.tflite"
    path.write_bytes(difference())
    delegate = cast(Delegate, documented["reference"](DelegateSpec("reference")))
    interpreter = delegate.interpreter(str(path), 1)
    assert count_taken(interpreter) == (0, 1)
    for given in interpreter.get_input_details():
        values = {"a": [5, 7], "b": [1, 2]}[given["name"]]
        interpreter.set_tensor(given["index"], np.array(values, np.float32))
    interpreter.invoke()
    (answer,) = interpreter.get_output_details()
    assert interpreter.get_tensor(answer["index"]).tolist() == [4, 5]
    with pytest.raises(DelegateFailed, match="cannot load the model"):
        delegate.interpreter(str(PROBE_MODEL), 1)  # it has a running sum, of which there is no reference


def parts(line: str) -> tuple[str, list[str]]:
    """The path that a curl line asks for, and its headers."""
    path = re.search(r"http://[^/]+(/\S+)", line)
    assert path is not None, line
    return path.group(1), re.findall(r"-H '([^']+)'", line)


def test_the_lines_to_try_are_those_that_the_demo_prints():
    shown = [line for line in README.read_text().splitlines() if line.startswith("curl ")]
    plant = SimpleNamespace(gateway=SimpleNamespace(http="127.0.0.1:2"))
    stage = SimpleNamespace(http="127.0.0.1:1", pixels=[[0.0] * 64], plant=plant)
    assert [parts(line) for line in shown] == [parts(line) for line in curl_lines(cast(Any, stage))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    dead = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert dead == []


def test_every_make_target_named_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        name for page in PAGES for name in re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(), re.MULTILINE)
    }
    assert named - targets == set()
    assert {"demo", "test", "check", "bench"} <= named


def test_every_command_named_exists():
    commands = {
        command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands
    }
    commands |= {group.name for group in app.registered_groups}
    named = {name for page in PAGES for name in re.findall(r"(?:`|bin/)tidegate ([a-z]+)", page.read_text())}
    assert named - commands == set()
    assert {"up", "demo", "check", "route"} <= named


def test_every_subcommand_and_option_named_exists():
    """Of the commands in examples and in running text, `tidegate GROUP COMMAND --option`."""
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    seen: set[str] = set()
    for page in PAGES:
        for line in re.findall(
            r"(?:`|bin/|^\$ |^)tidegate ([a-z]+[^`\n#;]*)", page.read_text(), re.MULTILINE
        ):
            words = line.split()
            command = root.commands.get(words[0])
            if (
                isinstance(command, TyperGroup)
                and len(words) > 1
                and words[1].isalpha()
                and words[1].islower()
            ):
                assert words[1] in command.commands, (page.name, line)
                command = command.commands[words[1]]
                seen.add(f"{words[0]} {words[1]}")
            if command is None or isinstance(command, TyperGroup):
                continue
            options = {name for option in command.params for name in option.opts}
            named = {re.split(r"[=|]", word.rstrip(".,)"))[0] for word in words if word.startswith("--")}
            assert named - options == set(), (page.name, line)
    for group, commands in (
        ("models", "push list show compat"),
        ("rollout", "start status pause resume abort"),
        ("updates", "list show start cancel retry samples"),
    ):
        assert {f"{group} {command}" for command in commands.split()} - seen == set()


def test_the_reference_beside_a_file_is_read_as_told(tmp_path: Path):
    ((_, text),) = [block for block in blocks("json") if block[0].startswith("docs/drift.md")]
    (tmp_path / "digits.tflite.reference.json").write_text(text)
    found = read_reference(tmp_path / "digits.tflite")
    assert found == {"output.confidence": Reference((0.5, 0.9), (3, 10, 500))}


def test_a_release_is_asked_for_as_told():
    ((_, text),) = [block for block in blocks("json") if block[0].startswith("docs/models.md")]
    query = ReleaseQuery.model_validate_json(text.replace("...", "0" * 60))
    assert query.version == "2"
    assert query.files["tflite"].format == "tflite"


def test_the_extensions_told_are_those_that_work():
    row = re.search(r"\| ServerMetadata \|.*", (ROOT / "docs" / "protocol.md").read_text())
    assert row is not None
    assert tuple(re.findall(r"`(\w+)`", row[0])) == EXTENSIONS


def test_every_metric_is_told_with_its_labels():
    text = (ROOT / "docs" / "telemetry.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `tidegate_")]
    told = {row.split("`")[1]: set(re.findall(r"`([a-z]+)`", row.split("|")[3])) for row in rows}
    made = [found for found in vars(names).values() if isinstance(found, names.Instrument)]
    assert told.keys() == {found.name for found in made}
    assert {found.name: set(found.labels) - told[found.name] for found in made if found.labels} == {
        found.name: set() for found in made if found.labels
    }


def test_the_rooms_drawn_are_the_rooms_there_are():
    text = (ROOT / "docs" / "architecture.md").read_text()
    drawn = next(block for _, block in BLOCK.findall(text) if block.startswith("cli\n"))
    rooms = {
        name.strip()
        for line in drawn.splitlines()
        for name in re.split(r"\s{2,}|\bPURE\b", line)[0].split("|")
    }
    made = {path.parent.name for path in (ROOT / "gateway").glob("*/__init__.py")}
    assert rooms == made | {"oip", "edgewire"}
