"""Gives the tests that share something expensive to one worker, so that no other worker starts it.

A kube-apiserver takes three seconds of processor time to start, and works while it is idle.
Chromium is similar. A worker writes a file with the group of each test, because the process that
distributes the tests does not know their fixtures. A server ends with the last test of its group.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.cli.forked_process import FORKS, ForkServer

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

SHARED = {  # a fixture of the group's tests, and the name of the group
    "restartable_kube_server": "restarted kube-apiserver",
    "kube_server": "kube-apiserver",
    "chromium": "chromium",
    "tour": "tour",
    "report": "report of a plain pytest",
}
KUBE = "kube"  # the parameter of a contract test that requests `kube_server` while it runs
FILES_TOGETHER = "tests/unit/"  # the tests of a file share what the first one imports
FILE = "groups_file"
FORK_SERVER = "fork_server"
WRITER = "gw0"
GROUP: pytest.StashKey[str | None] = pytest.StashKey()
SERVERS: pytest.StashKey[ExitStack] = pytest.StashKey()


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Gives a free worker the next group or test. The short tests of `tests/unit` end a run."""

    def __init__(self, config: pytest.Config, log: "Producer", groups: Path) -> None:
        super().__init__(config, log)
        self._file = groups
        self._groups: dict[str, str] = {}

    def schedule(self) -> None:
        """Distribute the tests, which every worker has collected."""
        self._groups = json.loads(self._file.read_text())
        super().schedule()

    def mark_test_complete(
        self, node: "WorkerController", item_index: int, duration: float = 0
    ) -> None:
        """Forget a group that is complete. All groups of a worker are counted for each test."""
        super().mark_test_complete(node, item_index, duration)
        group = self._split_scope(self.registered_collections[node][item_index])
        if all(self.assigned_work[node][group].values()):
            del self.assigned_work[node][group]

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid, nodeid)


class Distribution:
    """The part of the plugin in the process that distributes the tests."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "groups.json"
        self._forks = ForkServer()

    def pytest_configure_node(self, node: "WorkerController") -> None:
        """Name the file to write and the fork server to a worker."""
        node.workerinput[FILE] = str(self._file)
        node.workerinput[FORK_SERVER] = self._forks.address

    def pytest_unconfigure(self) -> None:
        self._forks.stop()

    def pytest_xdist_make_scheduler(
        self, config: pytest.Config, log: "Producer"
    ) -> LoadScopeScheduling | None:
        """Return the scheduler for `--dist loadgroup`."""
        is_grouped = config.getoption("dist") == "loadgroup"
        return GroupScheduling(config, log, self._file) if is_grouped else None


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the distribution, if this process distributes tests."""
    if worker := getattr(config, "workerinput", None):
        FORKS.share(worker[FORK_SERVER])
    elif config.getoption("dist", "no") != "no":
        folder = tempfile.TemporaryDirectory(prefix="natsctl-tests-")
        config.add_cleanup(folder.cleanup)
        config.pluginmanager.register(Distribution(Path(folder.name)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests that share something first, and let one worker write the groups."""
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    shared = {item.nodeid: group for item in items if (group := _group(item))}
    items.sort(key=lambda item: item.nodeid not in shared)
    if config.getoption("loadgroup"):
        for item in items:
            item.stash[GROUP] = shared.get(item.nodeid)
    if worker["workerid"] == WRITER:
        together = [item.nodeid for item in items if item.nodeid.startswith(FILES_TOGETHER)]
        files = {nodeid: nodeid.partition("::")[0] for nodeid in together}
        Path(worker[FILE]).write_text(json.dumps(files | shared))


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
