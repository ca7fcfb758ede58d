"""One scrape of several processes: their families added up, and the text of that.

Counters and histograms of a process that has ended stay in the sums, as they were when it last told them: what
a scraper has seen of them never goes back. Gauges are told by those that live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.exposition import generate_latest as plain_text
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text
from prometheus_client.samples import Sample

from gateway.telemetry import names

MOST_ENDED = 32
"""Processes that have ended and are still told apart; one of them that turns out to live counts once."""
GAUGE = "gauge"

Families = Sequence[Metric]


class Scrapes:
    """What processes told, by a name that each has for itself alone."""

    def __init__(self) -> None:
        self._ended: dict[str, Families] = {}
        self._before: Families = ()
        """Of those that ended before these."""
        self._alive: dict[str, Families] = {}

    def take(self, told: Mapping[str, Families]) -> Families:
        """The sums, with what every process that lives tells now."""
        for name in [name for name in self._alive if name not in told]:
            self._ended[name] = _lasting(self._alive.pop(name))
        for name, families in told.items():
            self._ended.pop(name, None)
            self._alive[name] = families
        while len(self._ended) > MOST_ENDED:
            self._before = merged([self._before, self._ended.pop(next(iter(self._ended)))])
        return merged([*self._alive.values(), *self._ended.values(), self._before])


def merged(parts: Iterable[Families]) -> Families:
    """The families of all parts, their samples added up or, of a gauge that does not add up, the largest or
    the smallest. Of exemplars the newest stays."""
    found: dict[str, Metric] = {}
    samples: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], Sample]] = {}
    for part in parts:
        for family in part:
            if family.name not in found:
                found[family.name] = Metric(family.name, family.documentation, family.type, family.unit)
                samples[family.name] = {}
            known, both = samples[family.name], _both(family)
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                before = known.get(key)
                known[key] = sample if before is None else _one(before, sample, both)
    for name, family in found.items():
        family.samples = list(samples[name].values())
    return list(found.values())


def as_text(families: Families, accept: str = "") -> tuple[bytes, str]:
    """The scrape's body and its content type: OpenMetrics (with exemplars) where the Accept header names it,
    else Prometheus text."""
    encode: Callable[[_Told], bytes]
    if any(part.split(";")[0].strip() == "application/openmetrics-text" for part in accept.split(",")):
        encode, content_type = openmetrics_text, OPENMETRICS
    else:
        encode, content_type = plain_text, CONTENT_TYPE_PLAIN_0_0_4
    return encode(_Told(families)), content_type


class _Told:
    """Families as prometheus_client takes them."""

    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Families:
        return self._families


def _both(family: Metric) -> Callable[[float, float], float]:
    """How two samples of a family become one."""
    if family.type == GAUGE and family.name not in names.ADDED:
        return min if family.name in names.SMALLEST else max
    return float.__add__


def _one(first: Sample, second: Sample, both: Callable[[float, float], float]) -> Sample:
    exemplars = [sample.exemplar for sample in (first, second) if sample.exemplar is not None]
    newest = max(exemplars, key=lambda e: e.timestamp or 0.0, default=None)
    return first._replace(value=both(float(first.value), float(second.value)), exemplar=newest)


def _lasting(families: Families) -> Families:
    return [family for family in families if family.type != GAUGE]
