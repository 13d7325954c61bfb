"""Metrics in the format of Prometheus, whose values are read during a scrape."""

from collections.abc import Callable, Iterable, Mapping
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

__all__ = [
    "CounterMetric",
    "Family",
    "GaugeMetric",
    "HistogramMetric",
    "Labels",
    "Metric",
    "MetricTable",
    "exposition",
]

T = TypeVar("T")

Labels: TypeAlias = tuple[str, ...]
"""The names or the values of labels, in the same order."""


class CounterMetric(msgspec.Struct, Generic[T], frozen=True):
    """A number that only grows while the process runs; its name ends in `_total`.

    `read` returns the number of a measured object, or None if the object has no such number.
    """

    name: str
    help: str
    read: Callable[[T], float | None]


class GaugeMetric(msgspec.Struct, Generic[T], frozen=True):
    """A number that grows and shrinks; see `CounterMetric` for `read`."""

    name: str
    help: str
    read: Callable[[T], float | None]


class HistogramMetric(msgspec.Struct, Generic[T], frozen=True):
    """A distribution of values; its name ends in their unit."""

    name: str
    help: str
    read: Callable[[T], Distribution | None]


Metric: TypeAlias = CounterMetric[T] | GaugeMetric[T] | HistogramMetric[T]


class MetricTable(msgspec.Struct, Generic[T], frozen=True):
    """The metrics of one type of measured objects, and the names of their labels."""

    labels: Labels
    metrics: tuple[Metric[T], ...]

    def families(self, objects: Mapping[Labels, T]) -> list[Family]:
        """Return each metric with the current numbers of the objects, by their label values.

        A metric without numbers is included with its help.
        """
        return [_family(metric, self.labels, objects) for metric in self.metrics]


def exposition(families: Iterable[Family], accept: str = "") -> tuple[bytes, str]:
    """Return the page for Prometheus and its content type, which depends on *accept*.

    The page includes prometheus-client's own registry: the metrics of the process and of Python,
    and metrics that handlers register there.
    """
    encode, content_type = choose_encoder(accept)
    return encode(_Page(families)), content_type


class _Page(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        yield from self._families
        yield from REGISTRY.collect()


def _family(metric: Metric[T], labels: Labels, objects: Mapping[Labels, T]) -> Family:
    family: CounterMetricFamily | GaugeMetricFamily
    match metric:
        case HistogramMetric():
            return _histogram_family(metric, labels, objects)
        case CounterMetric():
            family = CounterMetricFamily(metric.name, metric.help, labels=labels)
        case GaugeMetric():
            family = GaugeMetricFamily(metric.name, metric.help, labels=labels)
    for values, measured in objects.items():
        number = metric.read(measured)
        if number is not None:
            family.add_metric(values, number)
    return family


def _histogram_family(
    metric: HistogramMetric[T], labels: Labels, objects: Mapping[Labels, T]
) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=labels)
    for values, measured in objects.items():
        distribution = metric.read(measured)
        if distribution is not None:
            family.add_metric(values, _buckets(distribution), distribution.sum)
    return family


def _buckets(distribution: Distribution) -> list[tuple[str, float]]:
    """Return the cumulative number of values up to each bound."""
    bounds = [*map(floatToGoString, distribution.bounds), "+Inf"]
    return list(zip(bounds, accumulate(distribution.counts), strict=True))
