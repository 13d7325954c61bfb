"""Counters and histograms of processes are added up, gauges are labelled."""

import pytest

from natsctl.telemetry.metric_sums import MetricSums, ProcessPage
from natsctl.telemetry.metrics import rendered

COUNTER = """# HELP syncs_total Syncs.
# TYPE syncs_total counter
syncs_total{{controller="a"}} {}
"""
HISTOGRAM = """# HELP seconds Time.
# TYPE seconds histogram
seconds_bucket{le="1.0"} 1
seconds_bucket{le="+Inf"} 2
seconds_count 2
seconds_sum 3.5
"""
GAUGE = """# HELP depth Keys.
# TYPE depth gauge
depth 4
"""
OF_PROCESS = """# HELP process_cpu_seconds_total Processor time.
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 7
"""
STALLS = """# HELP natsctl_event_loop_blocked_total Stalls.
# TYPE natsctl_event_loop_blocked_total counter
natsctl_event_loop_blocked_total{controller="a"} 1
"""


def page(process: int, text: str | None, life: int = 0) -> ProcessPage:
    return ProcessPage(process, life, text)


def lines(sums: MetricSums, *pages: ProcessPage) -> list[str]:
    text = rendered(sums.families(pages, own="supervisor"))[0].decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_counters_are_added_up() -> None:
    pages = page(1, COUNTER.format(2)), page(2, COUNTER.format(3))
    assert 'syncs_total{controller="a"} 5.0' in lines(MetricSums(), *pages)


def test_histograms_are_added_up() -> None:
    values = lines(MetricSums(), page(1, HISTOGRAM), page(2, HISTOGRAM))
    assert {'seconds_bucket{le="1.0"} 2.0', "seconds_count 4.0", "seconds_sum 7.0"} <= set(values)


@pytest.mark.parametrize(
    ("text", "sample"),
    [
        (GAUGE, 'depth{process="2"} 4.0'),
        (OF_PROCESS, 'process_cpu_seconds_total{process="2"} 7.0'),
        (STALLS, 'natsctl_event_loop_blocked_total{controller="a",process="2"} 1.0'),
    ],
)
def test_gauges_and_the_metrics_of_a_process_are_labelled(text: str, sample: str) -> None:
    values = lines(MetricSums(), page(1, text), page(2, text))
    assert sample in values
    assert sample.replace('process="2"', 'process="1"') in values


def test_a_sum_keeps_the_numbers_of_a_process_that_was_restarted() -> None:
    sums = MetricSums()
    lines(sums, page(1, COUNTER.format(2)), page(2, COUNTER.format(30)))
    values = lines(sums, page(1, COUNTER.format(2)), page(2, COUNTER.format(1), life=1))
    assert 'syncs_total{controller="a"} 33.0' in values


def test_a_sum_keeps_the_numbers_of_a_process_that_does_not_answer() -> None:
    sums = MetricSums()
    lines(sums, page(1, COUNTER.format(2)), page(2, COUNTER.format(30)))
    values = lines(sums, page(1, COUNTER.format(3)), page(2, None))
    assert 'syncs_total{controller="a"} 33.0' in values


def test_the_supervisor_has_its_own_label() -> None:
    assert any('process="supervisor"' in line for line in lines(MetricSums()))
