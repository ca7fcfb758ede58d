"""What callers may say in `tidegate-*`, and what they hear when they say it wrong."""

import pytest

from edgewire.places import Place, Tier
from gateway.core.errors import Refusal
from gateway.core.request import Options
from gateway.pipeline.options import parse_options
from oip.reasons import Reason

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_nothing_given_is_no_option():
    assert parse_options([("user-agent", "x"), ("authorization", "Bearer y")]) == Options()


def test_every_option_reaches_its_field():
    metadata = [
        ("tidegate-privacy", "personal"),
        ("tidegate-policy", "interactive"),
        ("tidegate-deadline-ms", "250.5"),
        ("tidegate-max-cost", "0.002"),
        ("tidegate-site", "plant-7"),
        ("tidegate-device", "cam-1"),
        ("tidegate-idempotent", "false"),
        ("traceparent", PARENT),
        ("tracestate", "a=1, b=2"),
    ]
    assert parse_options(metadata) == Options(
        privacy="personal",
        policy="interactive",
        deadline_ms=250.5,
        max_cost=0.002,
        site="plant-7",
        device="cam-1",
        idempotent=False,
        traceparent=PARENT,
        tracestate="a=1,b=2",
    )
    assert parse_options([("tidegate-idempotent", "true")]).idempotent is True


def refusal(*metadata: tuple[str, str | bytes]) -> str:
    with pytest.raises(Refusal) as caught:
        parse_options(metadata)
    assert caught.value.reason is Reason.BAD_OPTION
    return caught.value.message


@pytest.mark.parametrize(
    "key", ["tidegate-privcy", "tidegate_privacy", "tidegate-", "tidegate-endpoint", "tidegate-Privacy"]
)
def test_unknown_option_is_refused_and_the_known_ones_are_listed(key):
    message = refusal((key, "personal"))
    assert key in message
    assert "tidegate-privacy, tidegate-policy" in message


def test_binary_option_is_unknown():
    assert "tidegate-privacy-bin" in refusal(("tidegate-privacy-bin", b"personal"))


@pytest.mark.parametrize("second", ["personal", "public"])
def test_repeated_option_is_refused_even_with_the_same_value(second):
    message = refusal(("tidegate-privacy", "personal"), ("x", "y"), ("tidegate-privacy", second))
    assert message == "tidegate-privacy is given more than once: give it once"


def test_a_peers_options_are_read_as_they_were_written():
    text = "tier=device+site;site=plant-7,tier=cloud;region=eu-west-1"
    options = parse_options([("tidegate-allowed", text), ("tidegate-hops", "gw-a,gw_b.2")])
    assert options.hops == ("gw-a", "gw_b.2")
    assert options.allowed is not None
    assert options.allowed.allows(Place(Tier.CLOUD, region="eu-west-1"))
    assert not options.allowed.allows(Place(Tier.CLOUD, region="us"))
    nothing = parse_options([("tidegate-allowed", "none")]).allowed
    assert nothing is not None
    assert nothing.rules == ()


@pytest.mark.parametrize("value", ["", "tier", "tier=moon", "site=a b", "tier=cloud;tier=site", "x" * 4097])
def test_a_set_of_places_must_be_one(value):
    assert refusal(("tidegate-allowed", value)).startswith("tidegate-allowed is no set of places: ")


@pytest.mark.parametrize(
    "value", ["", ",", "a,", "a b", "a,,b", "-a", "a\n", "é", "a" * 129, ",".join(["g"] * 17)]
)
def test_hops_are_a_few_names(value):
    assert refusal(("tidegate-hops", value)).startswith("tidegate-hops must be 1 to 16 names of gateways")


def test_sixteen_hops_are_not_too_many():
    assert len(parse_options([("tidegate-hops", ",".join(["g" * 128] * 16))]).hops) == 16


@pytest.mark.parametrize("key", ["tidegate-allowed", "tidegate-hops"])
def test_a_peers_option_is_given_once(key):
    assert refusal((key, "tier=site"), (key, "tier=site")) == f"{key} is given more than once: give it once"


@pytest.mark.parametrize("option", ["tidegate-deadline-ms", "tidegate-max-cost"])
@pytest.mark.parametrize(
    "value",
    ["", "0", "0.0", "-1", "+1", "1e3", "inf", "nan", " 5", "5 ", "1_0", "١٢", "5ms", ".5", "5.", "9" * 13],
)
def test_numbers_are_strict(option, value):
    assert option in refusal((option, value))


def test_numbers_are_bounded():
    assert parse_options([("tidegate-deadline-ms", "86400000")]).deadline_ms == 86_400_000
    assert "86400000" in refusal(("tidegate-deadline-ms", "86400000.5"))


@pytest.mark.parametrize("value", ["True", "1", "yes", "", "true "])
def test_idempotent_is_true_or_false(value):
    assert "true or false" in refusal(("tidegate-idempotent", value))


@pytest.mark.parametrize("option", ["privacy", "policy", "site", "device"])
@pytest.mark.parametrize("value", ["", " ", "a b", "a\n", "é", "a" * 129])
def test_names_are_bounded_printable_ascii(option, value):
    assert f"tidegate-{option} must be a name" in refusal((f"tidegate-{option}", value))


def test_a_name_may_have_128_characters():
    assert parse_options([("tidegate-site", "a" * 128)]).site == "a" * 128


def test_messages_never_carry_control_characters():
    message = refusal(("tidegate-\x1b[31m\n", "x"), ("tidegate-max-cost", "x"))
    assert message.isprintable()
    assert refusal(("tidegate-max-cost", "\x1b\n" * 900)).isprintable()


@pytest.mark.parametrize(
    "parent",
    [
        "",
        PARENT.upper(),
        PARENT + "-00",
        PARENT + " ",
        "ff" + PARENT[2:],
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        PARENT[:-1],
    ],
)
def test_an_invalid_traceparent_is_dropped_with_its_tracestate(parent):
    assert parse_options([("traceparent", parent), ("tracestate", "a=1")]) == Options()


def test_two_traceparents_are_none():
    assert parse_options([("traceparent", PARENT)] * 2) == Options()


def test_a_later_traceparent_version_may_be_longer():
    later = "01" + PARENT[2:] + "-what-comes"
    assert parse_options([("traceparent", later)]).traceparent == later


@pytest.mark.parametrize("state", ["", ",", "A=1", "a", "a=1,a=2", "a=1,é=2", "a=b=c", "a=1," * 33, "a=é"])
def test_an_invalid_tracestate_is_dropped_alone(state):
    options = parse_options([("traceparent", PARENT), ("tracestate", state)])
    assert options == Options(traceparent=PARENT)


def test_tracestate_headers_are_joined_in_order():
    options = parse_options([("tracestate", "z=1"), ("traceparent", PARENT), ("tracestate", "t@v=2,b= x")])
    assert options.tracestate == "z=1,t@v=2,b= x"
