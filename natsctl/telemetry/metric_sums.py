"""Adds up the metrics of several processes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

LABEL = "process"

_ADDED = ("counter", "histogram")  # the types that are added up
_OF_PROCESS = ("process_", "python_", "natsctl_event_loop_")  # metrics of one process each

_Sample = tuple[str, frozenset[tuple[str, str]]]
"""The name of a sample, and its labels."""

_Labels = Mapping[str, str]


class ProcessPage(msgspec.Struct, frozen=True):
    """The metrics of one process.

    Attributes:
        process: its number, for the label.
        life: distinguishes it from earlier processes with the same number.
        text: its page in the text format of Prometheus; None if it did not answer.
    """

    process: int
    life: int
    text: str | None


class MetricSums:
    """Adds up counters and histograms, and labels each gauge with the number of its process.

    *Guarantees.* A sum never shrinks, except by a restart of this process: the last known numbers
    of a process that has ended remain in the sum. The metrics of a process itself, such as its
    memory and the stalls of its event loop, are labelled and not added up.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], dict[_Sample, float]] = {}  # by process and life
        self._ended: dict[_Sample, float] = {}
        self._labels: dict[_Sample, _Labels] = {}  # in the order of the page

    def families(self, pages: Sequence[ProcessPage], *, own: str) -> list[Family]:
        """Return the metrics of the living processes, and those of this one with the label *own*.

        Each living process has a page; the others have ended.
        """
        families: dict[str, Family] = {}
        added: dict[str, dict[_Sample, None]] = {}
        for page in pages:
            for family in _parsed(page.text):
                combined = families.setdefault(family.name, _empty(family))
                if _is_added(family):
                    added.setdefault(family.name, {}).update(
                        dict.fromkeys(self._note(page, family))
                    )
                else:
                    _add_labelled(combined, family, str(page.process))
        for family in REGISTRY.collect():
            _add_labelled(families.setdefault(family.name, _empty(family)), family, own)
        self._retire({(page.process, page.life) for page in pages})
        for name, samples in added.items():
            for sample in samples:
                families[name].add_sample(sample[0], dict(self._labels[sample]), self._sum(sample))
        return list(families.values())

    def _note(self, page: ProcessPage, family: Family) -> Iterator[_Sample]:
        """Remember the numbers of a process."""
        known = self._known.setdefault((page.process, page.life), {})
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            self._labels.setdefault(key, sample.labels)
            known[key] = sample.value
            yield key

    def _retire(self, living: Iterable[tuple[int, int]]) -> None:
        """Keep the last numbers of the processes that have ended."""
        for life in self._known.keys() - set(living):
            for sample, value in self._known.pop(life).items():
                self._ended[sample] = self._ended.get(sample, 0.0) + value

    def _sum(self, sample: _Sample) -> float:
        living = sum(known.get(sample, 0.0) for known in self._known.values())
        return living + self._ended.get(sample, 0.0)


def _parsed(text: str | None) -> Iterable[Family]:
    return () if text is None else text_string_to_metric_families(text)


def _empty(family: Family) -> Family:
    return Family(family.name, family.documentation, family.type)


def _is_added(family: Family) -> bool:
    return family.type in _ADDED and not family.name.startswith(_OF_PROCESS)


def _add_labelled(combined: Family, family: Family, process: str) -> None:
    for sample in family.samples:
        combined.add_sample(sample.name, {**sample.labels, LABEL: process}, sample.value)
