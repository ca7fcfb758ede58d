import pytest

from gateway.telemetry.context import (
    TraceParent,
    format_traceparent,
    parse_traceparent,
    usable_tracestate,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


@pytest.mark.parametrize(("flags", "sampled"), [("01", True), ("00", False), ("03", True), ("02", False)])
def test_reads_ids_and_the_sampled_bit_alone(flags: str, sampled: bool) -> None:
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-{flags}") == TraceParent(
        int(TRACE, 16), int(SPAN, 16), sampled
    )


def test_a_later_version_is_read_by_its_first_four_fields() -> None:
    parent = TraceParent(int(TRACE, 16), int(SPAN, 16), True)
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-01") == parent
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-01-what-the-future-brings") == parent


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "garbage",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01 ",
        f"00-{TRACE}-{SPAN}-01\n",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"cc-{TRACE}-{SPAN}-01-" + "x" * 600,
    ],
)
def test_what_is_not_a_context_counts_as_none(value: str | None) -> None:
    assert parse_traceparent(value) is None


def test_written_ids_keep_their_leading_zeros() -> None:
    assert format_traceparent(1, 2, True) == f"00-{'1'.zfill(32)}-{'2'.zfill(16)}-01"
    assert format_traceparent(1, 2, False).endswith("-00")


def test_tracestate_goes_on_only_within_bounds() -> None:
    assert usable_tracestate("congo=t61rcWkgMzE,rojo=00f067") == "congo=t61rcWkgMzE,rojo=00f067"
    assert usable_tracestate("a" * 512) == "a" * 512
    for bad in (None, "", "a" * 513, "a=b\r\nx: y", "a=é"):
        assert usable_tracestate(bad) is None
