"""Metrics in the format of Prometheus, whose values are read during a scrape."""

import re
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, TypeAlias

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

__all__ = ["Family", "Labels", "Page", "exposition"]

Labels: TypeAlias = tuple[str, ...]
"""The values of labels, in the order of their names."""

_FAMILIES = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
_METRIC = re.compile(r"^(\w+) (\w+)\{(.*)\}\s+(.*(?:\n +.*)*)", re.MULTILINE)


class Page:
    """The metrics of a table, to which values are added.

    A metric of the *table* is its type, its name with the names of its labels, and its meaning,
    such as `gauge queue_depth{controller} Keys that are due.` It's on the page without values, too.
    """

    def __init__(self, table: str) -> None:
        self._families: dict[str, Family] = {
            name: _FAMILIES[kind](
                name, " ".join(meaning.split()), labels=labels.split(",") * bool(labels)
            )
            for kind, name, labels, meaning in _METRIC.findall(table)
        }

    @property
    def families(self) -> list[Family]:
        """All metrics of the table with the values that were added."""
        return list(self._families.values())

    def add(self, name: str, value: float | Distribution | None, *labels: str) -> None:
        """Add a value; None, which isn't known, is left out."""
        family: Any = self._families[name]
        if isinstance(value, Distribution):
            bounds = [*map(floatToGoString, value.bounds), "+Inf"]
            counts = list(zip(bounds, accumulate(value.counts), strict=True))
            family.add_metric(labels, counts, value.sum)
        elif value is not None:
            family.add_metric(labels, value)


def exposition(families: Iterable[Family], accept: str = "") -> tuple[bytes, str]:
    """Return the page for Prometheus and its content type, which depends on *accept*.

    The page includes prometheus-client's own registry: the metrics of the process and of Python,
    and metrics that handlers register there.
    """
    encode, content_type = choose_encoder(accept)
    return encode(_Collected([*families, *REGISTRY.collect()])), content_type


class _Collected(list[Family], Collector):
    def collect(self) -> Iterable[Family]:
        return self
