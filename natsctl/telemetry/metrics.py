"""Metrics: names for numbers that are read when somebody asks, in Prometheus' words."""

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Generic, Protocol, TypeAlias, TypeVar

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

__all__ = [
    "CounterMetric",
    "Distributed",
    "Family",
    "GaugeMetric",
    "HistogramMetric",
    "Metric",
    "MetricTable",
    "exposition",
]

T = TypeVar("T")

Labels: TypeAlias = tuple[str, ...]


class Distributed(Protocol):
    """Values counted between bounds, as `natsctl.telemetry.histogram` reads them out."""

    @property
    def bounds(self) -> tuple[float, ...]:
        """The upper bounds, in ascending order."""
        ...

    @property
    def counts(self) -> tuple[int, ...]:
        """How many values each bound has, and last how many are above them all."""
        ...

    @property
    def sum(self) -> float:
        """All values together, in the unit of the bounds."""
        ...


class CounterMetric(msgspec.Struct, Generic[T], frozen=True):
    """A number that only grows while the process lives; its name ends in `_total`.

    Every metric's `read` takes the number from a thing that is measured; None where it has none.
    """

    name: str
    help: str
    read: Callable[[T], float | None]


class GaugeMetric(msgspec.Struct, Generic[T], frozen=True):
    """A number that comes and goes."""

    name: str
    help: str
    read: Callable[[T], float | None]


class HistogramMetric(msgspec.Struct, Generic[T], frozen=True):
    """How values are distributed; its name ends in their unit."""

    name: str
    help: str
    read: Callable[[T], Distributed | None]


Metric: TypeAlias = CounterMetric[T] | GaugeMetric[T] | HistogramMetric[T]


class MetricTable(msgspec.Struct, Generic[T], frozen=True):
    """The metrics of one sort of thing, whose labels tell one from another."""

    labels: Labels
    metrics: tuple[Metric[T], ...]

    def of(self, things: Mapping[Labels, T]) -> list[Family]:
        """Return what the metrics say now of the things, each under the values of its labels.

        A metric of which there is nothing to tell is there all the same, with its help.
        """
        return [_family(metric, self.labels, things) for metric in self.metrics]


def exposition(families: Iterable[Family], accept: str = "") -> tuple[bytes, str]:
    """Return the page that Prometheus reads, and its content type, which *accept* chooses.

    What prometheus-client's own registry has is on it too: the numbers of the process and of
    Python, and whatever handlers count there.
    """
    encode, content_type = choose_encoder(accept)
    return encode(_Page(families)), content_type


class _Page(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        yield from self._families
        yield from REGISTRY.collect()


def _family(metric: Metric[T], labels: Labels, things: Mapping[Labels, T]) -> Family:
    family: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
    match metric:
        case HistogramMetric():
            family = HistogramMetricFamily(metric.name, metric.help, labels=labels)
            for values, thing in things.items():
                found = metric.read(thing)
                if found is not None:
                    family.add_metric(values, _buckets(found), found.sum)
            return family
        case CounterMetric():
            family = CounterMetricFamily(metric.name, metric.help, labels=labels)
        case GaugeMetric():
            family = GaugeMetricFamily(metric.name, metric.help, labels=labels)
    for values, thing in things.items():
        number = metric.read(thing)
        if number is not None:
            family.add_metric(values, number)
    return family


def _buckets(found: Distributed) -> list[tuple[str, float]]:
    """Return how many values there were up to each bound, all below it too."""
    bounds = [*map(floatToGoString, found.bounds), "+Inf"]
    return list(zip(bounds, accumulate(found.counts), strict=True))
