"""Prometheus and Grafana beside natsctl: the profile `monitoring` of docker-compose.yml."""

import json

import pytest

from tests.support.eventually import eventually
from tests.support.servers.docker import Stack, asked

pytestmark = [pytest.mark.docker, pytest.mark.long, pytest.mark.timeout(1800)]


async def test_prometheus_asks_natsctl_and_knows_the_rules(stack: Stack) -> None:
    await stack.compose("--profile", "monitoring", "up", "--no-build", "--wait", "prometheus")
    await eventually(lambda: _scraped(stack, up=1))
    told = json.loads(await asked(f"{stack.prometheus}/api/v1/rules"))["data"]["groups"]
    assert {rule["health"] for group in told for rule in group["rules"]} == {"ok"}
    await stack.compose("stop", "natsctl")
    await eventually(lambda: _fires(stack, "NatsctlGone"), within_s=300, every_s=1)


async def test_grafana_shows_the_dashboard_to_whoever_comes(stack: Stack) -> None:
    await stack.compose("--profile", "monitoring", "up", "--no-build", "--wait", "grafana")
    home = json.loads(await asked(f"{stack.grafana}/api/dashboards/home"))
    assert home["dashboard"]["title"] == "natsctl"
    found = json.loads(await asked(f"{stack.grafana}/api/dashboards/uid/natsctl"))
    assert (found["meta"]["provisioned"], found["meta"]["canSave"]) == (True, False)
    await eventually(lambda: _scraped(stack, up=1))
    proxied = f"{stack.grafana}/api/datasources/proxy/uid/prometheus/api/v1/query"
    said = json.loads(await asked(f"{proxied}?query=natsctl_build_info"))
    assert len(said["data"]["result"]) == 1


async def _scraped(stack: Stack, *, up: int) -> bool:
    """Say whether Prometheus has so many daemons that answer it, and no others."""
    told = json.loads(await asked(f"{stack.prometheus}/api/v1/targets"))["data"]["activeTargets"]
    found = [(target["labels"]["service"], target["health"]) for target in told]
    assert found == [("natsctl", "up")] * up, told
    return True


async def _fires(stack: Stack, name: str) -> bool:
    told = json.loads(await asked(f"{stack.prometheus}/api/v1/alerts"))["data"]["alerts"]
    return (name, "firing") in {(each["labels"]["alertname"], each["state"]) for each in told}
