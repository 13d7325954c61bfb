"""A metric table reads numbers at each scrape and writes them in the Prometheus format."""

from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY
from prometheus_client import Counter as OwnCounter
from prometheus_client.parser import text_string_to_metric_families

from natsctl.telemetry.histogram import Histogram as Values
from natsctl.telemetry.metrics import MetricTable, exposition

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


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


def test_each_number_has_its_name_and_labels() -> None:
    pumps = {("a", "hill"): Pump(litres=3, pressure=1.5), ("b", "hill"): Pump(litres=4)}
    page, _ = exposition(PUMPS.families(pumps))  # type: ignore[arg-type]
    values = samples(page)
    hill_a, hill_b = (("pump", "a"), ("site", "hill")), (("pump", "b"), ("site", "hill"))
    assert values["pump_litres_total", hill_a] == 3
    assert values["pump_litres_total", hill_b] == 4
    assert values["pump_pressure", hill_a] == 1.5
    assert b"# HELP pump_litres_total Pumped litres.\n# TYPE pump_litres_total counter" in page


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


def test_a_number_is_read_at_every_scrape() -> None:
    pump = Pump(litres=1)
    labels = (("pump", "a"), ("site", "hill"))
    assert (
        samples(exposition(PUMPS.families({("a", "hill"): pump}))[0])["pump_litres_total", labels]
        == 1
    )
    pump.litres = 2
    assert (
        samples(exposition(PUMPS.families({("a", "hill"): pump}))[0])["pump_litres_total", labels]
        == 2
    )


def test_the_accept_header_chooses_the_format() -> None:
    families = PUMPS.families({("a", "hill"): Pump(litres=1)})
    text, text_type = exposition(families)
    assert text_type.startswith("text/plain; version=0.0.4")
    assert not text.endswith(b"# EOF\n")
    open_metrics, open_metrics_type = exposition(families, OPEN_METRICS)
    assert open_metrics_type.startswith("application/openmetrics-text")
    assert open_metrics.endswith(b"# EOF\n")


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
