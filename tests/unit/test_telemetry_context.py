import pytest

from gateway.telemetry.context import (
    MAX_TRACESTATE,
    TraceParent,
    format_traceparent,
    parse_traceparent,
    trace_context,
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


def state(*values: str) -> str | None:
    """What goes on of the caller's tracestate headers."""
    headers = [("traceparent", f"00-{TRACE}-{SPAN}-01"), *(("tracestate", value) for value in values)]
    return trace_context(headers)[1]


@pytest.mark.parametrize("count", [1, 5, 32])
def test_a_tracestate_goes_on_also_beyond_512_characters(count: int) -> None:
    text = ",".join(f"k{i}=" + "v" * 120 for i in range(count))
    assert (len(text) > 512) == (count > 1)
    assert len(text) <= MAX_TRACESTATE
    assert state(text) == text


def test_of_a_longer_tracestate_long_members_go_first_and_then_the_last() -> None:
    short = [f"s{i}=" + "v" * 120 for i in range(20)]
    long = [f"l{i}=" + "v" * 250 for i in range(12)]
    mixed = state(",".join(long[:6]), ",".join(short), ",".join(long[6:]))
    assert mixed is not None
    assert len(mixed) <= MAX_TRACESTATE
    assert mixed.split(",") == [*long[:6], *short]
    many = [f"s{i}=" + "v" * 124 for i in range(10, 42)]
    assert state(",".join(many)) == ",".join(many[:31])


@pytest.mark.parametrize("value", ["", ",", "A=1", "a", "a=1,a=2", "a=b\r\nx: y", "a=é", "a=" + "v" * 257])
def test_an_invalid_tracestate_does_not_go_on(value: str) -> None:
    assert state(value) is None
