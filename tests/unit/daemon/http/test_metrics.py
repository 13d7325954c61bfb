"""The dashboard, the alert rules and the documentation name exactly the exposed metrics."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY

from natsctl.daemon.metrics import Family, families

DOCS = Path(__file__).parents[4] / "docs"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}

OURS = families(stalls={})
FROM_PROMETHEUS = {"up"}
TARGET_LABELS = {"job", "instance", "le"}

_WORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "bool", "offset"}
_QUOTED = re.compile(r'"[^"]*"')
_MATCHERS = re.compile(r"\{([^}]*)\}")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_RANGE = re.compile(r"\[[^\]]*\]")
_NAME = re.compile(r"[A-Za-z_:][\w:]*(?!\w)(?!\s*\()")


def sample_names(families: list[Family]) -> set[str]:
    return {family.name + end for family in families for end in SUFFIXES.get(family.type, ())}


def names_in(expression: str) -> set[str]:
    """Return the metrics that a PromQL expression reads."""
    for noise in (_QUOTED, _MATCHERS, _GROUPING, _RANGE):
        expression = noise.sub(" ", expression)
    return set(_NAME.findall(expression)) - _WORDS


def labels_in(expression: str) -> set[str]:
    """Return the labels that a PromQL expression selects and groups by."""
    bare = _QUOTED.sub('""', expression)
    selected = {
        label
        for matcher in _MATCHERS.findall(bare)
        for label in re.findall(r"\w+(?=\s*[=!])", matcher)
    }
    grouped = {label.strip() for group in _GROUPING.findall(bare) for label in group.split(",")}
    return selected | grouped


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((DOCS / "grafana/natsctl.json").read_text())
    return document


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DOCS / "prometheus/rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def drawn_expressions() -> list[str]:
    """Return every expression of the dashboard."""
    panels = dashboard()["panels"]
    panel_expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    variables = [variable["query"] for variable in dashboard()["templating"]["list"]]
    queries = [variable["query"] for variable in variables if isinstance(variable, dict)]
    return panel_expressions + [
        re.sub(r"^label_values\((.*), \w+\)$", r"\1", query) for query in queries
    ]


def rule_expressions() -> list[str]:
    return [rule["expr"] for rule in rules()]


EXPRESSIONS = [*drawn_expressions(), *rule_expressions()]


def known_metrics() -> set[str]:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    process_metrics = sample_names(list(REGISTRY.collect()))
    return sample_names(OURS) | process_metrics | recorded | FROM_PROMETHEUS


def test_metrics_and_labels_are_parsed_from_expressions() -> None:
    aggregation = 'sum by (le, a) (rate(b_bucket{c=~"d=", e!="f"}[5m])) > 0.1 * up'
    assert names_in(aggregation) == {"b_bucket", "up"}
    assert labels_in(aggregation) == {"le", "a", "c", "e"}
    comparison = "min_over_time(x:y:z[15m]) > 1 and deriv(w[15m]) > bool 0"
    assert names_in(comparison) == {"x:y:z", "w"}
    assert labels_in(comparison) == set()


OUR_LABELS = {"controller", "result", "name", "slot", "kind"}
OUR_LABELS |= {"code", "method", "system", "outcome", "host"}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_reads_known_metrics_and_selects_by_known_labels(expression: str) -> None:
    assert names_in(expression)
    assert names_in(expression) - known_metrics() == set()
    assert labels_in(expression) - OUR_LABELS - TARGET_LABELS == set()


def test_every_natsctl_metric_is_on_the_dashboard_or_in_a_rule() -> None:
    used = set[str]().union(*map(names_in, EXPRESSIONS))
    unused = {
        family.name
        for family in OURS
        if not any(family.name + end in used for end in SUFFIXES[family.type])
    }
    assert {name for name in unused if name.startswith("natsctl_")} == {
        "natsctl_cache_revision",  # read with natsctl_cache_lag_revisions
        "natsctl_lease_epoch",
        "natsctl_lease_known",  # also a readiness check
        "natsctl_planned_changes",  # of a dry run
    }


def test_every_metric_is_documented_with_its_help_and_well_named() -> None:
    page = (DOCS / "production.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (.+) \|$", page, re.MULTILINE))
    ends = {"counter": "_total", "gauge": "", "histogram": ""}
    assert rows == {family.name + ends[family.type]: family.documentation for family in OURS}
    for family in OURS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name)
        assert family.documentation.endswith(".")
        assert family.type != "histogram" or family.name.endswith("_seconds")


def test_dashboard_panels_do_not_overlap() -> None:
    cells = [
        (x, y)
        for panel in dashboard()["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))


def test_every_alert_has_a_severity_a_description_and_a_section_of_the_runbook() -> None:
    alerts = {rule["alert"]: rule for rule in rules() if "alert" in rule}
    for name, alert in alerts.items():
        assert alert["labels"]["severity"] in {"critical", "warning"}
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
        url = f"https://natsctl.github.io/natsctl/alerts/#{name.lower()}"
        assert alert["annotations"]["runbook_url"] == url
    sections = re.findall(r"^### (\w+)$", (DOCS / "alerts.md").read_text(), re.MULTILINE)
    assert alerts.keys() == set(sections)


def test_the_prometheus_configuration_loads_the_rules_and_has_their_job() -> None:
    config = yaml.safe_load((DOCS / "prometheus/prometheus.yml").read_text())
    assert config["rule_files"] == ["rules.yml"]
    (job,) = [scrape["job_name"] for scrape in config["scrape_configs"]]
    assert all(f'job="{job}"' in rule["expr"] for rule in rules() if ":" not in rule["expr"])
