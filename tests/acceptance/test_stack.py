"""docker-compose.yml has the expected services, images, ports and mounts."""

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
DEFAULTS = dict(VARIABLE.findall(TEXT))
DOCS = ROOT / "docs"


def read(text: str) -> Any:
    """Parse YAML with the default value of each variable."""
    return yaml.safe_load(VARIABLE.sub(lambda variable: variable[2], text))


SERVICES: dict[str, dict[str, Any]] = read(TEXT)["services"]
MONITORS = ("prometheus", "grafana")


def mounts(service: str) -> dict[str, str]:
    """Return the mounts of a service: the path in the container and the source."""
    volumes = (mount.split(":") for mount in SERVICES[service].get("volumes", ()))
    return {inside: outside for outside, inside, *_ in volumes}


def inside(service: str, path: str) -> Path:
    """Return the file that is mounted at this path of a service."""
    mount_points = [
        path_inside for path_inside in mounts(service) if Path(path).is_relative_to(path_inside)
    ]
    assert mount_points, f"{service} has nothing at {path}"
    path_inside = max(mount_points, key=len)
    return ROOT / mounts(service)[path_inside] / Path(path).relative_to(path_inside)


def provisioned(kind: str) -> dict[str, Any]:
    (file,) = inside("grafana", f"/etc/grafana/provisioning/{kind}").glob("*.yml")
    (provider,) = read(file.read_text())["providers" if kind == "dashboards" else kind]
    return dict(provider)


def dashboard() -> dict[str, Any]:
    return dict(json.loads((DOCS / "grafana" / "natsctl.json").read_text()))


def test_published_ports_listen_on_loopback_only() -> None:
    published = [port for definition in SERVICES.values() for port in definition.get("ports", ())]
    assert len(published) == 4
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def test_every_third_party_image_has_a_version() -> None:
    tags = {
        definition["image"].partition(":")[0]: definition["image"]
        for definition in SERVICES.values()
    }
    assert set(tags) == {"natsctl", "nats", "rancher/k3s", "prom/prometheus", "grafana/grafana"}
    del tags["natsctl"]
    assert [image for image in tags.values() if not re.search(r":v?\d+\.\d+", image)] == []


def test_the_page_lists_every_variable_with_its_default() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| `([^`]*)` \|", (DOCS / "compose.md").read_text(), re.MULTILINE
    )
    assert dict(rows) == DEFAULTS


@pytest.mark.parametrize("service", SERVICES)
def test_every_mounted_file_exists(service: str) -> None:
    own_files = [path for path in mounts(service).values() if path.startswith((".", "/"))]
    assert [path for path in own_files if not (ROOT / path).exists()] == []
    assert bool(own_files) is (service in MONITORS)


def test_the_tests_use_the_images_of_the_stack() -> None:
    images = {definition["image"] for definition in SERVICES.values()}
    assert {nats_containers.IMAGE, kube_k3s.IMAGE} <= images
    assert containers.IMAGE.partition(":")[0] == SERVICES["natsctl"]["image"].partition(":")[0]


def test_prometheus_scrapes_every_daemon_of_the_stack_on_its_port() -> None:
    (option,) = [
        word for word in SERVICES["prometheus"]["command"] if word.startswith("--config.file=")
    ]
    config = read(inside("prometheus", option.partition("=")[2]).read_text())
    (job,) = config["scrape_configs"]
    (looked_up,) = job["dns_sd_configs"]
    daemons = {
        name for name, definition in SERVICES.items() if definition["image"].startswith("natsctl:")
    }
    assert set(looked_up["names"]) == daemons
    listens = re.findall(r"NATSCTL_LISTEN=:(\d+)", (ROOT / "Dockerfile").read_text())
    assert listens == [str(looked_up["port"])]
    assert SERVICES["natsctl"]["ports"] == [f"127.0.0.1:8080:{listens[0]}"]
    for file in config["rule_files"]:
        assert (DOCS / "prometheus" / file).exists()


def test_grafana_opens_the_dashboard_with_the_prometheus_of_the_stack() -> None:
    environ = SERVICES["grafana"]["environment"]
    home = environ["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert inside("grafana", home) == DOCS / "grafana" / "natsctl.json"
    assert Path(home).parent == Path(provisioned("dashboards")["options"]["path"])

    source = provisioned("datasources")
    assert source["isDefault"] is True
    assert source["url"] == f"http://prometheus:{SERVICES['prometheus']['ports'][0][-4:]}"
    scraped = read((DOCS / "prometheus" / "prometheus.yml").read_text())["global"]
    assert source["jsonData"]["timeInterval"] == scraped["scrape_interval"]

    (chosen,) = [
        definition
        for definition in dashboard()["templating"]["list"]
        if definition["type"] == "datasource"
    ]
    assert chosen["query"] == source["type"]
    assert chosen["current"] == {"text": source["name"], "value": source["uid"]}
    used = {panel["datasource"]["uid"] for panel in dashboard()["panels"] if panel["type"] != "row"}
    assert used == {f"${{{chosen['name']}}}"}


def test_visitors_of_grafana_need_no_password_and_may_only_read() -> None:
    environ = SERVICES["grafana"]["environment"]
    assert environ["GF_AUTH_ANONYMOUS_ENABLED"] == "true"
    assert environ["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environ["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert environ["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert provisioned("dashboards")["allowUiUpdates"] is False
    assert provisioned("datasources")["editable"] is False
