"""A metric table reads numbers at each scrape and writes them in the Prometheus format."""

from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY
from prometheus_client import Counter as OwnCounter
from prometheus_client.parser import text_string_to_metric_families

from natsctl.telemetry.histogram import Histogram as Values
from natsctl.telemetry.metrics import MetricTable, exposition


class Pump:
    def __init__(self, *, litres: float = 0.0, pressure: float | None = None) -> None:
        self.litres = litres
        self.pressure = pressure
        self.strokes_s = Values((0.1, 1.0))


PUMPS = MetricTable[Pump](
    ("pump", "site"),
    counters={"pump_litres_total": ("Pumped litres.", lambda pump: pump.litres)},
    gauges={"pump_pressure": ("The highest pressure.", lambda pump: pump.pressure)},
    histograms={"pump_stroke_seconds": ("Strokes.", lambda pump: pump.strokes_s.read())},
)


def samples(page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_a_missing_number_is_omitted() -> None:
    page, _ = exposition(PUMPS.families({("b", "hill"): Pump()}))
    assert b"# TYPE pump_pressure gauge" in page
    assert b"pump_pressure{" not in page


def test_an_empty_table_has_names_and_no_samples() -> None:
    families = PUMPS.families({})
    assert [family.name for family in families] == [
        "pump_litres",
        "pump_pressure",
        "pump_stroke_seconds",
    ]
    assert not any(family.samples for family in families)


def test_a_histogram_counts_a_value_in_every_bucket_above_the_value() -> None:
    pump = Pump()
    for stroke_s in (0.05, 0.1, 0.5, 20):
        pump.strokes_s.observe(stroke_s)
    values = samples(exposition(PUMPS.families({("a", "hill"): pump}))[0])
    counts = {
        dict(labels)["le"]: value
        for (name, labels), value in values.items()
        if name == "pump_stroke_seconds_bucket"
    }
    assert counts == {"0.1": 2, "1.0": 3, "+Inf": 4}
    hill_a = (("pump", "a"), ("site", "hill"))
    assert values["pump_stroke_seconds_count", hill_a] == 4
    assert values["pump_stroke_seconds_sum", hill_a] == pytest.approx(20.65)


@pytest.fixture
def user_counter() -> Iterator[OwnCounter]:
    counter = OwnCounter("user_syncs", "Syncs that a user counts.")
    yield counter
    REGISTRY.unregister(counter)


def test_metrics_of_the_default_prometheus_registry_are_included(
    user_counter: OwnCounter,
) -> None:
    user_counter.inc(5)
    values = samples(exposition(())[0])
    assert values["user_syncs_total", ()] == 5
    assert values["process_resident_memory_bytes", ()] > 0
