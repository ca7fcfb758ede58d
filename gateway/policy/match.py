"""Which policy a request falls under: the first whose match holds, or the one the caller names.

Globs are shell-style (`*`, `?`, `[...]`), case-sensitive, over the whole name. A request without a
tenant or a site has the name "" there, which only a glob that takes the empty name matches.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from gateway.core.config import PolicyConfig

Patterns = tuple[re.Pattern[str], ...] | None
"""Compiled globs of which one must match; None matches everything."""


@dataclass(frozen=True, slots=True)
class CompiledPolicy:
    """A policy with its globs compiled."""

    config: PolicyConfig
    models: Patterns
    tenants: Patterns
    sites: Patterns
    privacy: Patterns


@dataclass(frozen=True, slots=True)
class Traits:
    """What a policy's match looks at. `privacy` are the names of all classes that apply."""

    model: str
    tenant: str
    site: str
    privacy: tuple[str, ...]


def compile_policies(policies: Sequence[PolicyConfig]) -> tuple[CompiledPolicy, ...]:
    """The policies in their order."""
    return tuple(
        CompiledPolicy(
            p,
            _patterns(p.match.models),
            _patterns(p.match.tenants),
            _patterns(p.match.sites),
            _patterns(p.match.privacy),
        )
        for p in policies
    )


def matches(policy: CompiledPolicy, traits: Traits) -> bool:
    """Whether every part holds; for the classes it is enough that one of them matches one glob."""
    return (
        _any(policy.models, traits.model)
        and _any(policy.tenants, traits.tenant)
        and _any(policy.sites, traits.site)
        and (policy.privacy is None or any(_any(policy.privacy, name) for name in traits.privacy))
    )


def choose(policies: Sequence[CompiledPolicy], traits: Traits, named: str | None) -> PolicyConfig | str:
    """The policy that applies, or one sentence that says why none does.

    Without `named`, the first that matches. With it that policy alone, and it must match as well:
    naming a policy is no way round its match.
    """
    if named is None:
        for policy in policies:
            if matches(policy, traits):
                return policy.config
        return "No policy matches the request"
    for policy in policies:
        if policy.config.name == named:
            if matches(policy, traits):
                return policy.config
            return f"Policy '{named}' of tidegate-policy does not match this request"
    return f"Unknown policy '{named}' in tidegate-policy"


@lru_cache(maxsize=4096)
def _compiled(glob: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(glob))


def _patterns(globs: Sequence[str]) -> Patterns:
    return None if "*" in globs else tuple(_compiled(glob) for glob in globs)


def _any(patterns: Patterns, name: str) -> bool:
    if patterns is None:
        return True
    return any(pattern.match(name) is not None for pattern in patterns)
