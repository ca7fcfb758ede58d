from __future__ import annotations

import pytest

from gateway.core.config import Match, PolicyConfig, Weights
from gateway.policy.match import Traits, choose, compile_policies, matches


def policy(name: str = "p", **match: tuple[str, ...]) -> PolicyConfig:
    return PolicyConfig(name=name, match=Match(**match), weights=Weights(latency=1))


def traits(
    model: str = "digits", tenant: str = "", site: str = "", privacy: tuple[str, ...] = ("internal",)
) -> Traits:
    return Traits(model, tenant, site, privacy)


@pytest.mark.parametrize(
    ("match", "given", "expected"),
    [
        ({}, traits(), True),
        ({"models": ("dig*",)}, traits(), True),
        ({"models": ("Dig*",)}, traits(), False),
        ({"models": ("digit",)}, traits(), False),
        ({"models": ("d[a-i]gits", "x")}, traits(), True),
        ({"models": ("digits",)}, traits(model="digits\n"), False),
        ({"models": ("d?g*",)}, traits(model="d\ngits"), True),
        ({"tenants": ("*",)}, traits(), True),
        ({"tenants": ("acme",)}, traits(), False),
        ({"sites": ("plant-*",)}, traits(site=""), False),
        ({"sites": ("plant-*",)}, traits(site="plant-7"), True),
        ({"privacy": ("int*",)}, traits(privacy=("personal", "internal")), True),
        ({"privacy": ("int*",)}, traits(privacy=("personal",)), False),
        ({"models": ("digits",), "sites": ("x",)}, traits(), False),
    ],
)
def test_match(match: dict[str, tuple[str, ...]], given: Traits, expected: bool) -> None:
    (compiled,) = compile_policies([policy(**match)])
    assert matches(compiled, given) is expected


def test_first_match_wins_and_a_name_must_match_too() -> None:
    first, second, last = policy("a", models=("x",)), policy("b", models=("d*",)), policy("c")
    compiled = compile_policies([first, second, last])
    assert choose(compiled, traits(), None) is second
    assert choose(compiled, traits(model="y"), None) is last
    assert choose(compiled, traits(), "c") is last
    assert choose(compiled, traits(), "a") == "Policy 'a' of tidegate-policy does not match this request"
    assert choose(compiled, traits(), "z") == "Unknown policy 'z' in tidegate-policy"
    assert choose(compiled[:1], traits(), None) == "No policy matches the request"
