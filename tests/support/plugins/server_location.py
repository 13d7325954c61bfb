"""Runs the servers of tests as processes or in containers.

`TEST_NATS=container` runs the server of the fixture `nats_server` and of the contract suite in a
container, `TEST_KUBE=container` that of `kube_server`. Servers that a test starts itself are
always processes.
"""

import os
from pathlib import Path

import pytest

from tests.support.servers.docker import engine_answers
from tests.support.servers.nats_container import ContainedNatsServer
from tests.support.servers.nats_server import NatsServer

NATS = "TEST_NATS"
KUBE = "TEST_KUBE"
CONTAINER = "container"


def in_container(variable: str) -> bool:
    return os.environ.get(variable) == CONTAINER


def new_nats_server(folder: Path) -> NatsServer:
    """Return a server that is not started yet, as a process or in a container."""
    return ContainedNatsServer(folder) if in_container(NATS) else NatsServer(folder)


def pytest_configure() -> None:
    """Reject an invalid value, and containers without a Docker engine."""
    for variable in (NATS, KUBE):
        place = os.environ.get(variable)
        if place not in {None, "", CONTAINER}:
            raise pytest.UsageError(f"{variable} is {place!r}: it is {CONTAINER!r}, or is not set")
        if place and not engine_answers():
            raise pytest.UsageError(f"{variable} is {place!r}, and no Docker engine answers")


def pytest_report_header() -> list[str]:
    return [f"{variable}: in containers" for variable in (NATS, KUBE) if in_container(variable)]
