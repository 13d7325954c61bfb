"""Metrics in the format of Prometheus, whose values are read during a scrape."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Generic, TypeAlias, TypeVar

import msgspec
from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from natsctl.telemetry.histogram import Distribution

__all__ = ["Family", "Labels", "MetricTable", "exposition", "rendered"]

T = TypeVar("T")

Labels: TypeAlias = tuple[str, ...]
"""The names or the values of labels, in the same order."""


Reading: TypeAlias = tuple[str, Callable[[T], float | None]]
"""The help of a metric, and a function that returns its value, or None if there is none."""

HistogramReading: TypeAlias = tuple[str, Callable[[T], Distribution | None]]
"""The help of a histogram, and a function that returns its content, or None if there is none."""


class MetricTable(msgspec.Struct, Generic[T], frozen=True):
    """The metrics of one type of measured objects, by name.

    Attributes:
        labels: the names of the labels that distinguish the objects.
        counters: numbers that only grow while the process runs; their names end in `_total`.
        gauges: numbers that grow and shrink.
        histograms: distributions of values; their names end in the unit of the values.
    """

    labels: Labels
    counters: Mapping[str, Reading[T]] = {}
    gauges: Mapping[str, Reading[T]] = {}
    histograms: Mapping[str, HistogramReading[T]] = {}

    def families(self, objects: Mapping[Labels, T]) -> list[Family]:
        """Return each metric with the current values of the objects, by their label values.

        A metric without values is included with its help.
        """
        return [*self._numbers(objects), *self._distributions(objects)]

    def _numbers(self, objects: Mapping[Labels, T]) -> Iterator[Family]:
        types = ((CounterMetricFamily, self.counters), (GaugeMetricFamily, self.gauges))
        for family_type, metrics in types:
            for name, (documentation, read) in metrics.items():
                family = family_type(name, documentation, labels=self.labels)
                for values, measured in objects.items():
                    number = read(measured)
                    if number is not None:
                        family.add_metric(values, number)
                yield family

    def _distributions(self, objects: Mapping[Labels, T]) -> Iterator[Family]:
        for name, (documentation, read) in self.histograms.items():
            family = HistogramMetricFamily(name, documentation, labels=self.labels)
            for values, measured in objects.items():
                distribution = read(measured)
                if distribution is not None:
                    family.add_metric(values, _buckets(distribution), distribution.sum)
            yield family


def exposition(families: Iterable[Family], accept: str = "") -> tuple[bytes, str]:
    """Return the page for Prometheus and its content type, which depends on *accept*.

    The page includes prometheus-client's own registry: the metrics of the process and of Python,
    and metrics that handlers register there.
    """
    return rendered([*families, *REGISTRY.collect()], accept)


def rendered(families: Iterable[Family], accept: str = "") -> tuple[bytes, str]:
    """Return a page of these metrics only, and its content type, which depends on *accept*."""
    encode, content_type = choose_encoder(accept)
    return encode(_Page(families)), content_type


class _Page(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def _buckets(distribution: Distribution) -> list[tuple[str, float]]:
    """Return the cumulative number of values up to each bound."""
    bounds = [*map(floatToGoString, distribution.bounds), "+Inf"]
    return list(zip(bounds, accumulate(distribution.counts), strict=True))
