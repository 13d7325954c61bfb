"""Where the servers of tests run: as processes of this machine, or in containers.

`TEST_NATS=container` and `TEST_KUBE=container` ask for containers: for the server
of the fixture `nats_server` and that of the contract of stores, and for `kube_server`. Servers that
a test makes itself, to break them or with files of its own, are processes still.
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
    """Say whether that variable asks for a container."""
    return os.environ.get(variable) == CONTAINER


def new_nats_server(folder: Path) -> NatsServer:
    """Return a server that is not started yet, wherever it is to run."""
    return ContainedNatsServer(folder) if in_container(NATS) else NatsServer(folder)


def pytest_configure() -> None:
    """End a run that asks for what cannot be: it would test something else."""
    for variable in (NATS, KUBE):
        asked = os.environ.get(variable)
        if asked not in {None, "", CONTAINER}:
            raise pytest.UsageError(f"{variable} is {asked!r}: it is {CONTAINER!r}, or is not set")
        if asked and not engine_answers():
            raise pytest.UsageError(f"{variable} is {asked!r}, and no Docker engine answers")


def pytest_report_header() -> list[str]:
    return [f"{variable}: in containers" for variable in (NATS, KUBE) if in_container(variable)]
