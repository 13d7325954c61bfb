"""Gives the tests that share something expensive to one worker, so that no other worker starts it.

A kube-apiserver takes three seconds of processor time to start, and works while it is idle.
Chromium is similar. A server ends with the last test of its group.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

SHARED = {  # a fixture of the group's tests, and the name of the group
    "restartable_kube_server": "restarted kube-apiserver",
    "kube_server": "kube-apiserver",
    "chromium": "chromium",
    "tour": "tour",
    "report": "report of a plain pytest",
}
KUBE = "kube"  # the parameter of a contract test that requests `kube_server` while it runs
GROUPED = "grouped"  # in the input of a worker: whether it gets whole groups
GROUP: pytest.StashKey[str | None] = pytest.StashKey()
SERVERS: pytest.StashKey[ExitStack] = pytest.StashKey()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Find the groups, in a worker of pytest-xdist that gets whole groups."""
    if getattr(config, "workerinput", {}).get(GROUPED):
        for item in items:
            item.stash[GROUP] = _group(item)


@pytest.fixture(scope="session")
def until_group_ends(pytestconfig: pytest.Config) -> Iterator[ExitStack]:
    """Return the servers that end with their group in a worker, and else with the session."""
    with ExitStack() as servers:
        pytestconfig.stash[SERVERS] = servers
        yield servers


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the servers of a group after its last test: an idle kube-apiserver is never idle."""
    group, servers = item.stash.get(GROUP, None), item.config.stash.get(SERVERS, None)
    if group and servers and nextitem and nextitem.stash[GROUP] != group:
        servers.close()


def _group(item: pytest.Item) -> str | None:
    fixtures = set(getattr(item, "fixturenames", ()))
    if hasattr(item, "callspec") and KUBE in map(_text, item.callspec.params.values()):
        fixtures.add("kube_server")
    return next((group for fixture, group in SHARED.items() if fixture in fixtures), None)


def _text(parameter: object) -> str:
    return parameter if isinstance(parameter, str) else ""
