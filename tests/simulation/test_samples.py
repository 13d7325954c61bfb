"""The example controllers pass the simulation."""

from typing import Any

import msgspec
import pytest

from controllers.greetings import Greetings
from controllers.rollouts import Rollouts
from controllers.streams import Streams
from controllers.webapps import WebApps
from natsctl.testing.simulation.simulate import simulate
from natsctl.testing.simulation.subject import ControllerClass


class Sample(msgspec.Struct, frozen=True):
    controller: ControllerClass
    objects: tuple[dict[str, Any], ...]
    ignore: tuple[str, ...] = ()


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
            {
                "bucket": "sites",
                "key": "berlin",
                "metadata": {"labels": {"region": "eu"}},
                "spec": {},
            },
            {
                "bucket": "sites",
                "key": "rome",
                "metadata": {"labels": {"region": "eu"}},
                "spec": {},
            },
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
]


def _name(sample: Sample) -> str:
    return sample.controller.__name__


def check(sample: Sample, runs: int) -> None:
    simulate(sample.controller, objects=sample.objects, runs=runs, ignore=sample.ignore)


@pytest.mark.parametrize("sample", SAMPLES, ids=_name)
def test_a_sample_passes(sample: Sample) -> None:
    check(sample, 20)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sample", SAMPLES, ids=_name)
def test_a_sample_passes_ten_thousand_runs(sample: Sample) -> None:
    check(sample, 10_000)
