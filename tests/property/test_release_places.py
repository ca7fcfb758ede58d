"""Where a release may go that is made of data is where all of the data may go, and nowhere else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.allowed import AllowedRule, AllowedSet, decode
from edgewire.places import Place, Tier
from gateway.core.release import ANYWHERE, Release, Stage, narrowed_places

NAMES = st.sampled_from(["a", "b", "c"])


def names(of: st.SearchStrategy[str]) -> st.SearchStrategy[frozenset[str] | None]:
    return st.none() | st.frozensets(of, min_size=1)


RULES = st.builds(
    AllowedRule,
    st.none() | st.frozensets(st.sampled_from(Tier), min_size=1),
    names(NAMES),
    names(NAMES),
    names(NAMES),
)
TEXTS = st.lists(RULES, max_size=3).map(lambda rules: AllowedSet(tuple(rules)).encode())
PLACES = st.builds(Place, st.sampled_from(Tier), st.none() | NAMES, st.none() | NAMES, st.none() | NAMES)


@given(st.just(ANYWHERE) | TEXTS, st.lists(TEXTS, max_size=4), PLACES)
def test_it_may_go_where_the_release_and_every_sample_may(current: str, samples: list[str], place: Place):
    release = Release("m", "2", {}, 1, Stage.CANDIDATE, places=narrowed_places(current, samples))
    wanted = (current == ANYWHERE or decode(current).allows(place)) and all(
        decode(text).allows(place) for text in samples
    )
    assert release.may_go(place) is wanted


def test_of_data_that_may_go_nowhere_comes_what_may_go_nowhere():
    assert narrowed_places(ANYWHERE, ["tier=site;site=a", "tier=site;site=b"]) == "none"


@pytest.mark.parametrize("odd", ["", "tier=moon", "anything"])
def test_a_sample_of_unknown_places_is_refused(odd: str):
    with pytest.raises(ValueError, match=r"rule is|tiers are"):
        narrowed_places(ANYWHERE, ["tier=site", odd])


def test_a_set_that_cannot_be_told_is_not_multiplied_further():
    many = [",".join(f"site=s{n}-{k};device=d{k}" for k in range(90)) for n in range(40)]
    wide = ",".join(f"region=r{k}" for k in range(200))
    with pytest.raises(ValueError, match="more than 4096"):
        narrowed_places(wide, many)
