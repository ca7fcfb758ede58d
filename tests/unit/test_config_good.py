"""What a good file becomes."""

from __future__ import annotations

import pickle

import pytest
from pydantic import BaseModel, ValidationError

from gateway.core.config import Config, Location, Price, Relax, Weights
from gateway.core.config.load import load_config, revision_of
from gateway.core.place import Place, Tier
from tests.unit.config_support import DATA, GOOD, KINDS, TritonLike, changed, parsed


def test_every_section_arrives() -> None:
    config = load_config(DATA / "good.yaml", KINDS, {})
    assert config.currency == "EUR"
    assert config.gateway.location.place == Place(Tier.SITE, "eu-west-1", "plant-7")
    assert [e.name for e in config.endpoints] == ["gpu-east", "rack"]
    assert config.endpoints[0].price == Price(per_hour=0.81, egress_per_gb=0.09)
    assert config.endpoints[0].hardware == {"accelerator": "nvidia-l4", "memory_gb": 24}
    assert config.models[0].variants[0].version == "3"
    assert config.models[1].privacy == "personal"
    internal = config.privacy.classes["internal"]
    assert internal.allow[1].region == ("eu-west-1",), "a single value counts as a list of one"
    assert config.policies[0].on_no_candidate == Relax(relax=("cost", "latency"))
    assert config.policies[1].on_no_candidate == "reject"
    assert config.policies[1].match.models == ("*",)
    assert config.telemetry.sample_ratio == 0.05


def test_endpoints_keep_their_kinds_own_model_in_pickle_and_dump() -> None:
    config = parsed(GOOD)
    endpoint = pickle.loads(pickle.dumps(config)).endpoints[0]
    assert type(endpoint) is TritonLike
    assert endpoint.url == "grpc://triton.eu-west:8001"
    assert pickle.loads(pickle.dumps(config)) == config
    assert config.model_dump()["endpoints"][0]["url"] == "grpc://triton.eu-west:8001"


def test_line_ends_and_a_byte_order_mark_change_nothing() -> None:
    assert parsed("\ufeff" + GOOD.replace("\n", "\r\n")) == parsed(GOOD)


def test_words_that_older_yaml_took_for_truth_values_are_texts() -> None:
    config = parsed(changed("labels: {group: gpu}", "labels: {country: no, switch: on, size: 0_1}"))
    assert config.endpoints[0].labels == {"country": "no", "switch": "on", "size": "0_1"}


def test_a_whole_number_is_good_where_a_number_is_asked_for() -> None:
    assert parsed(changed("latency: 1\n", "latency: 2\n")).policies[1].weights.latency == 2.0


def test_the_revision_follows_the_meaning_and_not_the_spelling() -> None:
    base = revision_of(parsed(GOOD))
    assert len(base) == 12
    assert revision_of(parsed(GOOD + "# a comment\n")) == base
    assert revision_of(parsed(changed("tier: site\n", "tier: 'site'\n"))) == base
    assert revision_of(parsed(changed("weight: 3", "weight: 4"))) != base
    assert revision_of(parsed(changed("rack.plant-7:8001", "rack.plant-7:8002"))) != base, "a kind's own key"


def test_a_repr_shows_names_and_numbers_and_no_other_text() -> None:
    config = parsed(changed("grpc://rack.plant-7:8001", "${env:URL}"), {"URL": "grpc://hunter2.example:1"})
    text = f"{config!r} {config} {config.endpoints[1]!r}"
    assert "hunter2" not in text
    assert "name='rack'" in text
    assert "weight=3" in text


def _texts(value: object) -> list[str]:
    if isinstance(value, BaseModel):
        return [text for name in type(value).model_fields for text in _texts(getattr(value, name))]
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in _texts(part)]
    if isinstance(value, tuple):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) and not isinstance(value, Tier) else []


def test_resolved_texts_are_plain_ones() -> None:
    text = changed("grpc://rack.plant-7:8001", "${env:A}").replace("group: gpu", "group: '${env:A}'")
    text = text.replace("name: faces", "name: ${env:A}").replace("nvidia-l4", "'${env:A}'")
    config = parsed(text, {"A": "abc"})
    assert config.models[1].name == "abc"
    assert {type(t) for t in _texts(config)} == {str}


def test_a_config_made_in_code_is_held_to_its_references_too() -> None:
    good = parsed(GOOD)
    plain = {name: getattr(good, name) for name in Config.model_fields}
    assert Config(**plain) == good
    with pytest.raises(ValidationError, match="endpoint 'rack' is not declared"):
        Config(**{**plain, "endpoints": good.endpoints[:1]})


def test_models_refuse_what_excludes_itself() -> None:
    with pytest.raises(ValidationError, match="exclude each other"):
        Price(per_hour=1, per_request=1)
    with pytest.raises(ValidationError, match="at least one weight"):
        Weights()
    with pytest.raises(ValidationError):
        Location(tier="moon")  # pyright: ignore[reportArgumentType]
