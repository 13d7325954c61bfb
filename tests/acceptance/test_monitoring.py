"""The `monitoring` profile of docker-compose.yml runs Prometheus and Grafana beside natsctl."""

import json

import pytest

from tests.support.eventually import eventually
from tests.support.servers.docker import Stack, fetched

pytestmark = [pytest.mark.docker, pytest.mark.long, pytest.mark.timeout(1800)]


async def test_prometheus_scrapes_natsctl_and_loads_the_rules(stack: Stack) -> None:
    await stack.compose("--profile", "monitoring", "up", "--no-build", "--wait", "prometheus")
    await eventually(lambda: _scraped(stack, up=1))
    groups = json.loads(await fetched(f"{stack.prometheus}/api/v1/rules"))["data"]["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
    await stack.compose("stop", "natsctl")
    await eventually(lambda: _fires(stack, "NatsctlGone"), within_s=300, every_s=1)


async def test_grafana_shows_the_dashboard_without_login(stack: Stack) -> None:
    await stack.compose("--profile", "monitoring", "up", "--no-build", "--wait", "grafana")
    home = json.loads(await fetched(f"{stack.grafana}/api/dashboards/home"))
    assert home["dashboard"]["title"] == "natsctl"
    dashboard = json.loads(await fetched(f"{stack.grafana}/api/dashboards/uid/natsctl"))
    assert (dashboard["meta"]["provisioned"], dashboard["meta"]["canSave"]) == (True, False)
    await eventually(lambda: _scraped(stack, up=1))
    proxied = f"{stack.grafana}/api/datasources/proxy/uid/prometheus/api/v1/query"
    response = json.loads(await fetched(f"{proxied}?query=natsctl_build_info"))
    assert len(response["data"]["result"]) == 1


async def _scraped(stack: Stack, *, up: int) -> bool:
    """Return whether Prometheus has exactly this many healthy scrape targets."""
    targets = json.loads(await fetched(f"{stack.prometheus}/api/v1/targets"))["data"][
        "activeTargets"
    ]
    health = [(target["labels"]["service"], target["health"]) for target in targets]
    assert health == [("natsctl", "up")] * up, targets
    return True


async def _fires(stack: Stack, name: str) -> bool:
    alerts = json.loads(await fetched(f"{stack.prometheus}/api/v1/alerts"))["data"]["alerts"]
    return (name, "firing") in {(alert["labels"]["alertname"], alert["state"]) for alert in alerts}
