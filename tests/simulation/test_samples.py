"""The example controllers pass the simulation."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from controllers.audit import Audit
from controllers.greetings import Greetings
from controllers.hosts import HOSTS, Hosts
from controllers.rollouts import Rollouts
from controllers.streams import Consumers, Streams
from controllers.webapps import WebApps
from natsctl import JetStream
from natsctl.testing import StoredObjects, simulate
from natsctl.testing.simulation.subject import ControllerClass


class Sample(msgspec.Struct, frozen=True):
    controller: ControllerClass
    objects: tuple[dict[str, Any], ...]
    options: dict[str, Any] = {}


class HostsInMemory(Hosts):
    """Keeps its hosts file in a folder of this test, and not in the current one."""

    folder = TemporaryDirectory(prefix="natsctl-hosts-")

    def __init__(self) -> None:
        super().__init__(Path(self.folder.name) / "hosts")


class ConsumersOfOrders(Consumers):
    async def start(self) -> None:
        assert isinstance(self.runtime.nats, JetStream)
        stream = {"name": "orders", "subjects": ["orders.>"]}
        await self.runtime.nats.api("STREAM.CREATE.orders", stream)
        await super().start()


def the_file_has_every_host(objects: StoredObjects) -> None:
    file = (Path(HostsInMemory.folder.name) / "hosts").read_text()
    lines = [line for line in file.splitlines() if not line.startswith("#")]
    assert len(lines) == len(objects.items(HOSTS)), file
    for key, host in objects.items(HOSTS).items():
        assert any(line.split()[:2] == [host.spec.address, key] for line in lines), file


IN_EUROPE = {"labels": {"region": "eu"}}
SAMPLES = [
    Sample(
        Greetings,
        (
            {"key": "shop", "spec": {"text": "hi"}},
            {"key": "shop", "spec": {"text": "ho", "replicas": 2}},
            {"key": "team.pier", "spec": {"text": "ahoy"}},
            {"bucket": "defaults", "key": "all", "spec": {"punctuation": "?"}},
            {"bucket": "defaults", "key": "team", "spec": {}},
        ),
    ),
    Sample(
        Rollouts,
        (
            {"key": "eu", "spec": {"sites": {"region": "eu"}, "config": {"v": 1}, "atOnce": 3}},
            {"key": "eu", "spec": {"sites": {"region": "eu"}, "config": {"v": 2}, "atOnce": 3}},
            {"bucket": "sites", "key": "berlin", "metadata": IN_EUROPE, "spec": {}},
            {"bucket": "sites", "key": "rome", "metadata": IN_EUROPE, "spec": {}},
        ),
    ),
    Sample(
        WebApps,
        (
            {"key": "shop", "spec": {"image": "nginx", "env": {"MODE": "demo"}}},
            {"key": "shop", "spec": {"image": "caddy", "namespace": "web"}},
            {"key": "pier", "spec": {"image": "httpd", "replicas": 2}},
            {"bucket": "webapp-defaults", "key": "all", "spec": {"replicas": 3}},
        ),
    ),
    Sample(
        Streams,
        (
            {"key": "orders", "spec": {"config": {"subjects": ["orders.>"]}}},
            {"key": "orders", "spec": {"config": {"subjects": ["orders.>"], "max_msgs": 9}}},
            {"key": "bills", "spec": {"config": {"subjects": ["bills.*"]}}},
        ),
    ),
    Sample(
        ConsumersOfOrders,
        (
            {"key": "billing", "spec": {"stream": "orders", "config": {"ack_wait": 9}}},
            {"key": "billing", "spec": {"stream": "orders", "config": {"ack_wait": 10}}},
        ),
        {"keep": ["jetstream/orders"]},
    ),
    Sample(
        Audit,
        ({"key": "shop", "spec": {"text": "hi"}}, {"key": "pier", "spec": {"text": "ahoy"}}),
        {"ignore": ["audit"], "keep": ["audit"]},
    ),
    Sample(
        HostsInMemory,
        (
            {"key": "gw.berlin", "spec": {"address": "10.1.0.1", "aliases": ["gw"]}},
            {"key": "gw.berlin", "spec": {"address": "10.1.0.2"}},
            {"key": "db", "spec": {"address": "10.1.0.3"}},
        ),
        {"finally_": the_file_has_every_host},
    ),
]


@pytest.mark.parametrize(
    "runs", [5, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.controller.__name__)
def test_a_sample_passes(sample: Sample, runs: int) -> None:
    simulate(sample.controller, objects=sample.objects, runs=runs, **sample.options)
