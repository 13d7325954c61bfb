"""promtool accepts the Prometheus configuration, and each alert fires only for its condition."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.servers.docker import ROOT, tried

pytestmark = pytest.mark.promtool

FOLDER = ROOT / "docs" / "prometheus"
RULES = [
    rule
    for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
A_MINUTE = 'controller="shops", le="60.0"'
DAEMON = 'job="natsctl", instance="a"'


CASES: list[tuple[str, str, dict[str, str], bool]] = [
    ("NatsctlGone", "1m", {}, False),
    ("NatsctlGone", "5m", {}, True),
    ("NatsctlGone", "5m", {f"up{{{DAEMON}}}": "1x10"}, False),
    ("NatsctlGone", "8m", {f"up{{{DAEMON}}}": "1 1 0x10"}, True),
    ("NatsctlDisconnected", "5m", {f"natsctl_connection_up{{{DAEMON}}}": "0x10"}, True),
    ("NatsctlDisconnected", "5m", {f"natsctl_connection_up{{{DAEMON}}}": "1x10"}, False),
    (
        "NatsctlTwoLead",
        "5m",
        {
            f'leader_election_master_status{{{DAEMON}, name="shops"}}': "1x10",
            'leader_election_master_status{job="natsctl", instance="b", name="shops"}': "0x10",
        },
        False,
    ),
    (
        "NatsctlTwoLead",
        "5m",
        {
            f'leader_election_master_status{{{DAEMON}, name="shops"}}': "1x10",
            'leader_election_master_status{job="natsctl", instance="b", name="shops"}': "1x10",
        },
        True,
    ),
    (
        "NatsctlNobodyLeads",
        "5m",
        {f'leader_election_master_status{{{DAEMON}, name="shops"}}': "0x10"},
        True,
    ),
    *(
        (
            "NatsctlConvergenceBurns",
            "90m",
            {
                f"natsctl_convergence_seconds_bucket{{{DAEMON}, {A_MINUTE}}}": f"0+{fast}x90",
                f'natsctl_convergence_seconds_count{{{DAEMON}, controller="shops"}}': "0+60x90",
            },
            fires,
        )
        for fast, fires in ((45, True), (59, False))
    ),
    (
        "NatsctlKeysQuarantined",
        "1m",
        {f'natsctl_quarantined_keys{{{DAEMON}, controller="shops"}}': "1x10"},
        True,
    ),
    (
        "NatsctlChangeWaits",
        "11m",
        {f'natsctl_overdue_keys{{{DAEMON}, controller="shops"}}': "1x20"},
        True,
    ),
    (
        "NatsctlSyncsFail",
        "40m",
        {
            f'controller_runtime_reconcile_total{{{DAEMON}, controller="shops"}}': "0+60x60",
            f'controller_runtime_reconcile_errors_total{{{DAEMON}, controller="shops"}}': (
                "0+12x60"
            ),
        },
        True,
    ),
    (
        "NatsctlSyncsFail",
        "40m",
        {
            f'controller_runtime_reconcile_total{{{DAEMON}, controller="shops"}}': "0+60x60",
            f'controller_runtime_reconcile_errors_total{{{DAEMON}, controller="shops"}}': (
                "0+3x60"
            ),
        },
        False,
    ),
]


async def promtool(*words: str) -> str:
    """Run promtool, check that it succeeds, and return its output."""
    status, output = await tried("env", "GOGC=off", "promtool", *words)
    assert status == 0, output
    return output


def rule_test(alert: str, after: str, series: dict[str, str], *, fires: bool) -> dict[str, Any]:
    """Return a promtool rule test with these series, scraped each minute."""
    counted = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})'
    expected = {"expr": counted, "eval_time": after, "exp_samples": [{"value": 1}] * fires}
    scraped = [{"series": name, "values": values} for name, values in series.items()]
    return {
        "name": f"{alert} after {after}, {fires=}: {series}",
        "interval": "1m",
        "input_series": scraped,
        "promql_expr_test": [expected],
    }


async def test_promtool_accepts_the_configuration_and_the_rules() -> None:
    output = await promtool("check", "config", str(FOLDER / "prometheus.yml"))
    assert "is valid prometheus config file syntax" in output
    assert f"{len(RULES)} rules found" in output


async def test_an_alert_fires_only_if_its_condition_holds(tmp_path: Path) -> None:
    file = tmp_path / "play.yml"
    tests = [rule_test(alert, after, series, fires=fires) for alert, after, series, fires in CASES]
    rules = {"rule_files": [str(FOLDER / "rules.yml")], "evaluation_interval": "1m"}
    file.write_text(yaml.safe_dump({**rules, "tests": tests}))
    await promtool("test", "rules", str(file))
