"""What statistics count: requests, once each, under the version that answered."""

from __future__ import annotations

from gateway.pipeline.served import MOST_VERSIONS, Served, counters, summed
from oip.counters import Counters, Duration


def test_a_model_that_served_nothing_has_an_entry_of_zeros():
    assert counters({}, ()) == {"": Counters()}
    assert counters({}, ("2", "10")) == {"2": Counters(), "10": Counters()}
    assert counters({}, ("2",), "7") == {"7": Counters()}


def test_requests_count_under_the_version_that_answered():
    served = Served()
    served.answered("m", "1", 0.5, 4, 1000.0, 0.125, 0.25)
    served.answered("m", "1", 0.25, 1, 1000.5)
    served.answered("m", "2", 1.0, 1, 1001.0)
    served.answered("other", "1", 1.0, 1, 1001.0)
    served.failed("m", "1", 2.0)
    first = Counters(
        inferences=5,
        executions=2,
        last_inference_ms=1_000_500,
        success=Duration(2, 750_000_000),
        fail=Duration(1, 2_000_000_000),
        queue=Duration(2, 125_000_000),
        compute=Duration(2, 250_000_000),
    )
    found = counters(served.counts["m"], ("1",))
    assert list(found) == ["1", "2"]
    assert found["1"] == first
    assert counters(served.counts["m"], ("1",), "1") == {"1": first}
    assert found["2"].success == Duration(1, 1_000_000_000)


def test_what_names_no_version_counts_under_the_highest():
    served = Served()
    served.failed("m", "", 1.0)
    assert counters(served.counts["m"], ())[""].fail == Duration(1, 1_000_000_000)
    found = counters(served.counts["m"], ("9", "10"))
    assert list(found) == ["9", "10"]
    assert (found["9"].fail.times, found["10"].fail.times) == (0, 1)
    served.failed("m", "77", 1.0)
    assert list(counters(served.counts["m"], ("9", "10"))) == ["9", "10"]
    assert counters(served.counts["m"], ("9", "10"))["10"].fail.times == 2
    served.answered("m", "9", 1.0, 1, 0.0)
    served.failed("m", "9", 1.0)
    assert counters(served.counts["m"], ("9", "10"), "9")["9"].fail.times == 1
    assert counters(served.counts["m"], ("9", "10"), "10")["10"].fail.times == 2


def test_versions_without_end_take_no_memory_without_end():
    served = Served()
    for number in range(MOST_VERSIONS + 50):
        served.answered("m", f"{number}", 1.0, 1, 0.0)
    found = counters(served.counts["m"], ())
    assert len(found) == MOST_VERSIONS
    assert sum(each.inferences for each in found.values()) == MOST_VERSIONS + 50


def test_replicas_add_up():
    first, second = Served(), Served()
    first.answered("m", "1", 0.5, 4, 1000.0, 0.125, 0.25)
    second.answered("m", "1", 0.25, 1, 999.0)
    second.answered("m", "2", 1.0, 1, 1001.0)
    second.failed("n", "", 2.0)
    both = summed([first.counts, second.counts, {}])
    found = counters(both["m"], ())
    assert (found["1"].inferences, found["1"].last_inference_ms) == (5, 1_000_000)
    assert (found["1"].success, found["2"].success) == (Duration(2, 750_000_000), Duration(1, 1_000_000_000))
    assert counters(both["n"], ())[""].fail == Duration(1, 2_000_000_000)
    assert counters(first.counts["m"], ())["1"].inferences == 4
