"""What docker-compose.yml says, as far as that can be checked without an engine."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.servers import docker as containers
from tests.support.servers import k3s as kube_k3s
from tests.support.servers import nats_container as nats_containers
from tests.support.servers.docker import ROOT

TEXT = (ROOT / "docker-compose.yml").read_text()
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
USUAL = dict(VARIABLE.findall(TEXT))
DOCS = ROOT / "docs"


def read(text: str) -> Any:
    """Return what YAML says where no variable is set."""
    return yaml.safe_load(VARIABLE.sub(lambda found: found[2], text))


SERVICES: dict[str, dict[str, Any]] = read(TEXT)["services"]
MONITORS = ("prometheus", "grafana")


def mounts(service: str) -> dict[str, str]:
    """Return what a service is given, by where it is in its container: our files and volumes."""
    given = (mount.split(":") for mount in SERVICES[service].get("volumes", ()))
    return {inside: outside for outside, inside, *_ in given}


def inside(service: str, path: str) -> Path:
    """Return our file that a service sees at this path."""
    found = [at for at in mounts(service) if Path(path).is_relative_to(at)]
    assert found, f"{service} has nothing at {path}"
    at = max(found, key=len)
    return ROOT / mounts(service)[at] / Path(path).relative_to(at)


def provisioned(what: str) -> dict[str, Any]:
    (file,) = inside("grafana", f"/etc/grafana/provisioning/{what}").glob("*.yml")
    (found,) = read(file.read_text())["providers" if what == "dashboards" else what]
    return dict(found)


def dashboard() -> dict[str, Any]:
    return dict(json.loads((DOCS / "grafana" / "natsctl.json").read_text()))


def test_nobody_but_this_machine_reaches_what_is_published() -> None:
    published = [port for each in SERVICES.values() for port in each.get("ports", ())]
    assert len(published) == 4
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def test_every_image_of_others_has_a_version() -> None:
    tags = {each["image"].partition(":")[0]: each["image"] for each in SERVICES.values()}
    assert set(tags) == {"natsctl", "nats", "rancher/k3s", "prom/prometheus", "grafana/grafana"}
    del tags["natsctl"]
    assert [image for image in tags.values() if not re.search(r":v?\d+\.\d+", image)] == []


def test_the_page_names_every_variable_and_what_is_usual() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| `([^`]*)` \|", (DOCS / "compose.md").read_text(), re.MULTILINE
    )
    assert dict(rows) == USUAL


@pytest.mark.parametrize("service", SERVICES)
def test_whatever_of_ours_is_mounted_is_there(service: str) -> None:
    ours = [path for path in mounts(service).values() if path.startswith((".", "/"))]
    assert [path for path in ours if not (ROOT / path).exists()] == []
    assert bool(ours) is (service in MONITORS)


def test_the_tests_run_the_images_that_the_stack_does() -> None:
    images = {each["image"] for each in SERVICES.values()}
    assert {nats_containers.IMAGE, kube_k3s.IMAGE} <= images
    assert containers.IMAGE.partition(":")[0] == SERVICES["natsctl"]["image"].partition(":")[0]


def test_prometheus_asks_every_daemon_of_the_stack_where_it_listens() -> None:
    (option,) = [
        word for word in SERVICES["prometheus"]["command"] if word.startswith("--config.file=")
    ]
    config = read(inside("prometheus", option.partition("=")[2]).read_text())
    (job,) = config["scrape_configs"]
    (looked_up,) = job["dns_sd_configs"]
    daemons = {name for name, each in SERVICES.items() if each["image"].startswith("natsctl:")}
    assert set(looked_up["names"]) == daemons
    listens = re.findall(r"NATSCTL_LISTEN=:(\d+)", (ROOT / "Dockerfile").read_text())
    assert listens == [str(looked_up["port"])]
    assert SERVICES["natsctl"]["ports"] == [f"127.0.0.1:8080:{listens[0]}"]
    for file in config["rule_files"]:
        assert (DOCS / "prometheus" / file).exists()


def test_grafana_begins_with_the_dashboard_and_the_dashboard_with_our_prometheus() -> None:
    environ = SERVICES["grafana"]["environment"]
    home = environ["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert inside("grafana", home) == DOCS / "grafana" / "natsctl.json"
    assert Path(home).parent == Path(provisioned("dashboards")["options"]["path"])

    source = provisioned("datasources")
    assert source["isDefault"] is True
    assert source["url"] == f"http://prometheus:{SERVICES['prometheus']['ports'][0][-4:]}"
    scraped = read((DOCS / "prometheus" / "prometheus.yml").read_text())["global"]
    assert source["jsonData"]["timeInterval"] == scraped["scrape_interval"]

    (chosen,) = [each for each in dashboard()["templating"]["list"] if each["type"] == "datasource"]
    assert chosen["query"] == source["type"]
    assert chosen["current"] == {"text": source["name"], "value": source["uid"]}
    used = {panel["datasource"]["uid"] for panel in dashboard()["panels"] if panel["type"] != "row"}
    assert used == {f"${{{chosen['name']}}}"}


def test_who_looks_at_grafana_changes_nothing_there_and_needs_no_password() -> None:
    environ = SERVICES["grafana"]["environment"]
    assert environ["GF_AUTH_ANONYMOUS_ENABLED"] == "true"
    assert environ["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environ["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert environ["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert provisioned("dashboards")["allowUiUpdates"] is False
    assert provisioned("datasources")["editable"] is False
